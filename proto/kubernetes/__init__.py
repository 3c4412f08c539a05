"""The API server as both programs see it: typed objects (pure), a client and a reflector (edges)."""
