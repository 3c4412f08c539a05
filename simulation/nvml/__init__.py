"""NVML without a GPU: a small driver library of our own that answers from a machine description."""
