"""Finds out whether kubelet calls criproxy at all: while it does not, its offline pods start without bounds."""

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from criproxy.concurrency.worker import Worker
from criproxy.model import AttachStatus
from criproxy.model.modes import Mode
from criproxy.pods.part import NodeSettings, Part, Ports


class AttachmentWatch(Part, Struct, eq=False):
    """Only where something is published to Kubernetes, which else sends pods here; NRI's front tells of itself.

    `listen`: the socket that kubelet is to use. `found` is kept while no kubelet runs.
    """

    NAME = "finding out whether kubelet uses criproxy"
    EVERY_S = 30.0
    SLACK_S = 5.0

    listen: str
    reader: Worker
    found: AttachStatus = AttachStatus("unknown", "not looked at yet")
    asks: bool = False
    root: Path = Path("/")

    @classmethod
    def made(cls, ports: Ports) -> "AttachmentWatch":
        return cls(str(ports.run_path), ports.workers["kubelets-config"])

    def configure(self, now: NodeSettings) -> None:
        self.asks = now.config.kubernetes.enabled and now.config.proxy.front == "cri"

    async def look(self) -> None:
        if not self.asks:
            return
        from criproxy.kubelet.attachment import attachment  # only who asks needs it

        found = await self.reader.run("read which endpoint kubelet uses", lambda: attachment(self.listen, self.root))
        if found.state != "unknown":
            self.found = found

    def modes(self) -> Mapping[Mode, str]:
        if not self.asks or self.found.state != "no":
            return {}
        return {Mode.NOT_CALLED: f"no new offline pod would be bounded: {self.found.where}"}
