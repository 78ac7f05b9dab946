"""What the settings of each part are for a config."""

import pytest
from msgspec.structs import replace

from criproxy.config import Config
from criproxy.config.settings import Control, Cpu, Guard, Memory
from criproxy.control.guardlaw import GuardSettings
from criproxy.control.policy import DynamicSettings, StaticSettings, safe_limits
from criproxy.daemon import derive

GIB = 1 << 30


def test_policy_of_the_default_config_is_dynamic_with_the_floors() -> None:
    settings = derive.policy(Config())
    assert isinstance(settings.resources["cpu"], DynamicSettings)
    assert isinstance(settings.resources["memory"], DynamicSettings)
    assert (settings.resources["cpu"].floor, settings.resources["memory"].floor) == (0.1, 128 << 20)
    assert (settings.resources["cpu"].ceiling, settings.resources["memory"].ceiling) == (None, None)


def test_guard_keeps_to_the_cpus_floor_watermark_and_reserve() -> None:
    config = Config(cpu=Cpu(watermark_ratio=0.7, min_cores=0.5, reserve_cores=1.5), guard=Guard(hold_s=9.0))
    assert derive.guard(config) == GuardSettings(0.5, 0.7, 1.5, 9.0)


def test_guard_holds_until_the_second_tick_at_least() -> None:
    law = derive.guard(Config(control=Control(interval_s=10.0)))
    assert law is not None
    assert law.hold_s == 20.0


def test_guard_that_is_switched_off_has_no_law() -> None:
    assert derive.guard(Config(guard=Guard(enabled=False))) is None


def test_policy_takes_each_resource_s_own_values() -> None:
    config = Config(
        cpu=Cpu(watermark_ratio=0.7, min_cores=0.5, max_cores=3.0, static_cores=9.0),
        memory=Memory(watermark_ratio=0.6, min_bytes=GIB, max_bytes=4 * GIB, static_bytes=9 * GIB),
        control=Control(raise_threshold_ratio=0.2, raise_after_s=7.0),
    )
    found = [
        (r.floor, r.ceiling, r.watermark_ratio, r.raise_threshold_ratio, r.raise_after_s)
        for r in (derive.policy(config).resources["cpu"], derive.policy(config).resources["memory"])
        if isinstance(r, DynamicSettings)
    ]
    assert found == [(0.5, 3.0, 0.7, 0.2, 7.0), (GIB, 4 * GIB, 0.6, 0.2, 7.0)]


def test_policy_static_is_the_static_limits_also_before_the_first_decision() -> None:
    config = Config(cpu=Cpu(static_cores=1.5), memory=Memory(static_bytes=GIB), control=Control(policy="static"))
    settings = derive.policy(config)
    assert isinstance(settings.resources["cpu"], StaticSettings)
    assert isinstance(settings.resources["memory"], StaticSettings)
    safe = safe_limits(settings)
    assert (safe["cpu"], safe["memory"]) == (1.5, GIB)


def test_policy_with_a_floor_above_the_ceiling_raises() -> None:
    with pytest.raises(ValueError, match="ceiling"):
        derive.policy(Config(cpu=Cpu(min_cores=2.0, max_cores=1.0)))


@pytest.mark.parametrize(("interval_s", "horizon_s"), [(0.1, 60.0), (20.0, 60.0), (60.0, 180.0)])
def test_predictor_looks_ahead_a_minute_or_three_ticks(interval_s: float, horizon_s: float) -> None:
    assert derive.predictor(Config(control=Control(interval_s=interval_s))).horizon_s == horizon_s


def test_predictor_takes_the_config_s_values() -> None:
    control = replace(Control(), predictor="calibrated", half_life_s=5.0, percentile=0.75)
    settings = derive.predictor(Config(control=control))
    assert (settings.kind, settings.half_life_s, settings.percentile_ratio) == ("calibrated", 5.0, 0.75)
