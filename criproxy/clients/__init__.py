"""Who asks: the container runtime, over CRI, and online services at their pods."""
