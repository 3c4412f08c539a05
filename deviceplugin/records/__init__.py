"""The records that outlive the daemon: kubelet's checkpoint, and the memory for a start without the API server."""
