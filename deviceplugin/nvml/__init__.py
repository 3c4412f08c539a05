"""Reads the NVIDIA driver through NVML and sysfs: calls leave, readings and events enter (edge)."""
