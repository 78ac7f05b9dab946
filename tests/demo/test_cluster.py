from dataclasses import replace
from pathlib import Path

import pytest

from criproxy.control.memory_pressure import margin_bytes
from integration.demo import DemoError
from integration.demo.cluster.objects import PODS, deployment, job, sizes
from integration.demo.cluster.probe import ANSWER_S
from integration.demo.cluster.report import Moment, Outcome, draw, in_words
from integration.lab.node import OFFLINE

GIB = 1 << 30


@pytest.mark.parametrize("available_gib", [2, 4, 8, 24, 512])
def test_sizes_leave_room_for_the_job_and_one_pod_that_goes_is_enough(available_gib: int) -> None:
    found = sizes(available_gib * GIB, available_gib * GIB)
    margin_mib = margin_bytes(available_gib * GIB) / (1 << 20)
    assert found.room_mib <= 0.6 * available_gib * 1024
    assert PODS * found.offline_mib + margin_mib < found.room_mib, "all of the Job must fit"
    assert PODS * found.offline_mib + found.steps * found.step_mib > found.room_mib, (
        "the burst must reach the threshold"
    )
    assert 0.9 * found.offline_mib > margin_mib / 2, "what one gives back must lead out of the emergency"


def test_sizes_on_a_small_machine_say_what_it_lacks() -> None:
    with pytest.raises(DemoError, match=r"needs 2 GiB of free memory, this machine has 1\.0"):
        sizes(GIB, 4 * GIB)


def test_job_is_what_anybody_writes_and_nothing_of_it_is_extended() -> None:
    made = job(sizes(24 * GIB, 24 * GIB))["spec"]["template"]
    assert made["metadata"]["labels"] == OFFLINE
    requests = made["spec"]["containers"][0]["resources"]["requests"]
    assert requests.keys() == {"cpu", "memory"}


def test_deployment_is_online_and_listens_where_it_is_told() -> None:
    template = deployment(12345, Path("/x"), sizes(24 * GIB, 24 * GIB))["spec"]["template"]
    assert not OFFLINE.keys() & template["metadata"]["labels"].keys()
    script = template["spec"]["containers"][0]["command"][-1]
    assert "PORT=12345\n" in script and "BURST=/signals/burst\n" in script


def outcome() -> Outcome:
    moments = [Moment(float(t), 0.5, 1.0, 0.25, 0.1, 1.2, None if t == 0 else 1.5) for t in range(5)]
    marks = [(1.0, "burst"), (1.5, "squeezed"), (3.0, "evicted")]
    windows = {"quiet, alone": (0.0, 1.0), "burst, alone": (1.0, 3.0), "none": (90.0, 91.0)}
    answers = [(100.0 + t / 10, ANSWER_S if t == 11 else 0.02) for t in range(50)]
    found = Outcome(2, 100.0, moments, marks, windows, answers)
    found.evicted, found.evicted_after_s, found.replaced_after_s, found.replaced_on = "crunch-a", 9.0, 3.5, "node 2"
    return found


def test_figures_tell_what_happened_and_each_window_s_latency() -> None:
    lines = list(in_words(outcome()))
    assert "crunch-a was evicted 9.0 s after the burst began; 3.5 s later another pod ran in its place" in lines[0]
    assert "4.0 core-seconds in the box of node 1, 1.0 in that of node 2" in lines[1]
    assert "this machine used 0.1 of its 2 cores" in lines[3], "its limit never moved"
    quiet, burst, none = (line.split() for line in lines[-3:])
    assert quiet[-6:] == ["10", "20", "ms", "20", "ms", "0"]
    assert (burst[2], burst[-1]) == ("20", "1")
    assert none[1:] == ["0", "–", "–", "0"]


def test_box_that_was_squeezed_is_not_told_to_be_at_its_least() -> None:
    found = outcome()
    found.moments = [replace(one, limit=1.2 - 0.2 * one.t_s) for one in found.moments]
    assert not any("nothing was to be seen" in line for line in in_words(found))
    assert not any("Nothing has squeezed it" in line for line in in_words(found))
    found.marks = [(1.0, "burst")]
    assert any("Nothing has squeezed it" in line for line in in_words(found)), "it was lowered by little at a time"


@pytest.mark.slow
def test_draw_writes_a_png(tmp_path: Path) -> None:
    draw(outcome(), tmp_path / "new" / "plot.png")
    assert (tmp_path / "new" / "plot.png").read_bytes().startswith(b"\x89PNG")
