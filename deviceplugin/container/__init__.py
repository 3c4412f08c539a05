"""The edits that one container gets, and the files that the node needs for it."""
