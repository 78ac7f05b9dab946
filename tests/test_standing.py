"""What the parts are told, by config and by how the daemon was started."""

import pytest

from criproxy.config import Config
from criproxy.config.settings import Colocation
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
