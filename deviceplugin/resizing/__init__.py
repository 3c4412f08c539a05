"""Other GPU memory for running containers that the driver limits: the node daemon's half."""
