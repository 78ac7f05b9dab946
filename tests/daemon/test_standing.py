"""What the parts are told, by config and by how the daemon was started."""

import pytest
from msgspec.structs import replace

from criproxy.config import Config
from criproxy.config.settings import Colocation, Control, Cpu, Memory
from criproxy.daemon import derive
from criproxy.daemon.standing import Standing
from criproxy.daemon.timetable import Timetable
from criproxy.pods.memory_relief import Settings as ReliefSettings


def standing(colocation: Colocation, pass_through: bool = False, dry_run: bool = False) -> Standing:
    config = Config(colocation=colocation)
    return Standing(config, Timetable(config).stage(0.0), pass_through, dry_run)


@pytest.mark.parametrize(
    ("given", "evicts"),
    [
        pytest.param(standing(Colocation(enabled=True, on_unbounded="evict")), True, id="on"),
        pytest.param(standing(Colocation(enabled=True)), False, id="by-default"),
        pytest.param(standing(Colocation(on_unbounded="evict")), False, id="off"),
        pytest.param(standing(Colocation(enabled=True, on_unbounded="evict"), dry_run=True), False, id="dry-run"),
        pytest.param(standing(Colocation(enabled=True, on_unbounded="evict"), True), False, id="pass-through"),
    ],
)
def test_misplaced_pods_are_evicted_only_where_the_config_says_so_and_the_box_is_ours(
    given: Standing, evicts: bool
) -> None:
    assert given.verify().evict == evicts


def test_limits_of_a_bad_config_are_those_of_the_dynamic_policy_at_its_defaults_and_a_dry_run_has_none() -> None:
    """The salvaged config may say static, with limits meant for a night."""
    config = Config(control=Control(policy="static"), cpu=Cpu(static_cores=64.0), memory=Memory(static_bytes=1 << 38))
    bad = Standing(config, Timetable(config).stage(0.0), pass_through=True, dry_run=False)
    policy = derive.policy(Config())
    assert bad.loop().policy.resources == policy.resources
    assert (bad.loop().dry_run, bad.upkeep().adopt, bad.upkeep().when_off) == (False, True, None)
    assert not bad.writes
    assert bad.guard().law is None
    dry = replace(bad, dry_run=True)
    assert (dry.loop().dry_run, dry.upkeep().adopt) == (True, False)


@pytest.mark.parametrize(
    ("config", "dry_run", "expected"),
    [
        pytest.param(Config(colocation=Colocation(enabled=True)), False, ReliefSettings(True, True), id="by-default"),
        pytest.param(
            Config(colocation=Colocation(enabled=True), memory=Memory(on_over_limit="report")),
            False,
            ReliefSettings(True, False),
            id="report",
        ),
        pytest.param(Config(), False, ReliefSettings(False, True), id="off"),
        pytest.param(Config(colocation=Colocation(enabled=True)), True, ReliefSettings(False, True), id="dry-run"),
    ],
)
def test_memory_is_relieved_by_default_wherever_the_box_is_ours(
    config: Config, dry_run: bool, expected: ReliefSettings
) -> None:
    assert Standing(config, Timetable(config).stage(0.0), False, dry_run).relief() == expected
