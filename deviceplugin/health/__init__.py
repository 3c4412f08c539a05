"""Decides whether a GPU is healthy: events and signals enter, problems leave. Pure."""
