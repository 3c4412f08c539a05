"""What every program of ours needs to run, and what is no wire language: log lines, ports, settings."""
