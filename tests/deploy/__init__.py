"""A whole cluster of one node, on a network of its own, where the shipped image and manifests run as pods."""
