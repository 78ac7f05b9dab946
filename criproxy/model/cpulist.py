"""Sets of CPUs as the kernel, kubelet and systemd write them. Source: cpuset(7), List format."""

import re
from collections.abc import Set
from typing import Final

Cpus = frozenset[int]

_PART: Final = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")
_MOST: Final = 8192
"""CPUs that a kernel can have (CONFIG_NR_CPUS): a list of more parts, or with higher numbers, is a mistake, or hostile.
"""


def parse_cpus(text: str) -> Cpus:
    """The CPUs of a list such as `0-3,8`; an empty one has none. Raises ValueError for anything else."""
    cpus: set[int] = set()
    left = 2 * _MOST  # of CPUs to add, however often a list names the same
    for part in filter(None, text.strip().split(",", _MOST)):
        found = _PART.fullmatch(part.strip())
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        left -= last + 1 - first
        if not first <= last < _MOST or left < 0:
            raise ValueError(f"{text[:80]!r} is not a list of CPUs such as 0-3,8")
        cpus.update(range(first, last + 1))
    return frozenset(cpus)


def format_cpus(cpus: Set[int]) -> str:
    """The list of a set, as the kernel reads it back: `0-3,8`."""
    parts: list[str] = []
    ordered = sorted(cpus)
    starts = [cpu for cpu in ordered if cpu - 1 not in cpus]
    ends = [cpu for cpu in ordered if cpu + 1 not in cpus]
    for first, last in zip(starts, ends, strict=True):
        parts.append(str(first) if first == last else f"{first}-{last}")
    return ",".join(parts)


def mask_of(cpus: Set[int]) -> bytes:
    """AllowedCPUs= as it is on the bus: bit n of the bytes is CPU n; no byte for no CPU, which means no bound.

    Source: systemd/src/shared/cpu-set-util.c, cpu_set_to_dbus.
    """
    bits = sum(1 << cpu for cpu in cpus)
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")
