"""Above its bound: what counts as that, since when, and that it is told once."""

import pytest
import structlog
from msgspec.structs import replace
from structlog.testing import capture_logs

from criproxy.cgroup.box import BoxState, Held
from criproxy.model import UNLIMITED
from criproxy.observe.above_bound import AboveBound

MIB = 1 << 20
STATE = BoxState(
    "/offline",
    2,
    {"cpu": 1.0, "memory": 128 * MIB},
    True,
    "",
    drift=0,
    timeouts=0,
    wanted={"cpu": 1.0, "memory": 128 * MIB},
    memory=Held(100 * MIB, 128 * MIB),
)


def cpu(in_force: object, wanted: object) -> BoxState:
    return replace(STATE, limits={"cpu": in_force, "memory": UNLIMITED}, wanted={"cpu": wanted, "memory": UNLIMITED})


@pytest.mark.parametrize(
    ("state", "above"),
    [
        pytest.param(STATE, set(), id="within"),
        pytest.param(replace(STATE, memory=Held(128 * MIB, 128 * MIB)), set(), id="at-the-bound"),
        pytest.param(replace(STATE, memory=Held(129 * MIB, 128 * MIB)), {"memory"}, id="memory"),
        pytest.param(replace(STATE, memory=Held(129 * MIB, UNLIMITED)), set(), id="no-bound"),
        pytest.param(replace(STATE, memory=None), set(), id="not-read"),
        pytest.param(cpu(2.0, 1.0), {"cpu"}, id="quota-not-written"),
        pytest.param(cpu(UNLIMITED, 1.0), {"cpu"}, id="no-quota-at-all"),
        pytest.param(cpu(1.00001, 1.0), set(), id="whole-microseconds"),
        pytest.param(cpu(0.01, 0.001), set(), id="the-least-quota"),
        pytest.param(cpu(0.5, 1.0), set(), id="below"),
        pytest.param(cpu(2.0, UNLIMITED), set(), id="none-wanted"),
        pytest.param(replace(STATE, limits=None), set(), id="no-box"),
        pytest.param(replace(STATE, wanted=None, memory=None), set(), id="released"),
    ],
)
def test_what_is_above_its_bound(state: BoxState, above: set[str]) -> None:
    bound = AboveBound(structlog.get_logger())
    for now_s in (100.0, 107.0):
        bound.look(state, now_s)
    assert {name for name, seconds in bound.seconds(107.0).items() if seconds} == above
    assert len(list(bound.problems(107.0))) == len(above)


def test_excess_is_logged_once_when_it_lasts_and_once_when_it_ends() -> None:
    bound, high = AboveBound(structlog.get_logger()), replace(STATE, memory=Held(501 * MIB, 128 * MIB))
    with capture_logs() as logs:
        for second in range(60):
            bound.look(high if second < 50 else STATE, second)
    assert [(entry["event"], entry["resource"]) for entry in logs] == [
        ("box_above_bound", "memory"),
        ("box_within_bound", "memory"),
    ]
    assert logs[0]["detail"] == "the box uses 501.00 MiB, 373.00 MiB above its bound of 128.00 MiB"


def test_moment_above_the_bound_is_not_logged() -> None:
    bound, high = AboveBound(structlog.get_logger()), replace(STATE, memory=Held(501 * MIB, 128 * MIB))
    with capture_logs() as logs:
        for second in range(60):
            bound.look(high if second % 5 else STATE, second)
    assert logs == []


def test_quota_that_is_not_written_is_told_in_words() -> None:
    bound = AboveBound(structlog.get_logger())
    for now_s in (0.0, 9.0):
        bound.look(cpu(2.0, 1.0), now_s)
    assert list(bound.problems(9.0)) == [
        "the box's CPU limit in force is 2.00 cores, above the wanted 1.00 cores, for 9 s"
    ]
