"""Advice before an install: recorded usage of nodes, replayed by the code of `simulate`, as a page for its owner."""
