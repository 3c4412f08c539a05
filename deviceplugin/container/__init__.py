"""What one container gets, and what the node must hold for it."""
