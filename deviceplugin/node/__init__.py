"""The Node of this daemon: the parts of it, by contributor, and the one loop that writes them."""
