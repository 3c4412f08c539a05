"""HTTP as values, and the servers and ports that read and write them."""
