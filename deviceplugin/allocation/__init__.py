"""The decision for a container, and whether it can be given out: shared by both ways to answer Allocate."""
