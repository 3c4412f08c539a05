"""A cluster that is used and broken at random, and judged by an oracle of its own."""
