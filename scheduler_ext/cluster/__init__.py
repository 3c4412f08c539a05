"""What the cluster has and who holds it: registered GPUs, accounting, the ledger."""
