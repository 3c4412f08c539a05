"""The facts that `doctor` gathers for its diagnosis (edge)."""
