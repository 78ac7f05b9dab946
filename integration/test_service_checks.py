"""An online pod's own word, before a real containerd: a command in its container, and an HTTP server of its own."""

import json
from typing import Any

from integration.lab.client import Pod
from integration.lab.ports import free_ports
from integration.lab.process import wait_until
from integration.test_daemon import WAIT_S, Daemon, config, node

__all__ = ["node"]

CHECK = "colocation.criproxy.io/service-check"


def service(node: Daemon, name: str) -> dict[str, Any]:
    """What criproxy's status says of this one; {}: nothing."""
    found: list[dict[str, Any]] = [one for one in node.proxy.status()["services"] if one["name"].startswith(name)]
    return found[0] if found else {}


def percent(node: Daemon, name: str) -> float | None:
    return service(node, name).get("percent")


def online(node: Daemon, name: str, check: dict[str, Any]) -> Pod:
    annotations = {CHECK: json.dumps({"every_s": 1, "timeout_s": 5, "threshold": 100, **check})}
    return node.run_pod("online", name, annotations=annotations)


def test_service_is_asked_in_its_container_and_over_http_once_there_is_an_offline_pod(node: Daemon) -> None:
    node.start(config())
    (port,) = free_ports(1)
    command = online(node, "command", {"exec": {"command": ["cat", "/tmp/p99"]}})
    web = online(node, "web", {"http": {"port": port, "path": "/p99"}})
    node.client.run_container(command, "main", ["sh", "-c", "echo 40 >/tmp/p99; while :; do sleep 1; done"])
    page = f"mkdir -p /tmp/www; echo 30 >/tmp/www/p99; exec httpd -f -p 127.0.0.1:{port} -h /tmp/www"
    server = node.client.run_container(web, "main", ["sh", "-c", page])
    node.wait_ticks(3)
    assert node.proxy.status()["services"] == [], "without an offline pod there is no harm to be seen"

    node.run_pod("offline")
    node.proxy.restart()  # it lists the runtime's pods at its start, and each minute
    wait_until(lambda: percent(node, "command") == 40.0, WAIT_S, "the command's word", node.proxy.log)
    wait_until(lambda: percent(node, "web") == 30.0, WAIT_S, "the server's word", node.proxy.log)
    assert service(node, "web")["asked"] == f"GET :{port}/p99"

    node.direct.stop_container(server)
    wait_until(lambda: percent(node, "web") == 200.0, WAIT_S, "the failure", node.proxy.log)
    assert percent(node, "command") == 40.0
    assert "criproxy_service_worst_percent 200" in node.proxy.http("/metrics")[1]
