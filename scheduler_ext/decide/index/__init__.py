"""Finds what `decide` finds without judging every node for every pod. README.md explains it."""
