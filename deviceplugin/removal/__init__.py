"""Finds and removes what the daemon leaves on a node."""
