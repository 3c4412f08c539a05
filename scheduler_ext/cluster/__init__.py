"""The nodes' registered GPUs and the pods that hold them: holdings, reservations, the ledger. Events enter, effects
leave.
"""
