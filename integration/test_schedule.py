"""The schedule on a real node: what a closed window does to pods that come, to those that run, and what it says."""

import json
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest

from integration.lab.criproxy import CHECKOUT, Config
from integration.lab.process import is_running, wait_until
from integration.test_daemon import MEMORY_BYTES, QUOTA_US, STATIC, WAIT_S, Daemon, node

__all__ = ["node"]  # the fixture

FLOOR_US = 10_000
CLOSES_S = 120
"""At least half of it is left for all that is looked at before a window closes."""


def scheduled(outside: str, *windows: dict[str, Any], **schedule: Any) -> Config:
    """Without a window of its own: one that is days away, so that `outside` holds."""
    day = f"{datetime.now(UTC) + timedelta(days=3):%a}".lower()
    other_day = {"days": day, "start": "00:00", "end": "24:00", "policy": "static"}
    return {
        **STATIC,
        "control": {**STATIC["control"], "policy": "schedule"},
        "cpu": {**STATIC["cpu"], "min_cores": FLOOR_US / 100_000},
        "colocation": {"enabled": True},
        "schedule": {"windows": list(windows) or [other_day], "outside": outside, "grace_s": 0.0, **schedule},
        "guard": {"enabled": False},
    }


def refusal(node: Daemon) -> str:
    with pytest.raises(grpc.RpcError) as refused:
        node.run_pod("offline")
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    return str(refused.value.details())


def why(node: Daemon, *arguments: str) -> str:
    file = str(node.proxy.config_file)
    command = [sys.executable, "-m", "criproxy", "status", "--config", file, "--why", *arguments]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def test_schedule_that_turns_off_stops_the_pods_and_lets_none_in_until_it_is_on(node: Daemon) -> None:
    node.start(scheduled("static"))
    offline, online = node.run_pod("offline"), node.run_pod("online")
    main, web = node.add(offline), node.add(online)
    node.limits.wait(QUOTA_US, MEMORY_BYTES)
    pids = [node.client.pid(what) for what in (offline, main)]
    kept = [node.client.pid(what) for what in (online, web)]

    node.switch(scheduled("off"))
    wait_until(lambda: not any(map(is_running, pids)), WAIT_S, "the offline pods to end", node.proxy.log)
    assert "the schedule is off until" in refusal(node)
    assert all(map(is_running, kept))
    assert not node.is_in_box(node.run_pod("online")), "an online pod starts as ever"
    wait_until(lambda: node.limits.now()[0] == FLOOR_US, WAIT_S, "the floor", node.proxy.log)
    assert "outside of all windows (off) until" in node.proxy.status()["schedule"]["holds"]
    assert "the floor, as the schedule is off" in why(node)

    node.switch(scheduled("static"))
    node.limits.wait(QUOTA_US, MEMORY_BYTES)
    assert node.is_in_box(node.run_pod("offline"))
    assert json.loads(why(node, "--json"))["decision"]["cpu"]["limit"] == QUOTA_US / 100_000


def test_schedule_that_squeezes_leaves_the_pods_at_the_floor(node: Daemon) -> None:
    node.start(scheduled("static", on_close="squeeze"))
    offline = node.run_pod("offline")
    main = node.add(offline)
    pids = [node.client.pid(what) for what in (offline, main)]

    node.switch(scheduled("off", on_close="squeeze"))
    wait_until(lambda: node.limits.now()[0] == FLOOR_US, WAIT_S, "the floor", node.proxy.log)
    assert "the schedule is off" in refusal(node)
    assert node.is_in_box(node.add(offline, "late")), "a container of a placed sandbox was to be let in"
    assert [node.client.pid(what) for what in (offline, main)] == pids


def test_window_that_closes_by_the_clock_refuses_pods_before_and_then_stops_those_that_run(node: Daemon) -> None:
    closes = (datetime.now(UTC) + timedelta(seconds=CLOSES_S)).replace(second=0, microsecond=0)
    end = f"{closes:%H:%M}".replace("00:00", "24:00")
    window = {"start": f"{closes - timedelta(hours=2):%H:%M}", "end": end, "policy": "static"}
    node.start(scheduled("off", window))
    offline = node.run_pod("offline")
    main = node.add(offline)
    pids = [node.client.pid(what) for what in (offline, main)]

    node.switch(scheduled("off", window, grace_s=3600.0))
    assert f"the schedule turns off at {closes:%a %H:%M} UTC" in refusal(node)
    assert node.is_in_box(node.add(offline, "late")), "a container of a placed sandbox was to be let in"
    assert all(map(is_running, pids))
    assert node.limits.now() == (QUOTA_US, MEMORY_BYTES)

    wait_until(lambda: not any(map(is_running, pids)), CLOSES_S + WAIT_S, "the offline pods to end", node.proxy.log)
    assert time.time() >= closes.timestamp()
    assert "the schedule is off until" in refusal(node)
