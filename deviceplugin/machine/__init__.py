"""What a machine is: its GPUs, the paths between them, what of them is advertised. Pure."""
