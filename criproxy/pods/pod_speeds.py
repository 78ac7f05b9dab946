"""Measures how much of the CPU that offline pods want they get, and says who starves; the law is `control.pod_speed`.

What a pod asked for of what nodes lend is in its annotations, and only such pods are looked at; what it used and waited
for is read by `PodUseWatch`. Three things follow:

    counters   the time of pods that want CPU, and their time below 0.9 and 0.5 of what they asked for
    feedback   how much of what the hour's forecast leaves is published (`control.publication`)
    starved    why a pod is to go, so that the rest get more: the ladder has it go, within its budget

**Nobody is evicted on a pod's own word.** Where no webhook writes it, a pod's author may write any request into the
annotation. But no less is published than the scheduler has promised, and no more where pods starve. So if pods say
together that they asked for more than is published, one of them lies, and none goes.

**What is taken from pods on purpose is only counted.** While the ladder has their CPU, the schedule is off, or criproxy
is held off the box, what they get says nothing of what was published, and no pod's end would give the rest more.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct, field

from criproxy.control.pod_speed import (
    FULL_RATIO,
    MOST_SLOW_RATIO,
    SLOW_RATIOS,
    STARVED_RATIO,
    Feedback,
    PodSpeed,
    Starvation,
    below,
    pod_speed,
    restored,
)
from criproxy.model import Sandbox
from criproxy.model.shown import Counter, Gauge, listed
from criproxy.model.signals import PodCpuTimes
from criproxy.pods.inventory import asked_now
from criproxy.pods.part import NodeSettings, Part, Ports
from criproxy.pods.shared import PodsShared
from criproxy.pods.stopping import ON_STARVED

_LONGEST_S: Final = 60.0
"""What a look counts for at most: a machine may have been suspended."""


class PodSpeeds(Part, Struct, eq=False):
    """`speeds`: by the pods' paths, as of the last look. `feedback` and what is shown are for any thread."""

    NAME = "measuring how much CPU offline pods get"
    EVERY_S = 10.0
    GAUGES = (
        Gauge(
            "publication_factor",
            "How many times what online's forecast for the hour leaves of the CPUs is published, where the box is open",
            lambda part: part.feedback.factor,
        ),
        Gauge(
            "starved_pods",
            "Offline pods that got less than half of the CPU that they wanted for five minutes",
            lambda part: len(part.starved),
        ),
    )
    COUNTERS = (
        Counter("pod_seconds", "Seconds of offline pods that wanted CPU, of what nodes lend"),
        Counter(
            "slow_pod_seconds",
            "Those below a share of the CPU that they asked for, and wanted",
            {"below": tuple(f"{ratio:g}" for ratio in SLOW_RATIOS)},
        ),
    )

    shared: PodsShared
    feedback: Feedback = field(default_factory=lambda: Feedback(STARVED_RATIO))
    speeds: Mapping[str, PodSpeed] = {}
    _last: tuple[float, Mapping[str, PodCpuTimes]] = (0.0, {})
    _starvation: Starvation = field(default_factory=Starvation)
    _reported: frozenset[str] = frozenset()
    _off: bool = False
    """Whether the schedule is off, or criproxy is held off the box."""
    _ladder_holds: bool = False

    @classmethod
    def made(cls, ports: Ports) -> "PodSpeeds":
        return cls(ports.shared)

    def configure(self, now: NodeSettings) -> None:
        self.feedback = restored(self.feedback, now.config.kubernetes.speed_ratio)
        self._off = now.stage.off or bool(now.held_off)

    def cease(self) -> None:
        self._forget()

    async def look(self) -> None:
        inventory, readings = self.shared.inventory, self.shared.readings
        pods = {one.placement: one for one in inventory.running_pods if one.placement and one.placement in readings.of}
        asked = {path: asked_now(one, inventory.containers_of(one.id)).cores or 0.0 for path, one in pods.items()}
        read = {path: readings.of[path].cpu for path, cores in asked.items() if cores}
        now_s, (last_s, before) = readings.at_s, self._last
        if not read:
            self._forget()
        if not read or now_s <= last_s:
            return
        self._last, seconds = (now_s, read), now_s - last_s
        if not before:
            return
        found = {
            path: pod_speed(asked[path], before[path], now, seconds) for path, now in read.items() if path in before
        }
        self.speeds = {path: one for path, one in found.items() if one is not None}
        counted_s = min(seconds, _LONGEST_S)
        self._count(counted_s)
        if self._off or self._ladder_holds:
            self._starvation.forget()
        else:
            self._adjust(counted_s)
            self._starvation.look(now_s, self.speeds, self.feedback.speed_ratio)
        self._report({path: pods[path] for path in self.starved})

    def _count(self, seconds: float) -> None:
        counted = sum(one.counts for one in self.speeds.values())
        if not counted:
            return
        self.shared.counters.count("pod_seconds", by=counted * seconds)
        for ratio in SLOW_RATIOS:
            self.shared.counters.count(
                "slow_pod_seconds", f"{ratio:g}", by=counted * seconds * below(self.speeds, ratio)
            )

    def _adjust(self, seconds: float) -> None:
        if any(one.counts for one in self.speeds.values()):
            slow = below(self.speeds, self.feedback.speed_ratio)
            self.feedback = self.feedback.adjusted(slow, seconds / 3600.0)

    def _report(self, starved: Mapping[str, Sandbox]) -> None:
        """Each to the log once, until it gets more."""
        for path, one in starved.items():
            if path not in self._reported:
                got = round(self.starved[path], 2)
                self.shared.log.warning("pod_starved", pod=str(one.pod), pod_uid=one.pod.uid, got_ratio=got)
        self._reported = frozenset(starved)

    def _forget(self) -> None:
        self.speeds, self._last = {}, (0.0, {})
        self._starvation.forget()

    # --- what others ask of it --------------------------------------------------------------------------------------

    @property
    def starved(self) -> Mapping[str, float]:
        """The pods (paths) that starve, and what each got of the CPU that it wanted."""
        return self._starvation.starved

    def why_one_is_to_go(self) -> str:
        """Why the youngest pod is to go, in words; "": none is."""
        evicts = self.shared.evicts
        if not self._starvation.one_must_go or evicts is None or ON_STARVED not in self.shared.holds.stops_by:
            return ""
        if sum(one.asked for one in self.speeds.values()) > (evicts.promised_cores() or 0.0):
            return ""
        counted = [one for one in self.speeds.values() if one.counts]
        got, wanted = sum(one.got for one in counted), sum(one.wanted for one in counted)
        return f"{len(counted)} offline pods want {wanted:.2f} cores, get {got:.2f}, and starved for five minutes"

    def ladder_holds_cpu(self, holds: bool) -> None:
        """Whether the ladder leaves the box less CPU than the policy gives, from now on."""
        self._ladder_holds = holds
        if holds:
            self._starvation.forget()

    def one_was_to_go(self) -> None:
        """Whether or not it has gone, the next one waits until it is known how the rest fare."""
        self._starvation.one_went()

    def restore(self, saved: Feedback | None) -> None:
        """Go on where a process before this one stood, if it says so and that makes sense."""
        self.feedback = restored(saved, self.feedback.speed_ratio)

    def section(self) -> Mapping[str, Any]:
        return {"publication_factor": round(self.feedback.factor, 3), "starved": tuple(self.starved)}

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.starved:
            yield f"{len(self.starved)} offline pods get too little of the CPU that they want (kubernetes.on_starved)"

    def rows(self) -> Iterator[tuple[str, ...]]:
        counted = {path: one for path, one in self.speeds.items() if one.counts}
        if not counted:
            return
        slow = {ratio: round(below(counted, ratio) * len(counted)) for ratio in SLOW_RATIOS}
        words = ", ".join(f"{count} below {ratio:.0%} of what they asked for" for ratio, count in slow.items())
        lines = [f"{path.rpartition('/')[2]}: {got:.0%} in five minutes" for path, got in self.starved.items()]
        yield "pods' speed", f"{len(counted)} offline pods want CPU, {words}", *listed(lines)

    def why(self) -> str:
        """What pods get of the CPU that is published, and how that moves what is published; "": none wants CPU."""
        counted = [one for one in self.speeds.values() if one.counts]
        if not counted:
            return ""
        ratio = self.feedback.speed_ratio
        slow = ", ".join(
            f"{below(self.speeds, one):.0%} below {one:.0%}" for one in sorted({FULL_RATIO, ratio}, reverse=True)
        )
        return "; ".join(
            (
                f"of {len(counted)} that want CPU, {slow} of what they asked for",
                f"the aim is at most {MOST_SLOW_RATIO:.0%} of their time below {ratio:.0%}",
                f"so {self.feedback.factor:.2f} x what the hour's forecast leaves is published while the box is open",
                f"starved for five minutes: {len(self.starved)}",
            )
        )

    def of_pod(self, sandbox: Sandbox) -> Mapping[str, Any]:
        """`speed_ratio`: how much of the CPU that it wanted it got since the last look; None: it wants none."""
        one = self.speeds.get(sandbox.placement or "")
        return {"speed_ratio": round(one.ratio, 2) if one is not None and one.counts else None}
