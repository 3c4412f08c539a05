"""kubelet pod-resources v1: the protocol file and its generated stubs."""
