"""Time and threads, for every room: the clock, one thread for calls that may block, and files that are kept."""
