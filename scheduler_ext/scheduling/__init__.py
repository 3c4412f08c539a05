"""From a request and a snapshot to a node and its GPUs; pure arithmetic."""
