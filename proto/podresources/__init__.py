"""Kubelet's pod-resources API v1: the protocol file and its generated stubs."""
