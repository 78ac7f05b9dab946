"""Finds out whether kubelet calls criproxy at all: while it does not, its offline pods start without bounds."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from msgspec import Struct

from criproxy.concurrency.worker import Worker
from criproxy.model import AttachStatus, Counters
from criproxy.model.modes import Mode
from criproxy.pods.part import NodeSettings, Part, Ports


class AttachmentWatch(Part, Struct, eq=False):
    """What calls is believed before kubelet's files, which can say no where it does: it may run below a wrapper.

    `listen`: the socket that kubelet is to use. `found` is kept while no kubelet runs; it is looked for only where
    kubelet is to call and something is published to Kubernetes (`publishes`), which else sends pods here. `front` "":
    it is not known yet; both are taken up by a restart alone. NRI's front tells of itself; beside it, a kubelet that
    calls is a problem.

    A "yes" of kubelet's files counts at once; all else is known once calls were counted from one look to the next.
    """

    NAME = "finding out whether kubelet uses criproxy"
    EVERY_S = 30.0
    FIRST_S = 1.0
    """Before anything is published (`criproxy.daemon.kubernetes`)."""

    listen: str
    reader: Worker
    counters: Counters
    found: AttachStatus = AttachStatus("unknown", "not looked at yet")
    front: str = ""
    publishes: bool = False
    called: bool = False
    """Whether calls came between the last two looks."""
    root: Path = Path("/")
    known: bool = False
    """Whether it is known by now if kubelet calls."""
    _calls: int | None = None
    """Those that had ended by the last look; None: there was none since the parts began."""

    CALLS: ClassVar[int] = 3
    """So many calls of Status between two looks are kubelet's, which makes one each 5 s and more rarely where the
    runtime is slow. Agents that watch containers list them, and people's tools make few calls of it.
    Source: kubelet, pkg/kubelet/kubelet.go (updateRuntimeUp).
    """

    @classmethod
    def made(cls, ports: Ports) -> "AttachmentWatch":
        return cls(str(ports.run_path), ports.workers["kubelets-config"], ports.shared.counters)

    def configure(self, now: NodeSettings) -> None:
        if not self.front:
            self.front = now.front
            self.publishes = now.config.kubernetes.enabled and self.front == "cri"

    async def look(self) -> None:
        before, self._calls = self._calls, self.counters.status_calls
        if before is not None:
            self.called, self.known = self._calls - before >= self.CALLS, True
        if self.called:
            self.found = AttachStatus("yes", "it calls")
        elif self.publishes:
            found = await self.reader.run("read which endpoint kubelet uses", self.told)
            self.found = found if found.state != "unknown" else self.found
            self.known = self.known or found.state == "yes"

    def cease(self) -> None:
        self._calls = None

    def told(self) -> AttachStatus:
        """How it is now, for a thread, as it reads files of kubelet's."""
        if self.front == "nri":
            if self.called:
                return AttachStatus("yes", "it calls")
            return AttachStatus("unknown", 'kubelet need not use criproxy: proxy.front = "nri"')
        from criproxy.kubelet.attachment import attachment  # only who asks needs it

        found = attachment(self.listen, self.root)
        if found.state == "yes" or not self.called:
            return found
        return AttachStatus("yes", f"it calls, whatever is found of its settings: {found.where}")

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.front == "nri" and self.called:
            yield (
                'kubelet calls criproxy, and proxy.front = "nri": its calls pass unchanged, the runtime\'s decide; a '
                'node has one front: `criproxy detach`, or set proxy.front = "cri" and restart criproxy'
            )

    def knows_modes(self) -> bool:
        return self.known or not self.publishes

    def modes(self) -> Mapping[Mode, str]:
        if not self.publishes or not self.known or self.found.state != "no":
            return {}
        return {Mode.NOT_CALLED: f"no new offline pod would be bounded: {self.found.where}"}
