"""How TopoGPU is deployed, and the tools that keep it so."""
