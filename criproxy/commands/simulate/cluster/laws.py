"""The laws that are compared: what is published when, and what the node does to offline pods. Pure.

A law's amounts are made by `forecast`; here is when a change of them is reported, and what happens on the node.
"""

from typing import Final, Literal

from msgspec import Struct, structs

from criproxy.control.publication import REPORT_S
from criproxy.kube.extended_resources import LONGER_RATIO

LawOfAmounts = Literal["criproxy", "criproxy_former", "koordinator", "tke", "bilibili", "foresight"]
Name = Literal[LawOfAmounts, "without_starved", "without_feedback", "without_ladder"]

KOORDINATOR_CPU_RATIO: Final = 0.60
KOORDINATOR_MEMORY_RATIO: Final = 0.65
KOORDINATOR_SUPPRESS_RATIO: Final = 0.65
KOORDINATOR_EVICT_RATIO: Final = 0.70
KOORDINATOR_EVICT_TO_RATIO: Final = 0.68

TKE_PERCENTILE_RATIO: Final = 0.95
TKE_HALF_LIFE_S: Final = 86400.0
TKE_MARGIN_RATIO: Final = 0.15

BILIBILI_RATIO: Final = 0.85

FORMER_WATERMARK_RATIO: Final = 0.9
CHANGE_RATIO: Final = 0.1


class Law(Struct, frozen=True):
    """What a law does with the amounts that it makes.

    `falls_only`: only a fall is reported at once, and a rise waits; else either is, by more than `CHANGE_RATIO`. Every
    `every_s` there is a report anyway, up to `longer_ratio` later; None: never without a change.

    On the node, offline pods may fill its CPUs up to `suppress_ratio` beside online (None: all that online leaves).
    `yields`: the kernel gives online its CPU back at once, by cpu.idle. Memory: with `ladder`, a pod goes within
    criproxy's budget while the box is above its bound; from `evict_ratio` of the node's memory on, pods go until
    `evict_to_ratio`. Beyond all of these, kubelet's own eviction.

    `feeds_back`: what pods got moves what is published. `relieves`: where pods starve, the youngest goes.
    """

    name: Name
    title: str
    amount: str
    amounts: LawOfAmounts
    falls_only: bool = False
    every_s: float | None = REPORT_S
    longer_ratio: float = 0.0
    suppress_ratio: float | None = None
    yields: bool = False
    ladder: bool = False
    feeds_back: bool = False
    relieves: bool = False
    evict_ratio: float | None = None
    evict_to_ratio: float = 0.0


CRIPROXY: Final = Law(
    "criproxy", "criproxy", "0.95 x capacity - the last 5 min, at most about 2 x (capacity - the hour's forecast)",
    "criproxy", falls_only=True, longer_ratio=LONGER_RATIO, yields=True, ladder=True, feeds_back=True, relieves=True,
)  # fmt: skip

LAWS: Final = (
    CRIPROXY,
    Law("criproxy_former", "criproxy before", "0.9 x capacity - the hour's forecast", "criproxy_former",
        longer_ratio=LONGER_RATIO, yields=True, ladder=True),
    Law("koordinator", "Koordinator", "0.60 x capacity - the last 5 min; used up to 0.65 of the node", "koordinator",
        suppress_ratio=KOORDINATOR_SUPPRESS_RATIO, evict_ratio=KOORDINATOR_EVICT_RATIO,
        evict_to_ratio=KOORDINATOR_EVICT_TO_RATIO),
    Law("tke", "TKE (Crane)", "capacity - the greater of now and 1.15 x the 95th percentile of a day", "tke",
        every_s=None),
    Law("bilibili", "Bilibili", "0.85 x capacity - now; used up to 0.85 of the node", "bilibili",
        suppress_ratio=BILIBILI_RATIO),
    Law("foresight", "foresight of an hour", "capacity - the highest of the hour to come", "foresight",
        yields=True),
)  # fmt: skip
"""Where each is from: docs/simulate.md."""


def _without(name: Name, title: str, **parts: bool) -> Law:
    return structs.replace(CRIPROXY, name=name, title=title, **parts)


ABLATIONS: Final = (
    _without("without_starved", "  nobody moved who starves", relieves=False),
    _without("without_feedback", "  no feedback", feeds_back=False),
    _without("without_ladder", "  no eviction of its own", relieves=False, ladder=False),
)
"""criproxy's law without one of its parts each."""

BY_NAME: Final = {law.name: law for law in (*LAWS, *ABLATIONS)}
