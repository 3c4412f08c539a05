"""Decides whether this replica leads: only the leader takes decisions and writes Bindings."""
