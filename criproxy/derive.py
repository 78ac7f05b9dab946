"""What the config means to each part. Pure."""

from criproxy.config import Config
from criproxy.control.policy import DynamicSettings, PolicySettings, ResourceSettings, StaticSettings
from criproxy.control.series import PredictorSettings

_HORIZON_S = 60.0
_HORIZON_TICKS = 3


def policy(config: Config) -> PolicySettings:
    """Raises ValueError when a floor is above its ceiling, which a loaded config never is."""
    cpu, memory = config.cpu, config.memory
    return PolicySettings(
        cpu=_resource(config, cpu.static_cores, cpu.min_cores, cpu.max_cores, cpu.watermark_ratio),
        memory=_resource(config, memory.static_bytes, memory.min_bytes, memory.max_bytes, memory.watermark_ratio),
    )


def predictor(config: Config) -> PredictorSettings:
    control = config.control
    return PredictorSettings(
        kind=control.predictor,
        half_life_s=control.half_life_s,
        percentile_ratio=control.percentile,
        horizon_s=max(_HORIZON_S, _HORIZON_TICKS * control.interval_s),
    )


def _resource(
    config: Config, static: float | None, floor: float, ceiling: float | None, watermark_ratio: float
) -> ResourceSettings:
    control = config.control
    if control.policy == "static" and static is not None:
        return StaticSettings(static)
    return DynamicSettings(
        floor=floor,
        watermark_ratio=watermark_ratio,
        ceiling=ceiling,
        raise_threshold_ratio=control.raise_threshold_ratio,
        raise_after_s=control.raise_after_s,
    )
