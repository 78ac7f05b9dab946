"""Finds out whether kubelet calls criproxy at all: while it does not, its offline pods start without bounds."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from msgspec import Struct

from criproxy.concurrency.worker import Worker
from criproxy.model import AttachStatus, Counters
from criproxy.model.modes import Mode
from criproxy.pods.part import NodeSettings, Part, Ports


class AttachmentWatch(Part, Struct, eq=False):
    """Only where something is published to Kubernetes, which else sends pods here; NRI's front tells of itself.

    What calls is believed before kubelet's files, which can say no where it does: it may run below a wrapper, or have
    links on its way. `listen`: the socket that kubelet is to use. `found` is kept while no kubelet runs. `asks` None:
    it is not known yet; both settings that it goes by are taken up by a restart alone.
    """

    NAME = "finding out whether kubelet uses criproxy"
    EVERY_S = 30.0
    SLACK_S = 5.0
    FIRST_S = 10.0

    listen: str
    reader: Worker
    counters: Counters
    found: AttachStatus = AttachStatus("unknown", "not looked at yet")
    asks: bool | None = None
    root: Path = Path("/")
    _calls: int = 0

    CALLS: ClassVar[int] = 5
    """So many between two looks are kubelet's, which makes one a second and more; people make fewer."""

    @classmethod
    def made(cls, ports: Ports) -> "AttachmentWatch":
        return cls(str(ports.run_path), ports.workers["kubelets-config"], ports.shared.counters)

    def configure(self, now: NodeSettings) -> None:
        if self.asks is None:
            self.asks = now.config.kubernetes.enabled and now.config.proxy.front == "cri"

    async def look(self) -> None:
        if not self.asks:
            return
        calls, self._calls = self.counters.calls - self._calls, self.counters.calls
        if calls >= self.CALLS:
            self.found = AttachStatus("yes", "it calls")
            return
        from criproxy.kubelet.attachment import attachment  # only who asks needs it

        found = await self.reader.run("read which endpoint kubelet uses", lambda: attachment(self.listen, self.root))
        if found.state != "unknown":
            self.found = found

    def modes(self) -> Mapping[Mode, str]:
        if not self.asks or self.found.state != "no":
            return {}
        return {Mode.NOT_CALLED: f"no new offline pod would be bounded: {self.found.where}"}
