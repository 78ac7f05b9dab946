"""What policies would change on which nodes (`changes`), and what these would lend then (`outlook`)."""
