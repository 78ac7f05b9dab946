"""The demo: criproxy before a private containerd, an online pod that plays a day's usage, two offline pods."""


class DemoError(Exception):
    """The demo cannot run; the message is one clear sentence that says why and what to do."""
