"""Replay: what a node would have gained and risked, from a record of its usage, by the daemon's own code."""


class SimulateError(Exception):
    """The simulation can't be done; the message says why and what to do, for an operator."""
