"""Time and threads, for every room: the clock, and one thread for calls that may block."""
