"""Hold-offs without a file."""

from pathlib import Path
from typing import Any

from criproxy.pods.hold_offs import HoldOff, HoldOffs


def no_hold_offs(clock: Any) -> HoldOffs:
    return held_off(clock)


def held_off(clock: Any, *uids: str) -> HoldOffs:
    """These pods are held off for ever; "": the box."""
    found = HoldOffs(Path("/nowhere"), None, clock, None)  # type: ignore[arg-type]
    found._all = {uid: HoldOff(uid, uid or "box", float("inf"), "repair") for uid in uids}
    return found
