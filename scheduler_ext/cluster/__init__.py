"""The nodes' registered GPUs and the records of pods that hold them, in the ledger. Events enter, effects leave."""
