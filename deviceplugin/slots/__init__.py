"""Strategy `slots`: Allocate answers with a name, and the start of the container proves whose it is."""
