"""`criproxy top`: the node and its offline pods on a live screen."""
