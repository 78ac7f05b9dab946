"""The relay under mixed load for a long time: every answer is checked, and memory and files are watched."""
