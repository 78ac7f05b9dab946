"""What holds at a moment: the policy, whether new offline pods are let in, and whether those that run must go. Pure."""

from msgspec import Struct

from criproxy.config import Config
from criproxy.control.policy import PolicySettings
from criproxy.control.schedule import SchedulePhase, clock_in_words, phase_at, phase_in_words
from criproxy.daemon import derive


class Stage(Struct, frozen=True):
    """`words`: what holds and what comes next ("": there is no schedule).

    `closed`: why no new offline pod is let in ("": it is). `drain`: the pods that run are to be stopped.
    """

    policy: PolicySettings
    words: str = ""
    closed: str = ""
    drain: bool = False


class Timetable:
    """The stages of one config. A phase is kept while it holds, so that asking each second costs nothing."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._schedule = derive.schedule(config)
        self._phase: SchedulePhase | None = None

    def stage(self, wall_s: float) -> Stage:
        """`wall_s`: UTC, and may jump."""
        if self._schedule is None:
            return Stage(derive.policy(self._config))
        if self._phase is None or not self._phase.holds_at(wall_s):
            self._phase = phase_at(self._schedule, wall_s)
        phase = self._phase
        words = phase_in_words(self._schedule, phase)
        return Stage(
            policy=derive.window_policy(self._config, phase.window, phase.mode, words),
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
