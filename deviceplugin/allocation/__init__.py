"""Finds the pod for which kubelet asks, and answers kubelet's calls."""
