"""What holds at a moment, by config, schedule and command line, and what each part is set to by it. Pure."""

from typing import Any, Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from criproxy.cgroup.box import BoxSettings
from criproxy.cgroup.disk_keepers import Keeper
from criproxy.cgroup.resctrl import CacheLimits
from criproxy.config import Config
from criproxy.config.ladder import ladder_settings
from criproxy.config.settings import Cpu, Memory, WindowTable
from criproxy.control.guard import GuardSettings
from criproxy.control.guardlaw import GuardLaw
from criproxy.control.loop import LoopSettings
from criproxy.control.policy import DynamicSettings, PolicySettings, ResourceSettings, StaticSettings, safe_limits
from criproxy.control.resources import RESOURCES, SHARES, Resource
from criproxy.control.schedule import SchedulePhase, WeekSchedule, WindowMode, clock_in_words, phase_at, phase_in_words
from criproxy.control.series import PredictorSettings
from criproxy.hooks import offline_chain
from criproxy.hooks.offline import OfflineRules
from criproxy.model import UNLIMITED
from criproxy.model.modes import LimitsUse, Mode, Modes
from criproxy.pods.admission import AdmissionSettings
from criproxy.pods.disk_bounds import DisksUse
from criproxy.pods.interference import InterferenceSettings
from criproxy.pods.memory_relief import ReliefSettings
from criproxy.pods.placing import PlacingSettings
from criproxy.pods.reconciler import ReconcilerSettings
from criproxy.pods.service_checks import ServiceChecksSettings
from criproxy.pods.stopping import ON_HARM, ON_OVER_LIMIT, ON_RUNTIME_OVERLOAD, ON_UNBOUNDED

_UNKNOWN: Final = "the config has errors: never more than the box had at the start"
_HORIZON_S: Final = 60.0
_HORIZON_TICKS: Final = 3
_HOLD_TICKS: Final = 2


class Stage(Struct, frozen=True):
    """`words`: what holds and what comes next ("": there is no schedule).

    `closed`: why no new offline pod is let in, "" when they are. `drain`: the pods that run are to be stopped.
    """

    policy: PolicySettings
    words: str = ""
    closed: str = ""
    drain: bool = False


class Timetable:
    """The stages of one config. A phase is kept while it holds, so that asking each second costs nothing.

    Raises KeyError, ValueError or OSError as `config.schedule.zone` does.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._schedule: WeekSchedule | None = None
        """None: the policy is not a schedule."""
        if config.control.policy == "schedule":
            table = config.schedule
            self._schedule = WeekSchedule(tuple(one.window for one in table.windows), table.outside, table.zone)
        self._phase: SchedulePhase | None = None

    def stage(self, wall_s: float) -> Stage:
        """`wall_s`: UTC, and may jump."""
        if self._schedule is None:
            return Stage(policy(self._config))
        if self._phase is None or not self._phase.holds_at(wall_s):
            self._phase = phase_at(self._schedule, wall_s)
        phase = self._phase
        words = phase_in_words(self._schedule, phase)
        window = None if phase.window is None else self._config.schedule.windows[phase.window]
        return Stage(
            policy=policy(self._config, phase.mode, window, words),
            words=words,
            closed=self._closed(phase, wall_s),
            drain=phase.mode == "off" and self._config.schedule.on_close == "evict",
        )

    def _closed(self, phase: SchedulePhase, wall_s: float) -> str:
        assert self._schedule is not None
        if phase.mode == "off":
            opens = "" if phase.opens_s is None else f" until {clock_in_words(self._schedule, phase.opens_s)}"
            return f"the schedule is off{opens}"
        grace_s = self._config.schedule.grace_s
        if phase.closes_s is None or wall_s < phase.closes_s - grace_s:
            return ""
        return f"the schedule turns off at {clock_in_words(self._schedule, phase.closes_s)}, within {grace_s:g} s"


class Configurable(Protocol):
    """A part whose settings may change at any time."""

    def configure(self, settings: Any, /) -> None: ...


class PartSettings(Struct, frozen=True):
    """What holds now; a method per part returns its settings. `pass_through`: the config had errors at the start.

    `held_off`: who holds criproxy off the box and why, in words; "": nobody does.

    Limits that the last process has left in the kernel may be those of a night. So in a pass-through they are only
    lowered, to what the dynamic policy at its defaults says.
    """

    config: Config
    stage: Stage
    pass_through: bool
    dry_run: bool
    held_off: str = ""

    @property
    def modes(self) -> Modes:
        """Those that the config, the schedule and the command line bring about."""
        why = {
            Mode.DISABLED: not self.config.colocation.enabled and not self.pass_through,
            Mode.DRY_RUN: self.dry_run,
            Mode.PASS_THROUGH: self.pass_through,
            Mode.CLOSED: self.stage.closed,
            Mode.HELD_OFF: self.held_off,
        }
        return Modes({mode: reason if isinstance(reason, str) else "" for mode, reason in why.items() if reason})

    def admission(self) -> AdmissionSettings:
        modes, rules = self.modes, self.config.colocation.offline_rules()
        closed = self.held_off or self.stage.closed
        return AdmissionSettings(modes.judges, rules, Mode.DRY_RUN in modes, closed)

    def placing(self, *, child_quota: bool) -> PlacingSettings:
        return PlacingSettings(self.admission(), offline_chain(self.config.hooks(child_quota=child_quota)))

    def box(self) -> BoxSettings:
        shares = {name: getattr(self.config, name).max_ratio for name in SHARES}
        return BoxSettings(
            safe_limits(policy(self.config)),
            shares,
            only_lower=self.pass_through,
            hands_off=bool(self.held_off),
            whole_cores=self.config.cpuset.whole_cores,
            tiers=self.config.colocation.tiers,
        )

    def loop(self) -> LoopSettings:
        limits, law = self.modes.limits, self.stage.policy
        if self.pass_through:
            law = policy(Config(), "dynamic", words=_UNKNOWN)
        applied = limits in (LimitsUse.WRITTEN, LimitsUse.LOWERED)
        return LoopSettings(
            law,
            predictor(self.config),
            self.config.control.interval_s,
            dry_run=not applied,
            cpu_by_evidence=self.config.cpu.bound == "evidence" and self.modes.writes,
        )

    def guard(self) -> GuardSettings:
        config, interval_s = self.config, self.config.guard.interval_ms / 1000
        if not (config.guard.enabled and self.modes.writes):
            return GuardSettings(None, interval_s)
        # The first tick after a squeeze has seen only a part of the step.
        hold_s = max(config.guard.hold_s, _HOLD_TICKS * config.control.interval_s)
        law = GuardLaw(config.cpu.min_cores, config.cpu.watermark_ratio, config.cpu.reserve_cores, hold_s)
        return GuardSettings(law, interval_s)

    def interference(self) -> InterferenceSettings:
        config = self.config.interference
        return InterferenceSettings(
            ladder_settings(config), self.relieves, config.enabled and not self.held_off, self._disks(), config.cpi
        )

    def service_checks(self) -> ServiceChecksSettings:
        experiments = ((one.trial_s, one.settle_s) for one in ladder_settings(self.config.interference).resources)
        measured_s = min(trial_s - settle_s for trial_s, settle_s in experiments if trial_s is not None)
        return ServiceChecksSettings(self.modes.writes, measured_s)

    def _disks(self) -> DisksUse:
        limits = self.modes.limits
        if limits is LimitsUse.WRITTEN and self.config.interference.enabled:
            return DisksUse.HELD
        return DisksUse.LIFTED if limits is LimitsUse.WRITTEN or self._lifts else DisksUse.LEFT

    @property
    def _lifts(self) -> bool:
        """Colocation is off, and what runs stays. What is to be stopped is bounded until it has gone."""
        return self.modes.limits is LimitsUse.LIFTED and self.config.colocation.on_disable == "release"

    def cache(self) -> CacheLimits | None:
        """None: what is in force is not ours to change."""
        if self._lifts:
            return CacheLimits()
        cache = self.config.cache
        return CacheLimits(cache.llc_max_ratio, cache.bandwidth_max_ratio) if self.modes.writes else None

    def cpu_pinning(self) -> bool | None:
        """None: what is in force is not ours to change."""
        if self._lifts:
            return False
        return self.config.cpuset.pin_pods if self.modes.writes else None

    def disk_keeper(self) -> Keeper | None:
        """None: what is in force is not ours to change. Where colocation is off, nobody looks after it any more."""
        if self.modes.limits is LimitsUse.LIFTED:
            return "leave"
        return self.config.io.weight if self.modes.writes else None

    def proactive_reclaim(self) -> bool:
        return self.config.memory.proactive_reclaim and self.modes.writes

    def unbounded(self) -> OfflineRules | None:
        return self.config.colocation.offline_rules() if self.relieves else None

    def stops_by(self) -> frozenset[str]:
        """The settings by which single pods are stopped; none while the box is not ours."""
        colocation = self.config.colocation
        does = {
            ON_UNBOUNDED: colocation.on_unbounded,
            ON_RUNTIME_OVERLOAD: colocation.on_runtime_overload,
            ON_OVER_LIMIT: self.config.memory.on_over_limit,
            ON_HARM: self.config.interference.on_harm,
        }
        asked = frozenset(setting for setting, what in does.items() if what == "evict")
        if self.modes.writes:
            return asked
        return asked & {ON_OVER_LIMIT} if self.relieves else frozenset()

    @property
    def relieves(self) -> bool:
        """Whether pods are stopped before kubelet evicts online ones: also while criproxy is held off the box."""
        return replace(self, held_off="").modes.writes

    def relief(self) -> ReliefSettings:
        return ReliefSettings(self.relieves, self.config.memory.min_bytes)

    def reconciler(self) -> ReconcilerSettings:
        limits = self.modes.limits
        adopt = Mode.DRY_RUN not in self.modes
        if self.modes.writes and self.stage.drain:
            return ReconcilerSettings("evict", adopt, "the schedule is off")
        return ReconcilerSettings(self.config.colocation.on_disable if limits is LimitsUse.LIFTED else None, adopt)


def policy(
    config: Config, mode: WindowMode | None = None, window: WindowTable | None = None, words: str = ""
) -> PolicySettings:
    """What holds in a `window` of the schedule (None: outside of all), by its `mode`; `words` describe both.

    Without a mode, what holds without a schedule; with one, what is safe until it has been asked.
    """
    mode = mode or ("static" if config.control.policy == "static" else "dynamic")
    return PolicySettings({name: _resource(config, row, mode, window) for name, row in RESOURCES.items()}, words)


def predictor(config: Config) -> PredictorSettings:
    control = config.control
    return PredictorSettings(
        kind=control.predictor,
        half_life_s=control.half_life_s,
        percentile_ratio=control.percentile,
        horizon_s=max(_HORIZON_S, _HORIZON_TICKS * control.interval_s),
    )


def _resource(config: Config, row: Resource, mode: WindowMode, window: WindowTable | None) -> ResourceSettings:
    section = getattr(config, row.name)
    static: float | None = getattr(window, row.unit, None) or getattr(section, f"static_{row.unit}")
    if row.sampling is None:
        return StaticSettings(UNLIMITED if static is None else static)
    law = _law(config, section, row.unit)
    if mode == "off":
        return StaticSettings(law.floor, law.floor, law.reserve, "the floor, as the schedule is off")
    if mode == "static" and static is not None:
        return StaticSettings(static, min(law.floor, static), law.reserve)
    return law


def _law(config: Config, section: Cpu | Memory, unit: str) -> DynamicSettings:
    control = config.control
    return DynamicSettings(
        floor=getattr(section, f"min_{unit}"),
        watermark_ratio=section.watermark_ratio,
        ceiling=getattr(section, f"max_{unit}"),
        reserve=getattr(section, f"reserve_{unit}"),
        raise_threshold_ratio=control.raise_threshold_ratio,
        raise_after_s=control.raise_after_s,
        max_raise_ratio=control.max_raise_ratio,
    )
