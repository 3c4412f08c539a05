"""The planner: what the extender would decide on a cluster that is recorded or described."""
