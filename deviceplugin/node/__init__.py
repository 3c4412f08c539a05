"""The Node of this daemon: what the Node should say, by contributor, and the one loop that writes it."""
