"""The checks of `doctor`: pure functions from facts to findings, one module for each subject."""
