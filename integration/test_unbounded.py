"""Offline pods, and containers of offline pods, that started past criproxy: found, told of, and stopped when asked."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from integration.lab.criproxy import Config
from integration.lab.node import FOREVER, Node
from integration.lab.process import wait_until

WAIT_S = 180
"""The runtime is listed once a minute."""

ON: Config = {"colocation": {"enabled": True}}
EVICT: Config = {"colocation": {"enabled": True, "on_unbounded": "evict"}}


def told(status: Any) -> tuple[list[str], list[str]]:
    """The unbounded pods, and the misplaced containers of pods in the box."""
    return status["unbounded"], [one["container"] for one in status["placement"]["misplaced"]]


@pytest.mark.timeout(900)
def test_what_started_past_criproxy_is_found_told_of_and_evicted(lab: Path) -> None:
    with Node.before(lab, ON) as node:
        proxy, client = node.proxy, node.direct
        inside = node.run("offline", "inside")
        proxy.kill()
        past = replace(node, client=client)
        outside, online = past.run("offline", "outside"), past.run("online", "online")
        late = client.run_container(inside.pod, "late", FOREVER)
        proxy.start()
        wait_until(lambda: told(proxy.status()) == (["default/outside"], ["late"]), WAIT_S, "both to be told of")
        assert proxy.metric("criproxy_unbounded_pods") == 1
        assert all(client.pid(one) for one in (inside, outside, late, online))
        proxy.configure(EVICT)
        wait_until(lambda: not any(client.pid(one) for one in (inside, outside, late)), WAIT_S, "both to be evicted")
        wait_until(lambda: told(proxy.status()) == ([], []), WAIT_S, "nothing to be told of")
        assert client.pid(online)
    events = [(event["event"], event.get("pod")) for event in proxy.events()]
    assert events.count(("offline_pod_unbounded", "default/outside")) == 1
    assert {pod for event, pod in events if event == "stop"} == {"default/inside", "default/outside"}
