"""What one container gets, and the files that the node needs for it."""
