"""Measures what each offline pod uses and asks for, and says which pods lie about their size (`control.pod_size`).

All pods are read in one pass, in pieces: the control loop's own reading waits for one piece at most. A pass is taken
each 5 s, or so much later that all of them together cost two thousandths of a CPU. What a pod asks for is what its
annotations say of what nodes lend, and else what kubelet has set on its own cgroup of it; that is read each minute.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any, Final

from msgspec import Struct

from criproxy.cgroup.box import Box
from criproxy.cgroup.driver import CgroupDriver
from criproxy.cgroup.naming import PodParent, parse_placement
from criproxy.cgroup.pod_use import PodAsks, PodCounters, pod_asks, pod_counters
from criproxy.concurrency.clock import Clock
from criproxy.control.pod_size import Seen, Size, SizeState, step
from criproxy.control.pod_speed import waiting_ratio
from criproxy.control.resources import RESOURCES
from criproxy.hooks.batch import of_pod as asked_by_pod
from criproxy.model import CPU, MEMORY, PodRef, Sandbox
from criproxy.model.shown import Gauge, listed
from criproxy.pods.inventory import asked_now
from criproxy.pods.part import Part, Ports
from criproxy.pods.shared import PodsShared

AT_ONCE: Final = 25
"""So many pods are read in one piece."""

CPU_SHARE: Final = 0.002
"""What all passes together may cost, of one CPU."""

ASKS_EVERY_S: Final = 60.0
"""From one look at what kubelet has set to the next: it may resize a pod."""


class PodUse(Struct, frozen=True):
    """One pod, as of the last pass. Means are since the pass before; None: not known yet, or not at all.

    `cpu_waiting_ratio`: the share of time in which a thread of it has waited for CPU while it could have run.
    `memory_bytes` is the working set. What it asks for is None where it asks for nothing; of memory, its limit counts.
    """

    cpu_cores: float | None = None
    cpu_waiting_ratio: float | None = None
    memory_bytes: int | None = None
    asks: PodAsks = PodAsks()

    def both(self) -> Iterator[tuple[str, float | None, float | None]]:
        """Of each resource: its name, the use, and the request."""
        yield CPU, self.cpu_cores, self.asks.cores
        yield MEMORY, self.memory_bytes, self.asks.memory_bytes


class SizeFinding(PodRef, frozen=True):
    """A pod that has lied about its size for an hour or longer: what it used last, in the mean of 5 minutes, and what
    it asks for, in the resource's unit.
    """

    resource: str
    size: str
    used: float
    asked: float


class PodUseWatch(Part, Struct):
    """`uses`: by sandbox id, of the pods of the last pass; for any thread, and replaced as a whole."""

    NAME = "measuring what offline pods use"
    EVERY_S = FIRST_S = 5.0
    SLACK_S = 2.0
    GAUGES = (
        Gauge(
            "missized_pods",
            "Offline pods that have used more than 3 x, or less than a third, of what they ask for, for an hour",
            lambda part: part.count(),
            "size",
        ),
    )

    shared: PodsShared
    box: Box
    uses: Mapping[str, PodUse] = {}
    lies: tuple[SizeFinding, ...] = ()
    _tiers: bool = False
    _began_s: Mapping[str, float] = {}
    """Since when each is there (UTC), by sandbox id."""
    _asks: Mapping[str, PodAsks] = {}
    _asks_s: float = -ASKS_EVERY_S
    _sizes: Mapping[tuple[str, str], SizeState] = {}
    """By sandbox id and resource."""
    _told: frozenset[tuple[str, str, Size]] = frozenset()
    _cost_s: float = 0.0
    """CPU time of the last pass."""

    @classmethod
    def made(cls, ports: Ports) -> "PodUseWatch":
        return cls(ports.shared, ports.box)

    @property
    def pause_s(self) -> float:
        return max(self.EVERY_S, self._cost_s / CPU_SHARE)

    async def look(self) -> None:
        shared, self._cost_s = self.shared, 0.0
        pods = {one.placement: one for one in shared.inventory.running_pods if one.placement}
        self._tiers = bool(pods) and self.box.state().tiers
        created_s = {one.id: one.created_s for one in shared.inventory.marked} if pods else {}
        began_s, wall_s = self._began_s, shared.clock.wall_s()
        self._began_s = {one.id: created_s.get(one.id) or began_s.get(one.id, wall_s) for one in pods.values()}
        asks = await self._asks_of(pods)
        counters = await self._read(pods)
        now_s = shared.clock.monotonic_s()
        readings = shared.readings
        before_s, before = readings.at_s, readings.of
        readings.at_s, readings.of = now_s, counters
        seconds = now_s - before_s if before else 0.0
        self.uses = {
            pods[path].id: _use(before.get(path), after, seconds, asks[path]) for path, after in counters.items()
        }
        self._judge({one.id: one for one in pods.values()}, now_s, seconds)

    def cease(self) -> None:
        """Another criproxy looks after the pods meanwhile, so that an hour on end begins anew."""
        self.shared.readings.of, self._sizes = {}, {}

    async def _read(self, pods: Collection[str]) -> dict[str, PodCounters]:
        paths, found = tuple(pods), dict[str, PodCounters]()
        for first in range(0, len(paths), AT_ONCE):
            read = partial(_timed, self.shared.clock, paths[first : first + AT_ONCE])
            counters, cost_s = await self.box.reads("read what pods use", read) or ({}, 0.0)
            found |= counters
            self._cost_s += cost_s
        return found

    async def _asks_of(self, pods: Mapping[str, Sandbox]) -> Mapping[str, PodAsks]:
        """What they ask for, by path."""
        now_s = self.shared.clock.monotonic_s()
        if now_s - self._asks_s >= ASKS_EVERY_S:
            self._asks, self._asks_s = {}, now_s
        known = {path: asks for path, asks in self._asks.items() if path in pods}
        unknown: list[PodParent] = [parse_placement(path) for path in pods if path not in known]
        for first in range(0, len(unknown), AT_ONCE):
            piece = unknown[first : first + AT_ONCE]
            read = partial(_asks, piece)
            held = await self.box.reads("read what pods ask for", read) or {}
            for place in piece:
                path = place.in_box
                known[path] = self._asked(pods[path], held.get(path, PodAsks()))
        self._asks = known
        return known

    def _asked(self, sandbox: Sandbox, by_kubelet: PodAsks) -> PodAsks:
        """What the annotations say goes before what kubelet knows: where they do, kubelet knows of no request."""
        cores = asked_now(sandbox, self.shared.inventory.containers_of(sandbox.id)).cores
        memory_bytes = asked_by_pod(sandbox.containers).memory_bytes
        return PodAsks(cores or by_kubelet.cores, by_kubelet.memory_bytes or memory_bytes or None)

    # --- their sizes ------------------------------------------------------------------------------------------------

    def _judge(self, pods: Mapping[str, Sandbox], now_s: float, seconds: float) -> None:
        sizes = dict[tuple[str, str], SizeState]()
        if seconds > 0.0:
            for id, use in self.uses.items():
                for name, used, asked in use.both():
                    if used is None:
                        continue
                    seen = Seen(now_s, seconds, used, asked, use.cpu_waiting_ratio)
                    if (after := step(self._sizes.get((id, name)), seen)) is not None:
                        sizes[id, name] = after
            self._sizes = sizes
        self._tell(pods)

    def _tell(self, pods: Mapping[str, Sandbox]) -> None:
        """Each pod, resource and direction is logged once."""
        lies, told = [], {key for key in self._told if key[0] in pods}
        for (id, name), state in self._sizes.items():
            size = state.verdict()
            if size is Size.FITS or id not in pods:
                continue
            pod = pods[id].pod
            lies.append(SizeFinding(pod.uid, pod.namespace, pod.name, name, size.value, state.mean, state.asked))
            if (id, name, size) not in told:
                told.add((id, name, size))
                words = RESOURCES[name].words
                asks = {"resource": name, "used": words(state.mean), "asked": words(state.asked)}
                if size is Size.TOO_SMALL:
                    self.shared.log.info("pod_asks_for_too_little", pod=str(pod), pod_uid=pod.uid, **asks)
                else:
                    self.shared.log.info("pod_asks_for_too_much", pod=str(pod), pod_uid=pod.uid, **asks)
        self.lies, self._told = tuple(lies), frozenset(told)

    # --- what it shows ----------------------------------------------------------------------------------------------

    def count(self) -> Mapping[str, float]:
        """How many pods lie, by how."""
        found = {size: {one.uid for one in self.lies if one.size == size.value} for size in Size}
        return {"too_small": len(found[Size.TOO_SMALL]), "too_large": len(found[Size.TOO_LARGE])}

    def section(self) -> Mapping[str, Any]:
        return {"missized": self.lies}

    def of_pod(self, sandbox: Sandbox) -> Mapping[str, Any]:
        use, began_s = self.uses.get(sandbox.id, PodUse()), self._began_s.get(sandbox.id)
        return {
            "cpu_cores": use.cpu_cores,
            "cpu_asked_cores": use.asks.cores,
            "cpu_waiting_ratio": use.cpu_waiting_ratio,
            "memory_bytes": use.memory_bytes,
            "memory_asked_bytes": use.asks.memory_bytes,
            "age_s": None if began_s is None else max(0.0, self.shared.clock.wall_s() - began_s),
            "tier": ("mid" if sandbox.mid else "low") if self._tiers else "",
            "notice_s": sandbox.notice_s,
        }

    def rows(self) -> Iterator[tuple[str, ...]]:
        if self.lies:
            pods = len({one.uid for one in self.lies})
            yield (
                "sizes",
                f"{pods} offline pods have not used what they ask for, for an hour",
                *listed(tuple(_lines(self.lies))),
            )


# --- jobs of the box's reader ----------------------------------------------------------------------------------------


def _timed(clock: Clock, pods: Collection[str], driver: CgroupDriver, _: str) -> tuple[dict[str, PodCounters], float]:
    """What they use, and the CPU time that this took."""
    began_s = clock.thread_cpu_s()
    return pod_counters(driver.files, pods), clock.thread_cpu_s() - began_s


def _asks(places: Collection[PodParent], driver: CgroupDriver, _: str) -> dict[str, PodAsks]:
    return pod_asks(driver, places)


# --- what it means ---------------------------------------------------------------------------------------------------


def _lines(lies: Collection[SizeFinding]) -> Iterator[str]:
    for one in lies:
        row = RESOURCES[one.resource]
        yield f"{one}: of {row.title}, {one.size}: {row.words(one.used)} of {row.words(one.asked)}"


def _use(before: PodCounters | None, after: PodCounters, seconds: float, asks: PodAsks) -> PodUse:
    if before is None or seconds <= 0.0 or after.cpu.used_s < before.cpu.used_s:  # or its cgroup is another one
        return PodUse(memory_bytes=after.memory_bytes, asks=asks)
    cores = (after.cpu.used_s - before.cpu.used_s) / seconds
    return PodUse(cores, waiting_ratio(before.cpu, after.cpu, seconds), after.memory_bytes, asks)
