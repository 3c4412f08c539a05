"""The choice between slots and immediate."""
