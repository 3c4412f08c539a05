"""CPUs beside GPUs: what kubelet's Topology Manager does on this node, and the hints that lead it."""
