"""Finds the offline pods that started outside the box, reports them, and stops them when the config says so.

They started past criproxy (in a bypass, or before it was there) or while colocation was off. What such a pod runs
stays where it is until the pod starts anew. It is looked for with each listing of the runtime.

**What was online when it started is never stopped**, whatever the config says of it now: a rule that matches more than
its author meant would stop every pod of the node. Labels and annotations of a sandbox never change, so with the rules
that held before, the pods are known that only a change of the rules has made offline. Rules and pods are kept in a file
beside criproxy's socket: it outlives a restart, also one with other rules, and no boot, as no pod does.

A pod whose disruption budget does not let it go now stays until it does.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct, field
from structlog.typing import FilteringBoundLogger

from criproxy.cgroup.driver import CgroupError
from criproxy.concurrency import statefile
from criproxy.concurrency.clock import Wake
from criproxy.concurrency.worker import Worker
from criproxy.hooks.offline import OfflineRules
from criproxy.model import Pod, PodRef
from criproxy.model.shown import Gauge, listed
from criproxy.pods.inventory import PodObserver
from criproxy.pods.part import NodeSettings, Part, Ports
from criproxy.pods.shared import PodsShared
from criproxy.pods.stopping import ON_UNBOUNDED, Leave, PodStopper

_MOST_BYTES: Final = 1 << 20
"""Of the file; a real one has less than a hundred bytes for each pod, and the rules."""

_WHY: Final = "it is offline and runs outside the box"


class WasOnline(Struct, frozen=True):
    """The `rules` that held last, and the sandboxes outside the box that they, or rules before them, found `online`."""

    rules: OfflineRules | None = None
    online: frozenset[str] = frozenset()

    def now(self, rules: OfflineRules, outside: Mapping[str, Pod]) -> "WasOnline":
        """The same, when these pods run and these rules hold."""
        online = self.online & outside.keys()
        if self.rules is not None and self.rules != rules:
            online |= {one for one, pod in outside.items() if self.rules.why(pod) is None}
        return WasOnline(rules, online)


class WasOnlineFile(Struct):
    """What outlives a restart of `WasOnline`."""

    path: Path
    worker: Worker
    log: FilteringBoundLogger

    async def read(self, rules: OfflineRules, outside: Mapping[str, Pod]) -> WasOnline:
        """As it was left; nothing, where there is no such file. Raises OSError and CgroupError.

        Where a file is damaged, nobody knows who was online, so all that run now are taken for it.
        """
        try:
            data = await self.worker.run("read which pods were online", partial(statefile.read, self.path, _MOST_BYTES))
            return msgspec.json.decode(data, type=WasOnline)
        except FileNotFoundError:
            return WasOnline()
        except ValueError as error:
            self._trouble("read", str(error))
            return WasOnline(rules, frozenset(outside))

    async def write(self, started: WasOnline) -> None:
        """A failure is logged: this process remembers it all the same."""
        try:
            await self.worker.run(
                "write which pods were online",
                lambda: statefile.write(self.path, msgspec.json.encode(started), durable=False),
            )
        except (OSError, CgroupError) as error:
            self._trouble("written", str(error))

    def _trouble(self, what: str, error: str) -> None:
        self.log.warning("online_pods_not_kept", file=str(self.path), error=f"it can't be {what}: {error}")


class UnboundedPods(PodObserver, Part, Struct, eq=False):
    """The offline pods that started outside the box.

    `rules` tell which pods are offline; None: none is sought, since none is bounded now.
    """

    NAME = "stopping offline pods that run outside the box"
    GAUGES = (Gauge("unbounded_pods", "Offline pods that run outside the box", lambda part: len(part.pods())),)

    shared: PodsShared
    stopper: PodStopper
    file: WasOnlineFile
    rules: OfflineRules | None = None
    _started: WasOnline | None = None
    """None: not read yet."""
    _logged: frozenset[str] = frozenset()
    _wake: Wake = field(default_factory=Wake)

    def __post_init__(self) -> None:
        self.shared.inventory.watch(self)

    @classmethod
    def made(cls, ports: Ports) -> "UnboundedPods":
        file = WasOnlineFile(ports.run_path.with_suffix(".online"), ports.workers["pods-online"], ports.shared.log)
        return cls(ports.shared, ports.shared.stopper(), file)

    def configure(self, now: NodeSettings) -> None:
        self.rules = now.config.colocation.offline_rules() if now.relieves else None
        self._wake.set()

    def pods_listed(self) -> None:
        self._wake.set()

    def cease(self) -> None:
        self.stopper.cease()

    @property
    def wake(self) -> Wake:
        return self._wake

    def pods(self) -> dict[str, PodRef]:
        """Who they are, by sandbox id. Any thread may call it."""
        stopped = self.stopper.stopped
        return {sandbox_id: ref for sandbox_id, (ref, _) in self._found().items() if sandbox_id not in stopped}

    async def look(self) -> None:
        """Log those that are new, and stop them. Raises what `Runtime.stop` does, after all were tried."""
        if not (self.shared.runtime.ready and self.shared.inventory.places_known):
            return
        online, found = await self._online(), self._found()
        for sandbox_id, (pod, why) in found.items():
            if sandbox_id not in self._logged:
                was = sandbox_id in online
                self.shared.log.warning(
                    "offline_pod_unbounded", pod=str(pod), pod_uid=pod.uid, offline_because=why, was_online=was
                )
        self._logged = frozenset(found)
        leaves = {one: Leave(pod, _WHY, ON_UNBOUNDED) for one, (pod, _) in found.items() if one not in online}
        wanted = {one: leave for one, leave in leaves.items() if self.stopper.stands(leave)}
        await self.stopper.stop_all(wanted, patient=wanted.keys())

    async def _online(self) -> frozenset[str]:
        """The sandboxes outside the box that were online when they started."""
        if (rules := self.rules) is None:
            return frozenset()
        outside = self.shared.inventory.outside
        before = await self.file.read(rules, outside) if self._started is None else self._started
        self._started = before.now(rules, outside)
        if self._started != before:
            await self.file.write(self._started)
        return self._started.online

    def section(self) -> Mapping[str, Any]:
        return {"unbounded": tuple(str(pod) for pod in self.pods().values())}

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        yield from self.stopper.problems()
        if unbounded := len(self.pods()):
            yield f"{unbounded} offline pods run outside the box"

    def rows(self) -> Iterator[tuple[str, ...]]:
        if pods := [str(pod) for pod in self.pods().values()]:
            yield "unbounded", f"{len(pods)} offline pods run outside the box (colocation.on_unbounded)", *listed(pods)

    def _found(self) -> dict[str, tuple[PodRef, str]]:
        if (rules := self.rules) is None:
            return {}
        judged = ((sandbox_id, pod.ref, rules.why(pod)) for sandbox_id, pod in self.shared.inventory.outside.items())
        return {sandbox_id: (ref, why) for sandbox_id, ref, why in judged if why is not None}
