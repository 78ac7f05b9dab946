"""The demo: criproxy before a private containerd, an online pod that plays a day's usage, two offline pods.

place  the one directory in which a demo lives, what the machine must have for it, and the cleaning
load   the day, and what plays it in the online pod
node   containerd, criproxy and the three pods, by a CRI client or a real kubelet
play   the play, its figures and its plot
"""


class DemoError(Exception):
    """The demo cannot run; the message is one clear sentence that says why and what to do."""
