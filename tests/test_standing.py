"""What the parts are told, by config and by how the daemon was started."""

import pytest

from criproxy.config import Config
from criproxy.config.settings import Colocation, Memory
from criproxy.memory_relief import Settings as ReliefSettings
from criproxy.standing import Standing
from criproxy.timetable import Timetable


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
