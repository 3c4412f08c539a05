"""The status page: who has which GPU, why, and what would fit, in a browser. It reads and never writes."""
