"""The work of the webhook on a new pod: defaults, the scheduler's name, and refusals. Pure: a pod enters, a verdict
leaves.
"""
