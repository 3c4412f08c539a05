"""The same answers as `decide`, without judging every node for every pod. README.md beside this file explains it.

Nothing but `NodeIndex` is imported from outside this folder.
"""

from scheduler_ext.decide.index.node_index import NodeIndex

__all__ = ["NodeIndex"]
