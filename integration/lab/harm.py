"""A node whose box may harm online pods: pods of both classes behind a criproxy, and what its ladder does about it."""

import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from integration.lab import cri_client_pb2 as cri
from integration.lab.client import Pod
from integration.lab.criproxy import Config
from integration.lab.node import CLASS, FOREVER, Node


class HarmedNode(Node):
    """`Node`, and what its ladder does. The criproxy is started by `configure`."""

    def configure(self, config: Config) -> None:
        """Colocation is on, and offline pods may have the node's `mounts`; `config` says the rest."""
        allowed: Config = {"hardening": {"allow": [{"label": CLASS, "equals": "offline"}]}} if self.mounts else {}
        self.proxy.configure({"colocation": {"enabled": True}, **allowed, **config})
        self.proxy.start()

    def start_pod(
        self,
        name: str,
        command: Sequence[str] = FOREVER,
        cores: float | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> Pod:
        """A pod with a container. Its name begins with its class; `cores` is the container's CPU limit."""
        kind = name.partition("-")[0]
        qos = "burstable" if kind == "online" else "besteffort"
        limited = None
        if cores is not None:
            limited = cri.LinuxContainerResources(cpu_period=100_000, cpu_quota=int(cores * 100_000))
        return self.run(kind, name, command, qos=qos, annotations=annotations, container={"resources": limited}).pod

    # --- what is seen of it ---

    def moves(self) -> list[tuple[str, str]]:
        """The ladder's, oldest first: the resource and its new rung."""
        return [(one["resource"], one["new"]) for one in self.proxy.events() if one["event"] == "ladder"]

    def last_reason(self) -> str:
        return str(self.harm()["moves"][0]["transition"]["reason"])

    def rung(self, resource: str) -> str:
        return str(self._rung(resource)["rung"])

    def is_below_the_prediction(self, resource: str) -> bool:
        """Convicted, and held to less than the prediction since: the experiment's floor is over."""
        found = self._rung(resource)
        return found["rung"] in ("squeezed", "closed") and found["share"] < 1.0

    def _rung(self, resource: str) -> Any:
        return next(one for one in self.harm()["rungs"] if one["resource"] == resource)

    def harm(self) -> Any:
        return self.proxy.status()["interference"]

    def signal(self, name: str) -> Any:
        return next((one for one in self.harm()["signals"] if one["name"] == name), None)

    def value(self, name: str) -> float:
        """A signal's; 0 where it has none now."""
        found = self.signal(name)
        return 0.0 if found is None else found["value"] or 0.0

    def is_well(self) -> bool:
        """What online pods say of themselves; nothing is not well."""
        percents = [one["percent"] for one in self.proxy.status()["services"]]
        return percents != [] and all(one is not None and one <= 100.0 for one in percents)


@contextlib.contextmanager
def own_word(measure: Callable[[], float]) -> Iterator[int]:
    """A server of online's, on the node's network, whose pages are this measure; its port."""

    class Word(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with contextlib.suppress(ConnectionError):  # whoever has asked does not wait any more
                self.send_response(200)
                self.end_headers()
                self.wfile.write(f"{measure():.0f}\n".encode())

        def log_message(self, *_: object) -> None:
            """Not into the test's output."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Word) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()
