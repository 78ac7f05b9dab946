"""How the node is, in one sentence, and what is to be done."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from criproxy.commands.page.facts import State, facts, state_of
from criproxy.model.modes import Mode, in_words
from criproxy.observe import client
from criproxy.observe.status import ScheduleStatus, from_json, to_json
from tests.commands.page.lived import DAY_S, WALL_S, node, status
from tests.observe.status_samples import STATUS

USED = "of 32.00 cores, online uses 13.25 cores and 7 offline pods use 7.25 cores; they may have 14.50 cores"
HELD = (
    "cpu of offline pods is squeezed: online waited",
    "memory of offline pods is squeezed: online waited",
)


@pytest.mark.parametrize(
    ("changed", "state"),
    [
        pytest.param({}, State(True, f"All is well: {USED}.", HELD), id="well"),
        pytest.param(
            {"problems": ("the box is gone: see the log", "the disk is full")},
            State(
                False,
                "2 things need somebody to look at it: the box is gone: see the log",
                ("the disk is full", *HELD),
            ),
            id="problems",
        ),
        pytest.param(
            {"schedule": ScheduleStatus("", "the window begins at 22:00"), "modes": (Mode.CLOSED.value,)},
            State(
                True,
                "All is well, and no new offline pod is let in: the window begins at 22:00",
                (in_words(Mode.CLOSED), *HELD),
            ),
            id="closed",
        ),
        pytest.param({"colocation": "off"}, State(True, "All is well; colocation is off.", HELD), id="off"),
    ],
)
def test_state_is_one_sentence_and_what_to_know(changed: dict[str, Any], state: State) -> None:
    assert state_of(from_json(to_json(replace(status(), **changed)))) == state


@pytest.mark.parametrize("section", ["x", {"rungs": [1]}, {"rungs": [{"rung": "squeezed"}]}])
def test_section_that_is_no_criproxy_s_is_a_value_error(section: object) -> None:
    with pytest.raises(ValueError, match=r"Expected|missing"):
        state_of(replace(STATUS, sections={"interference": section}))


def test_facts_are_what_the_daemon_answers(tmp_path: Path) -> None:
    with node(tmp_path):
        socket = tmp_path / "c-status.sock"
        found, newer = facts(socket), facts(socket, WALL_S - 60.0)
        assert from_json(client.ask(socket, "/status", 20)).pods == from_json(to_json(status())).pods
        assert found["status"]["box"]["cpu"]["online_cores"] == 13.25
        assert len(found["history"]["minutes"]["cpu"]["online"]["mean"]) == DAY_S / 60
        assert len(newer["history"]["seconds"]["cpu"]["online"]) == 61
        assert found["why"]["published"].startswith("CPU 12.50 cores")
