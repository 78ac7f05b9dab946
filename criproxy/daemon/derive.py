"""What the config means to each part. Pure."""

from criproxy.config import Config
from criproxy.config.settings import Cpu, Memory
from criproxy.config.windows import WindowTable
from criproxy.control.guardlaw import GuardSettings
from criproxy.control.policy import DynamicSettings, PolicySettings, ResourceSettings, StaticSettings
from criproxy.control.resources import RESOURCES, Resource
from criproxy.control.schedule import Mode, WeekSchedule
from criproxy.control.series import PredictorSettings
from criproxy.model import UNLIMITED

_HORIZON_S = 60.0
_HORIZON_TICKS = 3
_HOLD_TICKS = 2


def policy(config: Config) -> PolicySettings:
    """What holds without a schedule; with one, what is safe until it has been asked.

    Raises ValueError when a floor is above its ceiling, which a loaded config never is.
    """
    return _policy(config, "static" if config.control.policy == "static" else "dynamic", None)


def schedule(config: Config) -> WeekSchedule | None:
    """None: the policy is not a schedule. Raises KeyError, ValueError or OSError as `config.schedule.zone` does."""
    if config.control.policy != "schedule":
        return None
    table = config.schedule
    return WeekSchedule(tuple(window.window for window in table.windows), table.outside, table.zone)


def window_policy(config: Config, window: int | None, mode: Mode, words: str) -> PolicySettings:
    """What holds in a window of the schedule (None: outside of all), which `words` describe."""
    return _policy(config, mode, None if window is None else config.schedule.windows[window], words)


def predictor(config: Config) -> PredictorSettings:
    control = config.control
    return PredictorSettings(
        kind=control.predictor,
        half_life_s=control.half_life_s,
        percentile_ratio=control.percentile,
        horizon_s=max(_HORIZON_S, _HORIZON_TICKS * control.interval_s),
    )


def guard(config: Config) -> GuardSettings | None:
    """None: switched off."""
    if not config.guard.enabled:
        return None
    return GuardSettings(
        floor_cores=config.cpu.min_cores,
        watermark_ratio=config.cpu.watermark_ratio,
        reserve_cores=config.cpu.reserve_cores,
        # The first tick after a squeeze has seen only a part of the step.
        hold_s=max(config.guard.hold_s, _HOLD_TICKS * config.control.interval_s),
    )


def _policy(config: Config, mode: Mode, window: WindowTable | None, words: str = "") -> PolicySettings:
    return PolicySettings({name: _resource(config, row, mode, window) for name, row in RESOURCES.items()}, words)


def _resource(config: Config, row: Resource, mode: Mode, window: WindowTable | None) -> ResourceSettings:
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
