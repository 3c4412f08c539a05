"""What happens to a pod before it exists: defaults, the scheduler's name, and refusals (pure)."""
