"""What outlives the daemon: kubelet's checkpoint, and the memory for a start while the API server is unreachable."""
