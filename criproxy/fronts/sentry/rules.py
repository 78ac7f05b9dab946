"""Keeps the sentry's orders: who is offline by the config in force, in a file that outlives criproxy and a boot.

The file is there while the sentry is on (`criproxy sentry on`); without it the sentry lets everything by.

A pod keeps the placement that it started with. So when rules begin to hold, those that run outside the box by then are
let by as long as they live, with each container that starts anew: some of them were online until now.
"""

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from criproxy.concurrency import statefile
from criproxy.concurrency.clock import Wake
from criproxy.concurrency.worker import Worker
from criproxy.fronts.sentry.plugin import RULES, SENTRY
from criproxy.hooks.offline import OfflineRules, Rule
from criproxy.model.modes import Mode
from criproxy.pods.part import NodeSettings, Part, Ports
from criproxy.pods.shared import PodsShared


class SentryOrders(Struct, frozen=True):
    """Which pods are offline, and which of them are let by all the same, by sandbox id."""

    rules: tuple[Rule, ...] = ()
    let_by: tuple[str, ...] = ()

    def encode(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    def now(self, rules: tuple[Rule, ...], outside: Collection[str]) -> "SentryOrders":
        """What follows on these. `outside`: the sandboxes outside the box that match `rules`."""
        kept = self.let_by if rules == self.rules else outside
        return SentryOrders(rules, tuple(sorted(one for one in kept if one in outside)))


SentryState = Literal["off", "on", "not started"]
"""Not started: it is switched on, and the runtime has none."""


class SentryRules(Part, Struct, eq=False):
    """Writes `file`, if it is there, whenever it has something else to say, and looks whether the runtime has a sentry.

    `rules` None: nobody is placed for now.
    """

    NAME = "keeping the orders of the runtime's sentry"
    EVERY_S = 10.0
    SLACK_S = 10.0

    file: Path
    worker: Worker
    shared: PodsShared
    rules: OfflineRules | None = None
    proc: Path = Path("/proc")
    state: SentryState = "off"
    _wake: Wake = field(default_factory=Wake)

    @classmethod
    def made(cls, ports: Ports) -> "SentryRules":
        return cls(Path(RULES), ports.workers["sentry-rules"], ports.shared)

    def configure(self, now: NodeSettings) -> None:
        places = now.front == "nri" and now.modes.judges and Mode.DRY_RUN not in now.modes
        self.rules = now.config.colocation.offline_rules() if places else None
        self._wake.set()

    @property
    def wake(self) -> Wake:
        return self._wake

    async def look(self) -> None:
        rules, outside = self.rules, self.shared.inventory.outside
        if rules is None:
            job = partial(_keep, self.file, (), ())
        elif self.shared.runtime.ready and self.shared.inventory.places_known:
            matching = [one for one, pod in outside.items() if rules.why(pod) is not None]
            job = partial(_keep, self.file, rules.every, matching)
        else:
            return
        self.state = await self.worker.run("write the sentry's orders", lambda: self._looked(job))

    def _looked(self, keep: Callable[[], bool]) -> SentryState:
        """Raises OSError."""
        if not keep():
            return "off"
        return "on" if _is_parent(self.proc, self.shared.runtime.pid) else "not started"

    def section(self) -> Mapping[str, Any]:
        return {"sentry": self.state}

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.state == "not started" and self.rules is not None:
            yield (
                "the runtime has not started the sentry, or has thrown it out, so offline containers start outside the "
                "box while criproxy is away: restart the runtime (containers go on)"
            )

    def rows(self) -> Iterator[tuple[str, ...]]:
        if self.state != "off":
            yield "sentry", self.state


def _is_parent(proc: Path, pid: int) -> bool:
    """Whether a process has a sentry for a child; so it may, where that is not known (`pid` 0).

    Source: proc_pid_task(5), children; CONFIG_PROC_CHILDREN.
    """
    files = list((proc / str(pid) / "task").glob("*/children"))
    for file in files:
        with contextlib.suppress(OSError):  # a thread, or a child, has ended
            for child in file.read_text().split():
                with contextlib.suppress(OSError):
                    if f"-{SENTRY}\0".encode() in (proc / child / "cmdline").read_bytes():
                        return True
    return not files


def _keep(file: Path, rules: tuple[Rule, ...], outside: Collection[str]) -> bool:
    """Whether there is such a file. Raises OSError; then it is as it was."""
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return False
    before = SentryOrders()
    with contextlib.suppress(ValueError):
        before = msgspec.json.decode(data, type=SentryOrders)
    if (content := before.now(rules, outside).encode()) == data:
        return True
    new = file.with_suffix(".new")
    try:
        with open(new, "wb", opener=statefile.private) as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        new.rename(file)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
    return True
