"""What a node would publish under other settings, as far as that can be told without the node. Pure.

How it works
------------
A node computes what it lends from what it alone knows, its online pods' use within the next hour:

    lendable = capacity x watermark - reserve - that use, within the floor (min) and the ceiling (max)

So, of what is published now:

- where nothing is lent any more, it becomes 0;
- where watermark and reserve change from one known value to another, it moves by
  capacity x (new - old watermark) - (new - old reserve), unless the floor or the ceiling holds it (a floor that no
  policy says is taken to be the default);
- else capacity x watermark - reserve and the ceiling say what it is at most, as far as the policies say these;
- else it can't be told: the values of the node's own file are not known here.

All of that is for `control.policy = "dynamic"`, and less than the pods there were promised is never published, but for
0. Source: criproxy/kube/extended_resources.py, `lendable`.
"""

from collections.abc import Mapping
from enum import Enum
from fractions import Fraction
from typing import Any, Final

from msgspec import Struct

from criproxy_cluster.objects import Figures
from criproxy_cluster.vocabulary.policy import MIN_BYTES, MIN_CORES
from criproxy_cluster.vocabulary.presets import NAMES

Settings = Mapping[str, Any]
"""By "section.key"; what is not there is as the node's own file says."""

_UNITS: Final[Mapping[str, tuple[str, int]]] = {
    name: (what, per_unit) for preset in NAMES.values() for name, what, per_unit in preset.rows
}
"""Of a name: the resource, and how much of it a core or a byte is. Of other names, the node alone knows."""

_KEY_UNITS: Final = {"cpu": "cores", "memory": "bytes"}
_FLOORS: Final = {"cpu": Fraction(str(MIN_CORES)), "memory": Fraction(MIN_BYTES)}

_ALL_DEPENDS: Final = ("control", "schedule", "kubernetes")
"""Sections on which all depends, in a way that can't be told here."""


class How(Enum):
    """How well an amount is known, the better first."""

    EXACT = ""
    ABOUT = "about "
    AT_MOST = "at most "
    UNKNOWN = "as the node computes it"


class Outlook(Struct, frozen=True):
    """What is published now and then, in the name's unit. `then` is 0 where it is not known."""

    now: Fraction
    then: Fraction
    how: How


def outlooks(figures: Figures, before: Settings, after: Settings) -> dict[str, Outlook]:
    """By the published names; those that stay as they are left out."""
    changed = _changed(before, after)
    if is_off(after):
        return {name: Outlook(now, Fraction(0), How.EXACT) for name, now in figures.published.items() if now}
    found = {}
    for name, now in figures.published.items():
        what, per_unit = _UNITS.get(name, ("", 1))
        if _matters(changed, what):
            then, how = _then(what, now / per_unit, figures.capacity.get(what), before, after)
            found[name] = Outlook(now, Fraction(then * per_unit // 1), how)
    return found


def _changed(before: Settings, after: Settings) -> set[str]:
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def is_off(settings: Settings) -> bool:
    """Whether a node with these publishes nothing."""
    return settings.get("colocation.enabled") is False or settings.get("kubernetes.publish") is False


def is_memory(name: str) -> bool:
    return _UNITS.get(name, ("", 1))[0] == "memory"


def in_all(several: list[Outlook]) -> Outlook:
    """As well known as the worst."""
    how = max((one.how for one in several), key=list(How).index)
    return Outlook(sum((one.now for one in several), Fraction(0)), sum((one.then for one in several), Fraction(0)), how)


def _matters(changed: set[str], what: str) -> bool:
    sections = (what, *_ALL_DEPENDS) if what else (*_KEY_UNITS, *_ALL_DEPENDS)
    return "colocation.enabled" in changed or any(key.partition(".")[0] in sections for key in changed)


def _then(
    what: str, now: Fraction, capacity: Fraction | None, before: Settings, after: Settings
) -> tuple[Fraction, How]:
    """In cores or bytes."""
    if not what or capacity is None or after.get("control.policy", "dynamic") != "dynamic":
        return Fraction(0), How.UNKNOWN
    old, new = _Law.of(what, before), _Law.of(what, after)
    moved_by = old.moves_by(new, capacity)
    others = {
        key
        for key in _changed(before, after) - {f"{what}.watermark_ratio", f"{what}.reserve_{_KEY_UNITS[what]}"}
        if key == "colocation.enabled" or key.partition(".")[0] in (what, *_ALL_DEPENDS)
    }
    if moved_by is not None and not others and old.lets_move(now):
        return new.within(now + moved_by), How.ABOUT
    most = new.most(capacity)
    return (Fraction(0), How.UNKNOWN) if most is None else (most, How.AT_MOST)


class _Law(Struct, frozen=True):
    """Of one resource, as far as policies say it; None: as the node's own file says."""

    watermark: Fraction | None
    reserve: Fraction | None
    floor: Fraction
    """Where they don't, the default."""
    ceiling: Fraction | None

    @classmethod
    def of(cls, what: str, settings: Settings) -> "_Law":
        unit = _KEY_UNITS[what]
        keys = ("watermark_ratio", f"reserve_{unit}", f"min_{unit}", f"max_{unit}")
        watermark, reserve, floor, ceiling = (_number(settings.get(f"{what}.{key}")) for key in keys)
        return cls(watermark, reserve, _FLOORS[what] if floor is None else floor, ceiling)

    def moves_by(self, other: "_Law", capacity: Fraction) -> Fraction | None:
        """What the other one's watermark and reserve add to what is lent; None: it can't be told."""
        moved = Fraction(0)
        for mine, theirs, factor in (
            (self.watermark, other.watermark, capacity),
            (self.reserve, other.reserve, Fraction(-1)),
        ):
            if mine is not None and theirs is not None:
                moved += factor * (theirs - mine)
            elif mine != theirs:
                return None
        return moved

    def lets_move(self, lent: Fraction) -> bool:
        """Whether neither floor nor ceiling holds it."""
        return lent > self.floor and (self.ceiling is None or lent < self.ceiling)

    def within(self, lent: Fraction) -> Fraction:
        lent = lent if self.ceiling is None else min(lent, self.ceiling)
        return max(lent, self.floor)

    def most(self, capacity: Fraction) -> Fraction | None:
        """If online uses nothing; None: nothing is known that bounds it."""
        if self.watermark is None and self.reserve is None and self.ceiling is None:
            return None
        return self.within(capacity * (1 if self.watermark is None else self.watermark) - (self.reserve or 0))


def _number(value: Any) -> Fraction | None:
    """None also for what is no number, which a node refuses."""
    return Fraction(str(value)) if isinstance(value, int | float) and not isinstance(value, bool) else None
