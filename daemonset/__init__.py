"""The deployment of TopoGPU: the chart, and tools that render it and check the image."""
