"""The extender's metrics: counters, families of the cluster's state, and the port that serves them."""
