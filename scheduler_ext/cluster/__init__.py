"""What the cluster has and which pods hold it: registered GPUs, holdings, the ledger. Events enter, effects leave."""
