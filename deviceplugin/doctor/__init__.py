"""The doctor: facts about this node and its cluster, and what they say about why the node does not serve its GPUs."""
