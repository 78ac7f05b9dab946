"""What policies would change on which nodes, before they are in the cluster."""
