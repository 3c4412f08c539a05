"""What becomes of GPUs that stay unhealthy, and of the pods on them."""
