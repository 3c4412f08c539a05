"""Everything that can be set of the node daemon: declared once in `table`, read and merged by the other modules."""
