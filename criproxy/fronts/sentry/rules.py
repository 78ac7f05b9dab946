"""Keeps the sentry's rules: which pods are offline by the config in force, in a file that outlives criproxy and a boot.

The file is there while the sentry is on (`criproxy sentry on`); without it the sentry lets everything by.
"""

import contextlib
import os
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct, field

from criproxy.concurrency.clock import Wake
from criproxy.concurrency.worker import Worker
from criproxy.control import statefile
from criproxy.fronts.sentry.plugin import RULES
from criproxy.hooks.offline import OfflineRules
from criproxy.model.modes import Mode
from criproxy.pods.part import NodeSettings, Part, Ports


def rules_file(rules: OfflineRules | None) -> bytes:
    """What the file has to say; None: for now, no pod is offline."""
    return msgspec.json.format(msgspec.json.encode(() if rules is None else rules.every), indent=1) + b"\n"


class SentryRules(Part, Struct, eq=False):
    """Writes `file`, if it is there, whenever what is offline has changed; looks once a minute whether it is right."""

    NAME = "keeping the rules of the runtime's sentry"
    EVERY_S = 60.0
    SLACK_S = 10.0

    file: Path
    worker: Worker
    _content: bytes = b""
    _wake: Wake = field(default_factory=Wake)

    @classmethod
    def made(cls, ports: Ports) -> "SentryRules":
        return cls(Path(RULES), ports.workers["sentry-rules"])

    def configure(self, now: NodeSettings) -> None:
        places = now.config.proxy.front == "nri" and now.modes.judges and Mode.DRY_RUN not in now.modes
        content = rules_file(now.config.colocation.offline_rules() if places else None)
        if content != self._content:
            self._content = content
            self._wake.set()

    @property
    def wake(self) -> Wake:
        return self._wake

    async def look(self) -> None:
        await self.worker.run("write the sentry's rules", partial(_write, self.file, self._content))


def _write(file: Path, content: bytes) -> None:
    """Raises OSError; then the file is as it was."""
    try:
        if file.read_bytes() == content:
            return
    except FileNotFoundError:
        return
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
