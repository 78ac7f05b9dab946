"""What the schedule says at a moment, and what holds by that for all that is no part of the register. Pure."""

from typing import Final

from criproxy.cgroup.box import BoxSettings
from criproxy.config import Config
from criproxy.control.guardlaw import GuardLaw
from criproxy.control.policy import safe_limits
from criproxy.control.resources import SHARES
from criproxy.control.schedule import SchedulePhase, WeekSchedule, clock_in_words, phase_at, phase_in_words
from criproxy.hooks import offline_chain
from criproxy.model.modes import Mode
from criproxy.pods.admission import AdmissionSettings
from criproxy.pods.part import NodeSettings, Stage
from criproxy.pods.placing import PlacingSettings
from criproxy.pods.policy_settings import policy

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
            off=phase.mode == "off",
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
    hooks = now.config.hooks(child_quota=child_quota, own_folders=now.own_folders)
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


def guard(now: NodeSettings) -> GuardLaw | None:
    """None: the guard is off."""
    config = now.config
    if not (config.guard.enabled and now.writes):
        return None
    # The first tick after a squeeze has seen only a part of the step.
    hold_s = max(config.guard.hold_s, _HOLD_TICKS * config.control.interval_s)
    return GuardLaw(config.cpu.min_cores, config.cpu.watermark_ratio, config.cpu.reserve_cores, hold_s)
