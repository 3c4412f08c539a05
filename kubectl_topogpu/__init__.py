"""`kubectl topogpu`: who holds which GPU, why a pod waits, and what still fits, from the cluster's objects alone."""
