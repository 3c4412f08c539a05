"""kubelet device-plugin v1beta1: the protocol file and its generated stubs."""
