"""What both ways to answer Allocate share: the decision, and whether it can be given out."""
