"""Searches every interleaving of a small world over the extender's own state and bind machines."""
