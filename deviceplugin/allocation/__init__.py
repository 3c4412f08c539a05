"""Whose GPUs kubelet asks for, and the answers."""
