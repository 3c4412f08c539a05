"""A kubelet for a node that does not exist: real gRPC towards device plugins, no container runtime behind it."""
