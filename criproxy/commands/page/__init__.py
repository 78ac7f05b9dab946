"""`criproxy page`: the node's last day as a page for a browser, served on the loopback while it runs, or saved."""
