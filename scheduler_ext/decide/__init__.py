"""The arithmetic of the extender. A request and a snapshot enter; a node and its GPUs, or the reasons, leave. No IO."""
