"""Benchmarks: what the programs cost and how fast they are on this machine. Each module is a command."""
