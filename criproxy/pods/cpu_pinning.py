"""Keeps each offline pod with a CPU limit on as many CPUs; the law is `control.cpu_pins`.

A pod's limit is what kubelet has set on its own cgroup of the pod, or else what the pod's annotations say of the
containers that run: of its init containers only until these are over. It is read when the pod is new, when one of its
containers starts, and for `SETTLED_S` after kubelet has resized it, as kubelet may set its own cgroup before or after
it tells the runtime. What nobody has told is found by turns, `AT_ONCE` pods each minute.

What the kernel holds is compared at each look, so that what systemd has reset is put back, and what a process before
this one has pinned is pinned anew, or freed. The first look only measures.

A pod that starts is looked at as soon as its sandbox runs: programs may count their CPUs once, as they start. Such a
look comes too soon after another one to measure anything, so it moves nobody else.

Kubelet's static CPU manager goes first. A pod that it gave CPUs alone is not pinned, and no other is on these. On
cgroup v1 none is pinned beside it: kubelet names the shared pool for each container, and there a container may not have
a CPU that its pod has not. None is, either, while kubelet names CPUs and its file says nothing of it.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any, Final

from msgspec import Struct, field

from criproxy.cgroup.box import Box
from criproxy.cgroup.cpu_use import CpuUse, cpu_use
from criproxy.cgroup.driver import CgroupDriver, all_done
from criproxy.cgroup.naming import PodParent, parse_placement
from criproxy.cgroup.topology import Topology
from criproxy.cgroup.tree import Tree
from criproxy.concurrency.clock import Wake
from criproxy.control.cpu_pins import Pin, PodCpu, step
from criproxy.model import CPU, UNLIMITED, LimitChange, Sandbox
from criproxy.model.cpulist import Cpus, format_cpus
from criproxy.model.shown import Counter, Gauge
from criproxy.pods.cpu_assignments import CpusOfBox
from criproxy.pods.inventory import PodObserver, asked_now
from criproxy.pods.part import NodeSettings, Part, Ports
from criproxy.pods.runtime import Running
from criproxy.pods.shared import PodsShared, Turns

TURN_EVERY_S: Final = 60.0
AT_ONCE: Final = 50
SETTLED_S: Final = 6.0

MEASURES_S: Final = 1.5
"""What was used since the last look says nothing when that is less long ago."""


def pinning_asked(now: NodeSettings) -> bool | None:
    """Whether pods are to be pinned; None: what is in force is not ours to change."""
    if now.lifts:
        return False
    return now.config.cpuset.pin_pods if now.writes else None


class CpuPinning(PodObserver, Part, Struct, eq=False):
    """`enabled`: see `pinning_asked`. `pinned` is for any thread."""

    NAME = "keeping offline pods to CPUs of their own"
    EVERY_S = 3.0
    GAUGES = (
        Gauge("pinned_pods", "Offline pods that stay on some of the CPUs of the box", lambda part: len(part.pinned)),
    )
    COUNTERS = (Counter("pods_moved", "Times that an offline pod was moved to CPUs where it gets more"),)

    shared: PodsShared
    box: Box
    cpus: CpusOfBox
    topology: Topology
    enabled: bool | None = None
    pinned: Mapping[str, Cpus] = {}
    """By the pods' paths."""
    isolated: Cpus = frozenset()
    """Of the box's CPUs: no pod is pinned there. As of the last look at what they do."""
    _pins: dict[str, Pin] = {}
    _limits: dict[str, float] = {}
    """In cores, of all pods (paths) whose limit was read; 0: it has none."""
    _unsettled: dict[str, float] = {}
    """The pods (paths) whose limit is read anew at each look until then (monotonic), and once after it."""
    _turns: Turns = field(default_factory=Turns)
    _turn_s: float = -TURN_EVERY_S
    _last: tuple[float, CpuUse] | None = None
    _idle: Mapping[int, float] = {}
    """For which part of the time each CPU was idle, as of the last look that measured."""
    _wake: Wake = field(default_factory=Wake)
    _free: frozenset[str] = frozenset()
    """The pods (paths) that were found, or made, free of what this process or one before it had pinned."""

    def __post_init__(self) -> None:
        self.shared.inventory.watch(self)

    @classmethod
    def made(cls, ports: Ports) -> "CpuPinning":
        return cls(ports.shared, ports.box, ports.cpus, Topology(Tree(), None))

    def pod_started(self, running: Running) -> None:
        if not running.container:
            self._wake.set()
        self._unsettle(running.sandbox, 0.0)

    def resize_asked(self, sandbox: Sandbox) -> None:
        self._unsettle(sandbox, SETTLED_S)

    def resize_done(self, sandbox: Sandbox) -> None:
        self._unsettle(sandbox, SETTLED_S)

    def _unsettle(self, sandbox: Sandbox, seconds: float) -> None:
        path = sandbox.placement or ""
        self._unsettled[path] = max(self.shared.clock.monotonic_s() + seconds, self._unsettled.get(path, 0.0))

    @property
    def wake(self) -> Wake:
        return self._wake

    def configure(self, now: NodeSettings) -> None:
        self.enabled = pinning_asked(now)

    async def look(self) -> None:
        covers = self.shared.holds.hold_offs.covers
        placed = {one.placement: one for one in self.shared.inventory.running_pods if one.placement}
        self._unsettled = {path: until_s for path, until_s in self._unsettled.items() if path in placed}
        if self.enabled is None or self.box.path is None:
            self._last = None
        elif self.enabled and not self._gives_way:
            await self._choose(placed)
        else:
            self._pins, self._last = {}, None
        self._pins = {path: pin for path, pin in self._pins.items() if path in placed}
        self.pinned = {path: pin.cpus for path, pin in self._pins.items()}
        self._free &= placed.keys()
        if self.enabled is not None:
            ours = {path for path, one in placed.items() if not covers(one.pod)}
            if touched := {path for path in ours if path in self.pinned or path not in self._free}:
                wanted = {path: self.pinned.get(path) for path in touched}
                await self.box.writes("pin pods", lambda driver, _: pin(driver, wanted))
            self._free = frozenset(ours - self.pinned.keys())

    def section(self) -> Mapping[str, Any]:
        """The box's CPUs on which no pod is pinned ("2-3"); "": there is none."""
        return {"isolated_cpus": format_cpus(self.isolated)}

    def rows(self) -> Iterator[tuple[str, ...]]:
        if self.isolated:
            yield "isolated CPUs", f"{format_cpus(self.isolated)}: no pod is pinned there (isolcpus, nohz_full)"

    def of_pod(self, sandbox: Sandbox) -> Mapping[str, Any]:
        """`cpus`: those that the pod stays on ("0-3,8"); "": on all of the box's."""
        return {"cpus": format_cpus(self.pinned.get(sandbox.placement or "", frozenset()))}

    @property
    def _gives_way(self) -> bool:
        if self.cpus.contradicted:
            return True
        return self.box.version == 1 and self.cpus.cpus() is not UNLIMITED

    async def _choose(self, pods: Mapping[str, Sandbox]) -> None:
        now_s = self.shared.clock.monotonic_s()
        limits = await self._limits_of(pods, now_s)
        use = None
        if limits:
            paths, topology = tuple(limits), self.topology
            use = await self.box.reads(
                "read pods' CPU", lambda driver, box: cpu_use(driver.files, box, paths, topology)
            )
        if use is None:
            self._pins, self._last = {}, None
            return
        used: Mapping[str, float] = {}
        if self._last is None or now_s - self._last[0] >= MEASURES_S:
            self._idle, used = _rates(self._last, now_s, use)
            self._last, self.isolated = (now_s, use), use.isolated
        if not self._idle:
            return
        before, cpus, cores, nodes = self._pins, use.cpus - self.cpus.own(), use.cores, use.nodes
        does = {path: PodCpu(limit, used.get(path)) for path, limit in limits.items()}
        idle = self._idle
        # On a large node it takes a tenth of a second or two, for which no call of kubelet's is to wait.
        pins = await self.box.reads(
            "choose pods' CPUs", lambda *_: step(does, cpus, idle, before, now_s, cores=cores, nodes=nodes)
        )
        if pins is None or self._pins is not before:
            return
        self._pins = pins
        both = [(before[path], pin) for path, pin in pins.items() if path in before]
        if moved := sum(was.cpus != pin.cpus and was.limit_cores <= pin.limit_cores for was, pin in both):
            self.shared.counters.count("pods_moved", by=moved)

    async def _limits_of(self, pods: Mapping[str, Sandbox], now_s: float) -> dict[str, float]:
        """The limits in cores, by path, of the pods that have one, and no CPUs of their own."""
        unsettled = frozenset(self._unsettled)
        if now_s - self._turn_s >= TURN_EVERY_S:
            unsettled |= self._turns.next(pods, AT_ONCE)
            self._turn_s = now_s
        known = {path: limit for path, limit in self._limits.items() if path in pods and path not in unsettled}
        unknown: list[PodParent] = [parse_placement(path) for path in pods if path not in known]
        if unknown:
            held = (
                await self.box.reads("read pods' CPU limits", lambda driver, _: kubelets_limits(driver, unknown)) or {}
            )
            for place in unknown:
                known[place.in_box] = held.get(place.in_box, self._asked_cores(pods[place.in_box]))
        self._limits = known
        self._unsettled = {path: until_s for path, until_s in self._unsettled.items() if until_s > now_s}
        exclusive = self.cpus.state.exclusive
        return {path: limit for path, limit in known.items() if limit and pods[path].pod.uid not in exclusive}

    def _asked_cores(self, sandbox: Sandbox) -> float:
        """What the pod's annotations limit it to."""
        asked = asked_now(sandbox, self.shared.inventory.containers_of(sandbox.id))
        return asked.cpu_limit_millicores / 1000


# --- jobs of the box's threads ----------------------------------------------------------------------------------------


def pin(driver: CgroupDriver, pods: Mapping[str, Cpus | None]) -> tuple[LimitChange, ...]:
    """Let each of these pods of the box (paths) run on these of its CPUs alone; None: on all of them.

    A pod that has gone is no error. What failed keeps none of the others from it, and is raised then, as CgroupError.
    """
    return all_done(partial(driver.confine, pod, UNLIMITED if cpus is None else cpus) for pod, cpus in pods.items())


def kubelets_limits(driver: CgroupDriver, places: Collection[PodParent]) -> dict[str, float]:
    """The CPU limits that kubelet has set on its own cgroups of these pods, in cores, of those that have one.

    By their paths in the box. Raises CgroupError.
    """
    held = {place.in_box: _kubelets_limit(driver, place) for place in places}
    return {path: limit for path, limit in held.items() if limit is not None}


def _kubelets_limit(driver: CgroupDriver, place: PodParent) -> float | None:
    """None: there is none, or kubelet has no cgroup of the pod."""
    for path in place.at_kubelet:
        held = driver.read_limit(path, CPU)
        if held is not None:
            return None if held.limit is UNLIMITED else held.limit
    return None


# --- between two looks ------------------------------------------------------------------------------------------------


def _rates(last: tuple[float, CpuUse] | None, now_s: float, now: CpuUse) -> tuple[dict[int, float], dict[str, float]]:
    """For which part of the time each CPU was idle, and how many cores each pod used, since the last look."""
    if last is None or now_s <= last[0]:
        return {}, {}
    seconds, before = now_s - last[0], last[1]
    idle = {cpu: (at - before.idle_s[cpu]) / seconds for cpu, at in now.idle_s.items() if cpu in before.idle_s}
    used = {pod: (at - before.used_s[pod]) / seconds for pod, at in now.used_s.items() if pod in before.used_s}
    return idle, used
