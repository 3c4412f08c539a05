"""Stand-ins for the controllers of workloads: each turn creates, writes and deletes."""
