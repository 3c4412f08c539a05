"""The webhook's own certificate: when a new one is due, how it is made, where it is stored, and who trusts it."""
