"""Whether a GPU is well. Pure."""
