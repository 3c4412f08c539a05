"""A machine's GPUs and links: readings enter, advertised devices, scores and labels leave. Pure."""
