"""What the daemon tells those who look from outside."""
