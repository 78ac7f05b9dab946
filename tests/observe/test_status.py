"""The status as JSON and as text."""

import json

import pytest
from msgspec.structs import replace

from criproxy.cgroup.driver import HeldLimit
from criproxy.model import AttachStatus, Finding
from criproxy.observe.status import (
    CgroupStatus,
    ScheduleStatus,
    from_json,
    to_json,
)
from criproxy.observe.status_text import WIDTH, render
from tests.observe.status_samples import STATUS

STRAY = Finding("u", "batch", "job", "main", "/elsewhere")


def test_json_comes_back_as_it_went() -> None:
    raw = replace(STATUS, version="\udcff")
    assert from_json(to_json(raw)) == raw
    assert to_json(raw).isascii()


def test_json_before_the_first_offline_pod_comes_back() -> None:
    box = replace(STATUS.box, path=None, resources={})
    status = replace(STATUS, box=box)
    assert from_json(to_json(status)) == status


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 3}'], ids=["empty", "list", "object", "wrong-type"])
def test_json_of_something_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_json(text)


@pytest.mark.parametrize("number", [1e300, -1e18, 1e17])
def test_moment_that_no_calendar_has_is_shown_as_it_is(number: float) -> None:
    decisions = tuple(replace(one, decided_s=number) for one in STATUS.decisions)
    assert f"{number:g} s after 1970" in render(replace(STATUS, decisions=decisions, uptime_s=number))


def test_line_that_fits_is_as_a_longer_one_would_be_but_for_its_end() -> None:
    assert "\nnot well      two  words\n" in render(replace(STATUS, problems=("two  words  ",)))


@pytest.mark.parametrize(
    "shown",
    [
        "criproxy 0.1.0, pid 12, up 1 h 2 min\n",
        "colocation    on\n",
        "/run/c.sock (ready, containerd 1.6)\n",
        "/etc/c.toml (1 errors)\n  a: b\n",
        "only after a restart: proxy.listen\n",
        "/offline (drift 1, pod cgroups swept 2, ticks failed 3)\n",
        "  cores           4.00        3.00        1.75        2.10        1.25        1.50      no box\n",
        "  memory      8.00 GiB    4.00 GiB    3.00 GiB   not known    1.00 GiB   unlimited      no box\n",
        "throttled 12.5% of the time\n",
        "CPU: lowered to 1.50 cores\n",
        "memory: not known\n",
        "cgroups       v1, cgroupfs\n",
        "engine        grpc\n",
        "offline pods  1\n  batch/job\\x1b[2J\n",
        "  1.50 cores, unlimited\n    CPU: lowered to 1.50 cores\n    memory: not known\n",
    ],
)
def test_text_shows(shown: str) -> None:
    assert shown in render(STATUS)


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        pytest.param(
            {"box": replace(STATUS.box, shares={"pids": HeldLimit(10813, 12)})},
            "\n  processes and threads: 12, limit 10813\n",
            id="pids",
        ),
        pytest.param({"box": STATUS.box}, "\n  processes and threads are not bounded, as there is no", id="no-pids"),
        pytest.param({"box": replace(STATUS.box, path=None)}, "box           none yet (", id="no-box"),
        pytest.param(
            {"box": replace(STATUS.box, cpus="0,2-3")},
            "  runs on the CPUs 0,2-3, which kubelet's static CPU manager leaves to it\n",
            id="confined",
        ),
        pytest.param(
            {"box": replace(STATUS.box, cpus="2,6", cores="1 of 4 physical cores")},
            "  runs on the CPUs 2,6: 1 of 4 physical cores\n",
            id="whole-cores",
        ),
        pytest.param(
            {"box": replace(STATUS.box, cores="this machine has no hyperthreads")},
            "  runs on all CPUs: this machine has no hyperthreads\n",
            id="no-whole-cores",
        ),
        pytest.param({"box": replace(STATUS.box, tiers="1 mid, 2 low; by CPU")}, "  tiers: 1 mid, 2 low;", id="tiers"),
        pytest.param(
            {"schedule": ScheduleStatus("window night (dynamic) until Tue 06:00 CET", "")},
            "colocation    on\nschedule      window night (dynamic) until Tue 06:00 CET\nruntime ",
            id="schedule",
        ),
        pytest.param(
            {"schedule": ScheduleStatus("outside of all windows (off)", "the schedule is off")},
            "(off)\n  no new offline pods: the schedule is off\n",
            id="closed",
        ),
        pytest.param({"dry_run": True}, "dry run: nothing is written\n", id="dry-run"),
        pytest.param({"attached": AttachStatus("yes", "by /x")}, "attached      yes (by /x)\n", id="attached"),
        pytest.param({"attached": AttachStatus("unknown", "")}, "attached      unknown\n", id="attached-unknown"),
        pytest.param({"colocation": "pass-through"}, "colocation    pass-through\n", id="pass-through"),
        pytest.param({"pods": STATUS.pods * 60}, "  and 10 more (--json lists them all)\n", id="many-pods"),
        pytest.param({"uptime_s": 0.4}, "up 0 s\n", id="just-started"),
        pytest.param({"problems": ("a", "b")}, "min\nnot well      a\nnot well      b\ncolocation", id="not-well"),
        pytest.param({"cgroup": CgroupStatus(2, None)}, "v2, driver not known before a pod runs\n", id="no-pod"),
        pytest.param({"cgroup": CgroupStatus(0, None)}, "cgroups       none that could hold a box\n", id="no-cgroups"),
        pytest.param(
            {"rows": (("cache", "a third", "of the last level"),)},
            "cache         a third\n  of the last level\n",
            id="part",
        ),
        pytest.param({"decisions": ()}, "decisions     none yet\n", id="no-decision"),
    ],
)
def test_text_of_another_state_shows(change: dict[str, object], shown: str) -> None:
    assert shown in render(replace(STATUS, **change))


def test_text_of_decisions_tells_why_of_what_changed() -> None:
    oldest = replace(STATUS.decisions[0], reasons={"cpu": "C0", "memory": "M0"})
    older = replace(oldest, limits={**oldest.limits, "cpu": 2.0}, reasons={"cpu": "C1", "memory": "M1"})
    latest = replace(older, limits={**older.limits, "memory": 1 << 30}, reasons={"cpu": "C2", "memory": "M2"})
    text = render(replace(STATUS, decisions=(latest, older, oldest))).partition("decisions")[2]
    assert [line.strip() for line in text.splitlines() if line.startswith("    ")] == [
        "memory: M2",
        "CPU: C1",
        "CPU: C0",
        "memory: M0",
    ]


def test_text_fits_a_terminal_whatever_it_tells() -> None:
    words = "a long story of why " * 20
    decision = replace(STATUS.decisions[0], reasons={"cpu": words, "memory": ""})
    stray = Finding("u", "n" * 63, "p" * 253, "c" * 63, f"/system.slice/{'x' * 300}")
    status = replace(
        STATUS,
        problems=(words,),
        decisions=(decision,),
        rows=(("placement", "1 misplaced", f"misplaced: {stray}, container {stray.container}: {stray.detail}"),),
    )
    lines = render(status).splitlines()
    assert [line.split() for line in lines if len(line) > WIDTH] == [
        [f"{stray.namespace}/{stray.name},"],
        [stray.detail],
    ], "what can't be broken alone is longer"
    head = next(index for index, line in enumerate(lines) if line.startswith("not well"))
    assert lines[head + 1].startswith(" " * 14)


@pytest.mark.parametrize("before", range(0, 90, 7))
def test_text_keeps_a_command_in_one_line_to_be_copied(before: int) -> None:
    command = "`systemctl set-property criproxy.service IPAddressAllow=10.0.0.1`"
    said = render(replace(STATUS, problems=(f"{'x ' * (before // 2)}is shut: {command} or so",)))
    assert sum(command in line for line in said.splitlines()) == 1


def test_text_of_a_runtime_that_is_gone_says_why() -> None:
    runtime = replace(STATUS.runtime, ready=False, problem="connection refused")
    assert "not ready: connection refused" in render(replace(STATUS, runtime=runtime))


def test_text_before_the_first_sample_says_so() -> None:
    box = replace(STATUS.box, resources={})
    assert "no sample yet" in render(replace(STATUS, box=box))


def test_json_is_what_other_programs_read() -> None:
    data = json.loads(to_json(STATUS))
    assert data["box"]["memory"]["limit_bytes"] == "unlimited"
    assert data["box"]["cpu"]["limit_cores"] == 1.5
