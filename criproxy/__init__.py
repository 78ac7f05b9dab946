"""criproxy: a CRI proxy and control loop that let batch pods use what online pods leave."""

__version__ = "0.1.0"
