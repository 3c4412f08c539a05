"""Access to the API server for both programs: typed objects (pure), a client and a reflector (edges)."""
