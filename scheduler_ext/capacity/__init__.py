"""What still fits, what is lost, and what would have to go or change for a waiting pod. No IO.

For people: the kubectl plugin and the status page show these values. No decision depends on them.
"""
