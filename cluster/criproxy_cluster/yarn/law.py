"""How large YARN is on one node, what its ResourceManager is sent for that, and what YARN holds meanwhile. Pure.

How it works
------------
    wanted  =  lent  -  max(what pods ask for, Kubernetes' part)      of memory and of CPU; never below 0

| the ResourceManager's size is | what is sent |
|---|---|
| more than wanted | `wanted`, with the grace: YARN tells ApplicationMasters at once, and kills containers at its end |
| the same, during a grace | less CPU at once; less memory after it, so that each container has all of its notice |
| less than wanted | `wanted`, each `RISE_S`; at once where that spares containers that are to be killed |
| not what was sent | the same again, each `AGAIN_S`: the ResourceManager or the NodeManager has been away |
| less than is used, without a grace of ours | `wanted`, or 1 MiB more, with the grace: the same sets no deadline |

    held  =  the most of what was sent, what the ResourceManager has, and what its containers use

So memory is YARN's until it has given it back, or until the grace and `SETTLE_S` are over. CPU is squeezed, not taken
back: it is free for others as soon as the ResourceManager has the smaller number.

A grace is always positive. 0 kills at once; and a negative one, which a new node takes for "never", lets a deadline of
before count again. Tried on Hadoop 3.4.
"""

from typing import Final

from msgspec import Struct

from criproxy_cluster.vocabulary.gives_back import RENEW_S

RISE_S: Final = 10.0
AGAIN_S: Final = 10.0
SETTLE_S: Final = 3.0
"""After a deadline: containers end with the NodeManager's next heartbeats."""

NOTE_RATIO: Final = 0.1
"""By so much another amount differs before the node is told."""

LEAST_GRACE_MS: Final = 1000
MOST_GRACE_MS: Final = 2**31 - 1
MOST_MIB: Final = 2**31 - 1
"""The ResourceManager reads an int, and makes a negative number of what is more."""


class Size(Struct, frozen=True):
    """MiB and virtual cores, each of which is one core here; whole numbers, 0 or more."""

    mib: int = 0
    vcores: int = 0

    def most(self, other: "Size") -> "Size":
        """Of each."""
        return Size(max(self.mib, other.mib), max(self.vcores, other.vcores))


class Lent(Struct, frozen=True):
    """Bytes and thousandths of a core."""

    bytes: int = 0
    millicores: int = 0


class Seen(Struct, frozen=True):
    """What the ResourceManager says of a node."""

    size: Size
    used: Size


class Send(Struct, frozen=True):
    size: Size
    grace_ms: int


def wanted(lent: Lent, pods: Lent, share_ratio: float) -> Size:
    """`share_ratio`: YARN's part of what is lent, 0 to 1; the rest is Kubernetes' part, also while no pod is there."""
    left_bytes = _left(lent.bytes, pods.bytes, share_ratio)
    left_millicores = _left(lent.millicores, pods.millicores, share_ratio)
    return Size(min(left_bytes >> 20, MOST_MIB), min(left_millicores // 1000, MOST_MIB))


def _left(lent: int, pods: int, share_ratio: float) -> int:
    return max(min(lent - pods, int(lent * share_ratio)), 0)


class NodeLaw:
    """Of one node. Times are of one clock that only grows."""

    def __init__(self) -> None:
        self._seen: Seen | None = None
        self._sent: Size | None = None
        """What was sent last, if the ResourceManager need not have it yet."""
        self._last: Size | None = None
        """What was sent last."""
        self._sent_s = float("-inf")
        self._rose_s = float("-inf")
        self._deadline_s: float | None = None
        """When containers are killed; None: none is to be, or nobody knows when."""
        self.overdue = False
        """Whether YARN has kept more than its size beyond grace and `SETTLE_S`."""

    @property
    def size(self) -> Size | None:
        """What the ResourceManager said last; None: nothing yet."""
        return self._seen.size if self._seen is not None else None

    @property
    def used(self) -> Size | None:
        return self._seen.used if self._seen is not None else None

    @property
    def held(self) -> Size | None:
        """None: nothing is known of it yet."""
        if self._seen is None:
            return None
        size = self._seen.size.most(self._sent or Size())
        return Size(size.mib if self.overdue else max(size.mib, self._seen.used.mib), size.vcores)

    @property
    def left_mib(self) -> int:
        """What YARN is still to give back of what it was sent; 0 where it has not in time."""
        if self._seen is None or self.overdue:
            return 0
        size = self._seen.size if self._sent is None else self._sent
        return max(self._seen.used.mib - min(size.mib, self._seen.size.mib), 0)

    @property
    def is_giving_back(self) -> bool:
        """Whether YARN has told containers to end."""
        return self._deadline_s is not None

    def see(self, seen: Seen, now_s: float) -> None:
        """The ResourceManager says so, now."""
        self._seen = seen
        if seen.size == self._sent:
            self._sent = None
        if seen.used.mib <= seen.size.mib:
            self.overdue = False
            if self._sent is None:
                self._deadline_s = None
        elif self._deadline_s is not None and now_s > self._deadline_s + SETTLE_S:
            self.overdue, self._deadline_s = True, None

    def step(self, size: Size, grace_s: float, now_s: float) -> Send | None:
        """What is to be sent now, that it has this size; it counts as sent."""
        seen = self._seen
        if seen is None or (self._last is not None and self._waits_for_answer(seen, now_s)):
            return None
        new = Size(self._memory(size.mib, seen, now_s), self._cpu(size.vcores, seen, now_s))
        if new == seen.size:
            return None
        if new.mib > seen.size.mib or new.vcores > seen.size.vcores:
            self._rose_s = now_s
        if seen.used.mib <= seen.size.mib or new.mib >= seen.used.mib or self._deadline_s is None:
            self._deadline_s = now_s + grace_s
        self._sent = self._last = new
        self._sent_s = now_s
        grace_ms = _milliseconds(self._deadline_s - now_s)
        self._deadline_s = now_s + grace_ms / 1000
        return Send(new, grace_ms)

    def _waits_for_answer(self, seen: Seen, now_s: float) -> bool:
        """What was sent has not shown, or shows no more: there is no hurry to send anything again."""
        return seen.size != self._last and now_s - self._sent_s < AGAIN_S

    def _memory(self, wanted_mib: int, seen: Seen, now_s: float) -> int:
        size_mib = seen.size.mib
        over = seen.used.mib > size_mib
        if wanted_mib > size_mib:
            return wanted_mib if over or self._may_rise(now_s) else size_mib
        if over and self._deadline_s is not None:
            return size_mib
        return size_mib + 1 if over and wanted_mib == size_mib else wanted_mib

    def _cpu(self, wanted_vcores: int, seen: Seen, now_s: float) -> int:
        if wanted_vcores > seen.size.vcores and not self._may_rise(now_s):
            return seen.size.vcores
        return wanted_vcores

    def _may_rise(self, now_s: float) -> bool:
        return now_s - self._rose_s >= RISE_S


def _milliseconds(seconds: float) -> int:
    return max(LEAST_GRACE_MS, min(int(seconds * 1000), MOST_GRACE_MS))


class NodeNote:
    """When the node is told what its box may have to wait for, and what. Times as for `NodeLaw`.

    After less was sent, it is told what is left to be given back, then 0 for `RISE_S`, and then what YARN has.
    """

    def __init__(self) -> None:
        self._told: int | None = None
        self._told_s = float("-inf")
        self._shrunk_s = float("-inf")
        self._owes_0 = False

    def shrinks(self, now_s: float) -> None:
        """The ResourceManager was sent less memory, or has containers to end for that."""
        self._shrunk_s = now_s
        self._owes_0 = True

    def due(self, law: NodeLaw, now_s: float) -> int | None:
        """The bytes that the node is to be told now; None: nothing, for now."""
        size, told, left = law.size, self._told, law.left_mib << 20
        if size is None:
            return None
        if left:
            self.shrinks(now_s)
        found = left if self._owes_0 or now_s - self._shrunk_s < RISE_S else size.mib << 20
        if told is None or now_s - self._told_s >= RENEW_S:
            return found
        grew, fell = found > told * (1 + NOTE_RATIO), found < told * (1 - NOTE_RATIO)
        return found if found != told and (grew or fell or not found) else None

    def told(self, size_bytes: int, now_s: float) -> None:
        self._told, self._told_s = size_bytes, now_s
        self._owes_0 = self._owes_0 and size_bytes > 0
