"""What a resctrl group may have of the last-level cache and of memory bandwidth, as a line per resource. Pure.

    L3:0=003;1=003       of each cache, by its id, a bit per part; the kernel wants the bits side by side
    MB:0=50;1=50         of each memory controller, at most so many percent (on AMD, in 1/8 GB/s: 2048 is no bound)

`bounded` gives the box the lowest bits, and no more percent than asked for; both as the processor can do it, which has
a least number of bits, a least percentage and a step. Online is not kept out of those bits: the rest is its alone.
Source: Documentation/arch/x86/resctrl.rst (x86/resctrl.rst before Linux 6.4).
"""

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from criproxy.cgroup.files import lines_of

LLC: Final = "L3"
BANDWIDTH: Final = "MB"


class CacheParts(Struct, frozen=True):
    """What the processor can do: all bits of a cache, and how many a group has at least."""

    mask: int
    least: int


class BandwidthSteps(Struct, frozen=True):
    """In percent: the least that a group has, and from what to what it can go."""

    least: int
    step: int


def cache_bits(parts: CacheParts, ratio: float) -> int:
    """The mask of this share of a cache, and never less than the processor can do."""
    count = max(parts.least, int(ratio * parts.mask.bit_count()), 1)
    return ((1 << min(count, parts.mask.bit_count())) - 1) << _lowest_bit(parts.mask)


def bandwidth_percent(steps: BandwidthSteps, ratio: float) -> int:
    """The highest step that is not above this share, and never less than the processor can do."""
    percent = int(round(ratio * 100, 6))
    return max(steps.least, percent - (percent - steps.least) % steps.step if percent > steps.least else 0)


def parse_schemata(text: str) -> dict[str, dict[str, str]]:
    """By resource (L3, L3CODE, MB …), what each cache or controller has, by its id. Raises ValueError."""
    found: dict[str, dict[str, str]] = {}
    for line in filter(None, map(str.strip, lines_of(text))):
        name, colon, domains = line.partition(":")
        if not colon:
            raise ValueError(f"{line!r} is no line of schemata")
        found[name.strip()] = dict(_pair(one) for one in domains.split(";"))
    return found


def bounded(
    held: Mapping[str, Mapping[str, str]],
    caches: Mapping[str, CacheParts],
    llc_ratio: float | None,
    bandwidth: BandwidthSteps | None,
    bandwidth_ratio: float | None,
) -> str:
    """The lines to write; what is not asked for (None), or not there, has none.

    `caches`: by resource, as in `held`: with code and data apart (CDP), they are two.
    """
    return "".join(f"{line}\n" for line in _lines(held, caches, llc_ratio, bandwidth, bandwidth_ratio))


def _lines(
    held: Mapping[str, Mapping[str, str]],
    caches: Mapping[str, CacheParts],
    llc_ratio: float | None,
    bandwidth: BandwidthSteps | None,
    bandwidth_ratio: float | None,
) -> Iterator[str]:
    for name, domains in held.items():
        if name in caches and llc_ratio is not None:
            value = f"{cache_bits(caches[name], llc_ratio):x}"
        elif name == BANDWIDTH and bandwidth is not None and bandwidth_ratio is not None:
            value = str(bandwidth_percent(bandwidth, bandwidth_ratio))
        else:
            continue
        yield f"{name}:{';'.join(f'{domain}={value}' for domain in domains)}"


def same(one: str, other: str) -> bool:
    """Whether two texts say the same, as the kernel pads names and bits. Raises ValueError."""
    return _numbers(one) == _numbers(other)


def _numbers(text: str) -> dict[str, dict[str, int]]:
    return {
        name: {domain: int(value, 10 if name == BANDWIDTH else 16) for domain, value in domains.items()}
        for name, domains in parse_schemata(text).items()
    }


def _pair(text: str) -> tuple[str, str]:
    domain, equals, value = text.strip().partition("=")
    if not equals:
        raise ValueError(f"{text!r} is no id and value")
    return domain, value


def _lowest_bit(mask: int) -> int:
    return (mask & -mask).bit_length() - 1
