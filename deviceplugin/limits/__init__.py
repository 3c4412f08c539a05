"""The driver's limits of GPU memory: whether the node has them, and how containers get and keep them."""
