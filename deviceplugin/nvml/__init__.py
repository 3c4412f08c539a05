"""The NVIDIA driver, read."""
