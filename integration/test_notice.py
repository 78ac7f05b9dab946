"""Notice before a stop, before a real containerd: who asks for it ends by itself, who does not is killed."""

import time

from integration.lab.process import is_running, wait_until
from integration.test_daemon import WAIT_S, Daemon, config, node

__all__ = ["node"]

NOTICE = "colocation.criproxy.io/notice-seconds"
SAVES = "trap 'sleep 2; echo saved >&2; echo saved >/tmp/saved; exit 0' TERM; while :; do sleep 0.1; done"
NEVER = "trap '' TERM; while :; do sleep 0.1; done"


def test_pod_has_the_notice_that_it_asks_for_and_no_longer(node: Daemon) -> None:
    node.start(config(on_disable="evict"))
    saves, stays = (node.run_pod("offline", annotations={NOTICE: seconds}) for seconds in ("30", "6"))
    plain = node.run_pod("offline")
    asked = {pod.id: node.client.run_container(pod, "main", ["sh", "-c", SAVES]) for pod in (saves, plain)}
    pids = {id: node.client.pid(container) for id, container in asked.items()}
    pids[stays.id] = node.client.pid(node.client.run_container(stays, "main", ["sh", "-c", NEVER]))
    time.sleep(2.0)  # the shells have set their traps

    began_s = time.monotonic()
    node.switch(config(enabled=False, on_disable="evict"))
    wait_until(lambda: not is_running(pids[plain.id]), WAIT_S, "the end of the pod without notice", node.proxy.log)
    assert is_running(pids[stays.id]), "it has 6 s from the same moment on"
    wait_until(lambda: not is_running(pids[saves.id]), WAIT_S, "the end of the one that saves", node.proxy.log)
    wait_until(lambda: not is_running(pids[stays.id]), WAIT_S, "the end of the one that stays", node.proxy.log)
    assert 6.0 <= time.monotonic() - began_s < 60.0

    assert node.direct.exit_code(asked[saves.id]) == 0, "it ended by itself"
    assert node.direct.exit_code(asked[plain.id]) == 137, "it was killed"
    wait_until(
        lambda: [event["event"] for event in node.proxy.events()].count("stop") == 3, WAIT_S, "all", node.proxy.log
    )


def test_pod_whose_notice_is_called_off_runs_on(node: Daemon) -> None:
    node.start(config(on_disable="evict"))
    pod = node.run_pod("offline", annotations={NOTICE: "8"})
    pid = node.client.pid(node.client.run_container(pod, "main", ["sh", "-c", NEVER]))
    time.sleep(2.0)  # the shell has set its trap
    node.switch(config(enabled=False, on_disable="evict"))
    wait_until(lambda: _logged(node, "notice"), WAIT_S, "its notice", node.proxy.log)
    node.switch(config(on_disable="evict"))
    wait_until(lambda: _logged(node, "not_stopped_any_more"), WAIT_S, "it to be called off", node.proxy.log)
    time.sleep(10.0)  # longer than the runtime would have waited before it kills
    assert is_running(pid)


def _logged(node: Daemon, event: str) -> bool:
    return event in [one["event"] for one in node.proxy.events()]
