"""The table of modes: each mode and each question, and what holds when several modes are in force."""

import itertools
import re

import pytest

from criproxy.model.modes import TABLE, LimitsUse, Mode, Modes, NewPod, in_words

BOUNDED, REFUSED, WOULD_BE, UNBOUNDED = NewPod
AS_IT_CAME, PAST = "passes as it came", "passes by criproxy"
WRITTEN, LIFTED, LOWERED, KEPT = LimitsUse
RUNTIME, NOBODY = "ok while the runtime is ready", "nobody answers"

EXPECTED = {
    Mode.DISABLED: (UNBOUNDED, AS_IT_CAME, LIFTED, RUNTIME, True),
    Mode.DRY_RUN: (WOULD_BE, AS_IT_CAME, KEPT, RUNTIME, True),
    Mode.PASS_THROUGH: (UNBOUNDED, AS_IT_CAME, LOWERED, RUNTIME, False),
    Mode.CLOSED: (REFUSED, AS_IT_CAME, WRITTEN, RUNTIME, True),
    Mode.HELD_OFF: (REFUSED, AS_IT_CAME, KEPT, RUNTIME, True),
    Mode.HELD: (REFUSED, AS_IT_CAME, WRITTEN, RUNTIME, True),
    Mode.UNWELCOME: (REFUSED, AS_IT_CAME, WRITTEN, RUNTIME, False),
    Mode.NO_CGROUPS: (REFUSED, AS_IT_CAME, KEPT, RUNTIME, False),
    Mode.ENGINE_GIVEN_UP: (BOUNDED, AS_IT_CAME, WRITTEN, RUNTIME, False),
    Mode.BYPASS: (UNBOUNDED, PAST, KEPT, NOBODY, False),
    Mode.NOT_CALLED: (UNBOUNDED, PAST, WRITTEN, RUNTIME, True),
}


@pytest.mark.parametrize("mode", Mode, ids=lambda mode: mode.value)
def test_each_mode_answers_each_question(mode: Mode) -> None:
    row = TABLE[mode]
    assert (row.new_pod, row.online, row.limits, row.ready, row.well) == EXPECTED[mode]
    assert in_words(mode).startswith(f"{mode.value}: ")
    assert re.fullmatch(r"[a-z -]+", mode.value)


def test_no_mode_hurts_an_online_pod_or_raises_a_limit_that_nobody_knows() -> None:
    assert {row.online for row in TABLE.values()} <= {AS_IT_CAME, PAST}
    assert all(row.online == AS_IT_CAME for mode, row in TABLE.items() if mode not in (Mode.BYPASS, Mode.NOT_CALLED))
    unbounded = {mode for mode, row in TABLE.items() if row.new_pod is UNBOUNDED}
    assert unbounded == {Mode.DISABLED, Mode.PASS_THROUGH, Mode.BYPASS, Mode.NOT_CALLED}, "these admit without bounds"


def test_without_a_mode_all_is_done() -> None:
    modes = Modes()
    assert (modes.new_pod, modes.limits, modes.judges, modes.writes) == (BOUNDED, WRITTEN, True, True)


@pytest.mark.parametrize(
    "pair", list(itertools.combinations(Mode, 2)), ids=lambda pair: "-".join(mode.value for mode in pair)
)
def test_of_two_modes_the_answer_that_acts_less_holds(pair: tuple[Mode, Mode]) -> None:
    modes = Modes(dict.fromkeys(pair, ""))
    assert modes.new_pod is max((TABLE[mode].new_pod for mode in pair), key=list(NewPod).index)
    assert modes.limits is max((TABLE[mode].limits for mode in pair), key=list(LimitsUse).index)
    assert modes.judges == all(TABLE[mode].new_pod is not UNBOUNDED for mode in pair)
    assert modes.writes == all(TABLE[mode].limits is WRITTEN for mode in pair)


@pytest.mark.parametrize(
    ("modes", "new_pod", "limits"),
    [
        pytest.param((Mode.DRY_RUN, Mode.CLOSED), WOULD_BE, KEPT, id="a-dry-run-refuses-nobody"),
        pytest.param((Mode.DISABLED, Mode.CLOSED), UNBOUNDED, LIFTED, id="no-schedule-while-disabled"),
        pytest.param((Mode.PASS_THROUGH, Mode.DRY_RUN), UNBOUNDED, KEPT, id="a-dry-run-lowers-nothing"),
        pytest.param((Mode.UNWELCOME, Mode.CLOSED), REFUSED, WRITTEN, id="refused-twice"),
    ],
)
def test_combinations_that_matter(modes: tuple[Mode, ...], new_pod: NewPod, limits: LimitsUse) -> None:
    in_force = Modes(dict.fromkeys(modes, ""))
    assert (in_force.new_pod, in_force.limits) == (new_pod, limits)


def test_line_for_people_tells_of_pods_and_limits() -> None:
    assert in_words(Mode.CLOSED) == (
        "closed: a new offline pod is refused (kubelet tries again); the box's limits follow the policy"
    )
