"""CRI: its messages, what is read and rewritten of them, and what is asked of the runtime."""
