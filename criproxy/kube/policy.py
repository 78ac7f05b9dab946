"""The node's policy: settings that the cluster's side writes into an annotation of the Node, above the node's own file.

How it works
------------
    colocation.criproxy.io/policy         {"version": "7", "name": "night", "settings": {"cpu": {"reserve_cores": 2}}}
    colocation.criproxy.io/policy-status  {"version": "7", "inForce": true, "problems": []}

The first is written by the controller, the second by the node. `settings` has the sections and keys of the config file.
A policy is *accepted* when the file, as it was when last in order, and it together have no error. Then

- it is in force from the next reload on, also while the file has an error;
- it is written to disk, so that a node without an API server starts with it. While it can't be (a full disk), it is in
  force all the same, the trouble is told, and it is tried again;
- else the old one stays in force, and what is wrong is reported: in the annotation, the log and the status;
- an annotation that was removed is a policy without settings: the file alone holds;
- while the file has had errors since criproxy began, no policy is accepted, as there is nothing to lay it above;
- a Node that is gone, or an API server that is away, changes nothing.

The report is written when it differs from what the Node has, and never because of anything else: no loop of patches.
"""

import asyncio
import contextlib
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import msgspec
from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from criproxy.cgroup.worker import StuckError, Worker
from criproxy.config import Override, OwnFiles
from criproxy.control.clock import Clock
from criproxy.kube.client import MERGE_PATCH, ApiRequest, Asks, UnreachableError
from criproxy.kube.objects import Node, annotations_patch, path, status_of
from criproxy.kube.retry import Meaning, pause_s

T = TypeVar("T")

POLICY: Final = "colocation.criproxy.io/policy"
POLICY_STATUS: Final = "colocation.criproxy.io/policy-status"

MAX_POLICY_BYTES: Final = 64 * 1024
"""All annotations of an object together have 256 KiB. Source: apimachinery, TotalAnnotationSizeLimitB."""

MAX_PROBLEMS: Final = 5
MAX_PROBLEM: Final = 300

_DISK_S: Final = 15.0


class PolicyError(ValueError):
    """The annotation is no policy."""


class Policy(Struct, frozen=True, forbid_unknown_fields=True):
    """`version` and `name` are the controller's, for people. `settings` are sections of the config file.

    A key that is misspelled must not make it a policy without settings.
    """

    version: str = ""
    name: str = ""
    settings: Mapping[str, Any] = {}

    @property
    def override(self) -> Override:
        return Override(
            f"policy {self.name or 'without a name'} ({self.version or 'without a version'})", self.settings
        )


NONE: Final = Policy()
"""The file alone holds."""


class PolicyReport(Struct, frozen=True, rename="camel"):
    """What the node says of the policy that it was given last. `problems`: why it is not in force."""

    version: str
    in_force: bool
    problems: tuple[str, ...] = ()
    instead: str = ""
    """The version that is in force instead; "": the file alone."""


class PolicyStatus(Struct, frozen=True):
    """For people. `problems` are of a policy that was refused; `trouble`: it can't be checked, kept or reported."""

    name: str
    version: str
    keys: tuple[str, ...]
    problems: tuple[str, ...]
    trouble: str


def parsed(text: str) -> Policy:
    """The annotation's value. Raises PolicyError."""
    if len(text.encode(errors="replace")) > MAX_POLICY_BYTES:
        raise PolicyError(f"it has more than {MAX_POLICY_BYTES} bytes")
    try:
        return msgspec.json.decode(text, type=Policy)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise PolicyError(f"it is no policy: {str(error)[:200]}") from error


def bounded(problems: list[str]) -> tuple[str, ...]:
    shown = [problem[:MAX_PROBLEM] for problem in problems[:MAX_PROBLEMS]]
    more = len(problems) - len(shown)
    return (*shown, f"{more} more") if more else tuple(shown)


def report_of(node: Node) -> str | None:
    return node.annotation(POLICY_STATUS)


class PolicyFile:
    """The last accepted policy on disk. Its methods block."""

    def __init__(self, file: Path) -> None:
        self.path: Final = file

    def read(self) -> Policy:
        """Raises OSError, or PolicyError for a file that is not one of ours."""
        try:
            with self.path.open("rb") as file:
                data = file.read(MAX_POLICY_BYTES + 1)
        except FileNotFoundError:
            return NONE
        return parsed(data.decode(errors="replace"))

    def write(self, policy: Policy) -> None:
        """The old one or the new one is there, whole, whenever the power fails. Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f"{self.path.name}.tmp")
        with temporary.open("wb") as file:
            file.write(msgspec.json.encode(policy))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)


class TakesPolicy(Protocol):
    """Whoever puts settings in force: the daemon's reload."""

    def policy_changed(self) -> None:
        """To be called when `PolicyFollower.policy` is another one."""


class PolicyFollower:
    """Follows the Node's annotation. `policy` is in force."""

    def __init__(
        self,
        client: Asks,
        node: str,
        files: tuple[OwnFiles, Path],
        taker: TakesPolicy,
        *,
        clock: Clock,
        luck: random.Random,
        log: FilteringBoundLogger,
    ) -> None:
        """`files` are the config's, which whoever puts settings in force reads, and where the policy is remembered."""
        self._client = client
        self._node = node
        self._own, self._file = files[0], PolicyFile(files[1])
        self._taker = taker
        self._clock = clock
        self._luck = luck
        self._log = log
        self._newest: Node | None = None
        self._changed = asyncio.Event()
        self._judged: str | None = None
        """The annotation's text that was looked at last; None: none was."""
        self._report: PolicyReport | None = None
        self._trouble = ""
        self._kept: Policy | None = None
        """What is on disk; None: it could not be read."""
        self.policy = NONE

    def status(self) -> PolicyStatus:
        policy = NONE if self._own.errors else self.policy  # without a file in order, none holds
        keys = (f"{section}.{key}" for section, table in policy.settings.items() for key in table)
        problems = self._report.problems if self._report else ()
        return PolicyStatus(policy.name, policy.version, tuple(keys), problems, self._trouble)

    def saw(self, node: Node | None) -> None:
        if node is not None:  # one that is gone says nothing of its policy
            self._newest = node
            self._changed.set()

    def look_again(self) -> None:
        """The config file has changed: what was refused may be right now, or the other way round."""
        self._judged = None
        self._changed.set()

    async def remember(self) -> None:
        """Take up the policy of the last time. To be called before `run`; never raises."""
        try:
            self.policy = self._kept = await _apart("read the policy", self._file.read)
        except (OSError, RuntimeError, StuckError, PolicyError) as error:
            self._log.warning(
                "policy_not_remembered",
                file=str(self._file.path),
                error=str(error),
                consequence="the node's own file holds until the API server is there",
            )

    async def run(self) -> None:
        """Until cancelled. Nothing of it is ever given up: it is tried again, with growing pauses.

        What arrives in a pause ends it: it may be the cluster's switch.
        """
        failures, left_s = 0, None
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._changed.wait()
            self._changed.clear()
            failed = await self.look()
            failures = failures + 1 if failed else 0
            left_s = pause_s(failures, self._luck.random()) if failed else None

    async def look(self) -> bool:
        """Judge the newest annotation, keep and report it. Whether something failed that should be tried again."""
        node = self._newest
        if node is None:
            return False
        text = node.annotation(POLICY) or ""
        if text != self._judged:
            try:
                await self._judge(text)
            except (RuntimeError, StuckError) as error:
                return self._failed(f"the policy can't be checked: {error}")
        trouble = "; ".join(filter(None, (await self._keep(), await self._tell(node))))
        if trouble:
            return self._failed(trouble)
        self._trouble = ""
        return False

    async def _judge(self, text: str) -> None:
        policy, problems = NONE, tuple[str, ...]()
        if text:
            policy, problems = await _apart("check the policy", lambda: self._checked(text))
        self._judged = text
        before, self._report = self._report, self._reported(text, policy, problems)
        if problems:
            if self._report != before:
                holds = f"version {self.policy.version} holds" if self.policy.version else "the file holds"
                self._log.error(
                    "policy_refused",
                    version=policy.version,
                    problems=list(problems),
                    consequence="no policy holds before the file is in order" if self._own.errors else holds,
                )
        elif policy != self.policy:
            self.policy = policy
            self._log.info("policy_taken", version=policy.version, name=policy.name, settings=list(self.status().keys))
            self._taker.policy_changed()

    def _checked(self, text: str) -> tuple[Policy, tuple[str, ...]]:
        """Blocks."""
        try:
            policy = parsed(text)
        except PolicyError as error:
            return NONE, bounded([str(error)])
        if own := self._own.errors:
            return policy, bounded(["this node's own file has had errors since criproxy began", *map(str, own)])
        return policy, bounded([str(error) for error in self._own.added_by(policy.override)])

    def _reported(self, text: str, policy: Policy, problems: tuple[str, ...]) -> PolicyReport | None:
        """None: there is nothing to report of."""
        if not text:
            return None
        another = problems and policy != self.policy and not self._own.errors
        instead = self.policy.version if another else ""
        return PolicyReport(policy.version, not problems, problems, instead)

    async def _keep(self) -> str:
        """Write what is in force to disk, unless it is there. Returns what went wrong; "": nothing."""
        policy = self.policy
        if policy != self._kept:
            try:
                await _apart("keep the policy", lambda: self._file.write(policy))
            except (OSError, RuntimeError, StuckError) as error:
                return f"the policy is in force, but can't be kept for a restart ({self._file.path}): {error}"
            self._kept = policy
        return ""

    async def _tell(self, node: Node) -> str:
        """Make the Node's report this one. Returns what went wrong; "": nothing."""
        wanted = None if self._report is None else msgspec.json.encode(self._report).decode()
        if report_of(node) == wanted or node is not self._newest:
            return ""
        patch = annotations_patch({POLICY_STATUS: wanted})
        try:
            answer = await self._client.ask(ApiRequest("PATCH", path("nodes", self._node), patch, MERGE_PATCH))
        except UnreachableError as error:
            return f"the policy's report is not written: {error}"
        if answer.meaning is not Meaning.DONE:
            return f"the policy's report is not written: {answer.status} {status_of(answer.body).message}"
        if self._newest is node:  # the watch has not shown it yet
            with contextlib.suppress(msgspec.DecodeError):
                self._newest = msgspec.json.decode(answer.body, type=Node)
        return ""

    def _failed(self, why: str) -> bool:
        if not self._trouble:
            self._log.warning("policy_trouble", reason=why, consequence="tried again")
        self._trouble = why
        return True


async def _apart(what: str, job: Callable[[], T]) -> T:
    """In a thread that nobody waits for when the process ends. Raises what the job does, RuntimeError or StuckError."""
    worker = Worker("policy", _DISK_S)
    try:
        return await worker.run(what, job)
    finally:
        worker.close()
