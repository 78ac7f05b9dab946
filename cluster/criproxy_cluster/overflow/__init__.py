"""What is done for owners: the leader keeps their book, and acts by it; webhooks follow it. How it works: `owners`."""
