"""Whether this replica is the one that decides."""
