"""Domains of nodes, such as racks and NVLink cliques, and the nodes of them that a group of pods takes."""
