"""The doctor: facts about this node and its cluster, and findings on why the node does not serve its GPUs."""
