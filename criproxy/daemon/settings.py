"""What the schedule says at a moment, and what holds by that for all that is no part of the register. Pure."""

from typing import Final

from criproxy.cgroup.box import BoxSettings
from criproxy.config import Config
from criproxy.config.settings import Cpu, Memory, WindowTable
from criproxy.control.guard import GuardSettings
from criproxy.control.guardlaw import GuardLaw
from criproxy.control.loop import LoopSettings
from criproxy.control.policy import DynamicSettings, PolicySettings, ResourceSettings, StaticSettings, safe_limits
from criproxy.control.resources import RESOURCES, SHARES, Resource
from criproxy.control.schedule import SchedulePhase, WeekSchedule, WindowMode, clock_in_words, phase_at, phase_in_words
from criproxy.control.series import PredictorSettings
from criproxy.hooks import offline_chain
from criproxy.model import UNLIMITED
from criproxy.model.modes import LimitsUse, Mode
from criproxy.pods.admission import AdmissionSettings
from criproxy.pods.part import NodeSettings, Stage
from criproxy.pods.placing import PlacingSettings
from criproxy.pods.reconciler import ReconcilerSettings

_UNKNOWN: Final = "the config has errors: never more than the box had at the start"
_HORIZON_S: Final = 60.0
_HORIZON_TICKS: Final = 3
_HOLD_TICKS: Final = 2


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


def admission(now: NodeSettings) -> AdmissionSettings:
    modes, rules = now.modes, now.config.colocation.offline_rules()
    closed = now.held_off or now.stage.closed
    return AdmissionSettings(modes.judges, rules, Mode.DRY_RUN in modes, closed)


def placing(now: NodeSettings, *, child_quota: bool) -> PlacingSettings:
    hooks = now.config.hooks(child_quota=child_quota)
    return PlacingSettings(admission(now), offline_chain(hooks), hooks.hardening)


def box(now: NodeSettings) -> BoxSettings:
    shares = {name: getattr(now.config, name).max_ratio for name in SHARES}
    return BoxSettings(
        safe_limits(policy(now.config)),
        shares,
        only_lower=now.pass_through,
        hands_off=bool(now.held_off),
        whole_cores=now.config.cpuset.whole_cores,
        tiers=now.config.colocation.tiers,
    )


def loop(now: NodeSettings) -> LoopSettings:
    """Limits that the last process has left in the kernel may be those of a night. So in a pass-through they are only
    lowered, to what the dynamic policy at its defaults says.
    """
    limits, law = now.modes.limits, now.stage.policy
    if now.pass_through:
        law = policy(Config(), "dynamic", words=_UNKNOWN)
    applied = limits in (LimitsUse.WRITTEN, LimitsUse.LOWERED)
    return LoopSettings(
        law,
        predictor(now.config),
        now.config.control.interval_s,
        dry_run=not applied,
        cpu_by_evidence=now.config.cpu.bound == "evidence" and now.writes,
    )


def guard(now: NodeSettings) -> GuardSettings:
    config, interval_s = now.config, now.config.guard.interval_ms / 1000
    if not (config.guard.enabled and now.writes):
        return GuardSettings(None, interval_s)
    # The first tick after a squeeze has seen only a part of the step.
    hold_s = max(config.guard.hold_s, _HOLD_TICKS * config.control.interval_s)
    law = GuardLaw(config.cpu.min_cores, config.cpu.watermark_ratio, config.cpu.reserve_cores, hold_s)
    return GuardSettings(law, interval_s)


def reconciler(now: NodeSettings) -> ReconcilerSettings:
    limits = now.modes.limits
    adopt = Mode.DRY_RUN not in now.modes
    if now.writes and now.stage.drain:
        return ReconcilerSettings("evict", adopt, "the schedule is off")
    return ReconcilerSettings(now.config.colocation.on_disable if limits is LimitsUse.LIFTED else None, adopt)


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
