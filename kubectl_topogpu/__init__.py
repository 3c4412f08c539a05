"""`kubectl topogpu`: who has which GPU, why a pod waits, and what still fits, read from the cluster's objects alone."""
