"""Who uses how much of a GPU. Pure."""
