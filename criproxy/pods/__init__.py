"""What the node knows and decides of pods, whichever front they came through."""
