"""How a decision becomes a Binding, and the node lock where a node still needs it."""
