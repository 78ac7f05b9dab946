"""CRI: its messages, and what is read and rewritten of them."""
