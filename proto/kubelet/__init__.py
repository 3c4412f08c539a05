"""Kubelet's device-plugin API v1beta1: the protocol file and its generated stubs."""
