"""Finds the pod that a call of kubelet is for, and answers the call."""
