"""Remediation: what the daemon does about GPUs that stay unhealthy, and about the pods on them."""
