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
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct, field

from criproxy.concurrency import statefile
from criproxy.concurrency.clock import Wake
from criproxy.concurrency.worker import Worker
from criproxy.fronts.nri.front import INDEX
from criproxy.fronts.sentry.plugin import RULES, SENTRY
from criproxy.hooks.offline import OfflineRules, Rule
from criproxy.model.modes import Mode
from criproxy.pods.part import NodeSettings, Part, Ports
from criproxy.pods.shared import PodsShared
from criproxy.vocabulary.names import PLUGIN


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


PLUGINS: Final = "/opt/nri/plugins"
"""Where runtimes look for plugins, unless their config says otherwise."""

NAMES: Final = (f"{INDEX}-{PLUGIN}", f"99-{SENTRY}")
"""Launcher and sentry. The runtime calls plugins in the order of their names."""

SentryState = Literal["off", "on", "not started", "not known"]
"""Not started: it is switched on, and the runtime has none. Not known: it is switched on, and the runtime's
processes can't be seen.
"""


class SentryRules(Part, Struct, eq=False):
    """Writes `file`, if it is there, whenever it has something else to say, and looks whether the runtime has a sentry.

    `rules` None: nobody is placed for now. `starts`: the files are there by which the runtime's next start brings
    launcher and sentry.
    """

    NAME = "keeping the orders of the runtime's sentry"
    EVERY_S = 10.0
    SLACK_S = 10.0

    file: Path
    worker: Worker
    shared: PodsShared
    rules: OfflineRules | None = None
    proc: Path = Path("/proc")
    plugins: Path = Path(PLUGINS)
    state: SentryState = "off"
    starts: bool = False
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
        self.state, self.starts = await self.worker.run("write the sentry's orders", lambda: self._looked(job))

    def _looked(self, keep: Callable[[], bool]) -> tuple[SentryState, bool]:
        """What `state` and `starts` are now. Raises OSError."""
        if not keep():
            return "off", False
        return _state(self.proc, self.shared.runtime.pid), all((self.plugins / name).exists() for name in NAMES)

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


def _state(proc: Path, pid: int) -> SentryState:
    """Whether a process has a sentry for a child; `pid` 0: not known.

    Source: proc_pid_task(5), children; CONFIG_PROC_CHILDREN.
    """
    files = list((proc / str(pid) / "task").glob("*/children"))
    for file in files:
        with contextlib.suppress(OSError):  # a thread, or a child, has ended
            for child in file.read_text().split():
                with contextlib.suppress(OSError):
                    if f"-{SENTRY}\0".encode() in (proc / child / "cmdline").read_bytes():
                        return "on"
    return "not started" if files else "not known"


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
