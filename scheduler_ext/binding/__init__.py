"""Turns a decision into a Binding, with the node lock where a node still needs it."""
