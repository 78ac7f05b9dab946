"""What the config says of how the box is bounded: the policy of each resource, and the predictor. Pure."""

from typing import Final

from criproxy.config import Config
from criproxy.config.settings import Cpu, Memory, WindowTable
from criproxy.control.decider import LoopSettings
from criproxy.control.policy import DynamicSettings, PolicySettings, ResourceSettings, StaticSettings
from criproxy.control.resources import RESOURCES, Resource
from criproxy.control.schedule import WindowMode
from criproxy.control.series import PredictorSettings
from criproxy.model import UNLIMITED
from criproxy.model.modes import TABLE, LimitsUse, Mode
from criproxy.pods.part import NodeSettings

_UNKNOWN: Final = "the config has errors: never more than the box had at the start"
_HORIZON_S: Final = 60.0
_HORIZON_TICKS: Final = 3


def loop_settings(now: NodeSettings) -> LoopSettings:
    """Limits that the last process has left in the kernel may be those of a night. So in a pass-through they are only
    lowered, to what the dynamic policy at its defaults says.
    """
    modes, law = now.modes, now.stage.policy
    if now.pass_through:
        law = policy(Config(), "dynamic", words=_UNKNOWN)
    applied = (LimitsUse.WRITTEN, LimitsUse.LOWERED)
    return LoopSettings(
        law,
        predictor(now.config),
        now.config.control.interval_s,
        kept_by=next((mode for mode in Mode if mode in modes and TABLE[mode].limits not in applied), None),
        cpu_by_evidence=now.config.cpu.bound == "evidence" and now.writes,
    )


def policy(
    config: Config, mode: WindowMode | None = None, window: WindowTable | None = None, words: str = ""
) -> PolicySettings:
    """What holds in a `window` of the schedule (None: outside of all), by its `mode`; `words` describe both.

    Without a mode, what holds without a schedule; with one, what is safe until the first look at it.
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
