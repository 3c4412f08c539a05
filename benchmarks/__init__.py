"""What the programs cost and how fast they are, measured on this machine: each module is a command."""
