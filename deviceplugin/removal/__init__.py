"""What the daemon leaves on a node, and taking it away."""
