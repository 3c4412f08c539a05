"""What `doctor` makes of the facts it gathered: pure functions from facts to findings, one module for each subject."""
