"""How TopoGPU is deployed: the chart, and tools that render it and check the image."""
