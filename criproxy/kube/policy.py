"""The node's policy: settings that the cluster's side writes into annotations of the Node, above the node's own file.

How it works
------------
`criproxy.vocabulary.policy` shows the annotations: the first two, policy and policies, are written by the controller,
the third, policy-status, by the node. The first annotation says it all together; the second has the same as the *parts*
that it was made of, the one that wins last. It counts only while its parts together make the first: a controller of
before writes none, nor do people who write the first by hand. A node of before reads the first alone.

A policy is *accepted* when the file, as it was when last in order, and it together have no error. Where they have one,
each part is tried by itself: one that is refused holds up no other. It is left out, or, where a part of its name was in
force before, that one goes on in its place, so that a mistake in the cluster's switch does not turn it off. If it says
that colocation is off, that holds in either case, as a part of its own (`_SWITCH`): an emergency may come amid an
upgrade, in a policy with a key that this node does not know yet. Without known parts, the old policy stays in force as
a whole. What is wrong is reported: in the annotation, the log and the status. What was accepted, the whole or its
parts, then has this life:

- it is in force from the next reload on, also while the file has an error;
- it is written to disk, so that a node without an API server starts with it. While it can't be (a full disk), it is in
  force all the same, the trouble is reported, and it is tried again;
- an annotation that was removed is a policy without settings: the file alone holds;
- what only the node's own file may say (`NODES_OWN`: which pods are offline, which are stopped) has no effect, whoever
  has written it there; the report and the status name it;
- while the file has had errors since criproxy began, no policy is accepted, as there is nothing to lay it above;
- a Node that is gone, or an API server that is away, changes nothing.

The report is written when it differs from what the Node has, and never because of anything else: no loop of patches.
"""

import asyncio
import contextlib
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar

import msgspec
from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from criproxy.concurrency import statefile
from criproxy.concurrency.clock import Clock
from criproxy.concurrency.worker import Apart
from criproxy.config import Override, OwnFiles, switched_off
from criproxy.kube.client import MERGE_PATCH, ApiRequest, Asks, UnreachableError
from criproxy.kube.objects import Node, annotations_patch, path, status_of
from criproxy.kube.retry import Meaning, pause_s
from criproxy.vocabulary.names import POLICIES, POLICY, POLICY_STATUS
from criproxy.vocabulary.policy import MAX_POLICY_BYTES, MOST_DEEP, NodePolicy, PolicyReport, is_deep, merged, split

T = TypeVar("T")

MAX_PROBLEMS: Final = 5
MAX_PROBLEM: Final = 300
MAX_REASONS: Final = 20
"""Of so many parts, the report says why they are refused; of more, the names."""

_DISK_S: Final = 15.0

_SWITCH: Final = "/switch"
"""It ends the name of a part that is what a refused one says of the switch alone. No policy has a name with a slash."""


class PolicyError(ValueError):
    """The annotation is no policy."""


def _override(policy: NodePolicy) -> Override:
    said = f"policy {policy.name or 'without a name'} ({policy.version or 'without a version'})"
    return Override(said, split(policy.settings)[0])


class InForce(Struct, frozen=True):
    """What holds above the file: `policy`, and the parts that it was made of, the one that wins last.

    No parts: they are not known, or there are none.
    """

    policy: NodePolicy = NodePolicy()
    parts: tuple[NodePolicy, ...] = ()

    @property
    def overrides(self) -> tuple[Override, ...]:
        return tuple(_override(one) for one in self.parts or (self.policy,) if one.settings)

    @property
    def ignored(self) -> tuple[str, ...]:
        """The keys that only the node's own file may have (`NODES_OWN`)."""
        return split(self.policy.settings)[1]


NONE: Final = InForce()
"""The file alone holds."""


class PolicyStatus(Struct, frozen=True):
    """For people. `problems` are of what was refused or ignored; `trouble`: it can't be checked, kept or reported."""

    name: str
    version: str
    keys: tuple[str, ...]
    problems: tuple[str, ...]
    trouble: str


def parsed(text: str) -> NodePolicy:
    """The annotation's value. Raises PolicyError."""
    if len(text.encode(errors="replace")) > MAX_POLICY_BYTES:
        raise PolicyError(f"it has more than {MAX_POLICY_BYTES} bytes")
    try:
        found = msgspec.json.decode(text, type=NodePolicy)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise PolicyError(f"it is no policy: {str(error)[:200]}") from error
    if is_deep(found.settings):
        raise PolicyError(f"its settings are nested more than {MOST_DEEP} levels deep")
    return found


def parts_of(text: str, policy: NodePolicy) -> tuple[NodePolicy, ...]:
    """The parts that `policy` was made of; (): the text does not say."""
    if len(text.encode(errors="replace")) > MAX_POLICY_BYTES:
        return ()
    try:
        parts = msgspec.json.decode(text, type=tuple[NodePolicy, ...])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return ()
    return parts if merged(part.settings for part in parts) == policy.settings else ()


def _joined(version: str, parts: Sequence[NodePolicy]) -> NodePolicy:
    name = "+".join(f"{part.name}.{part.version}" for part in parts)
    return NodePolicy(version, name, merged(part.settings for part in parts))


def bounded(problems: list[str]) -> tuple[str, ...]:
    shown = [problem[:MAX_PROBLEM] for problem in problems[:MAX_PROBLEMS]]
    more = len(problems) - len(shown)
    return (*shown, f"{more} more") if more else tuple(shown)


def report_of(node: Node) -> str | None:
    return node.annotation(POLICY_STATUS)


class PolicyFile:
    """What was accepted last, on disk: the policy, and its parts in a file beside it. Its methods block.

    The two are as the two annotations: a criproxy of before reads the first, and parts count only with the policy that
    they make.
    """

    def __init__(self, file: Path) -> None:
        self.path: Final = file
        self._parts: Final = file.with_name("policies.json")

    def read(self) -> InForce:
        """Raises OSError, or PolicyError for a file that is not one of ours."""
        try:
            policy = parsed(_read(self.path))
        except FileNotFoundError:
            return NONE
        with contextlib.suppress(OSError):
            return InForce(policy, parts_of(_read(self._parts), policy))
        return InForce(policy)

    def write(self, in_force: InForce) -> None:
        """The old policy or the new one is there, whole, whenever the power fails. Raises OSError."""
        statefile.write(self._parts, msgspec.json.encode(in_force.parts))
        statefile.write(self.path, msgspec.json.encode(in_force.policy))


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(MAX_POLICY_BYTES + 1).decode(errors="replace")


class Judged(Struct, frozen=True):
    """What the node makes of the annotations: `in_force` is to hold, None: what held before.

    `problems` are of what is refused, `refused` of the parts among it.
    """

    policy: NodePolicy = NodePolicy()
    in_force: InForce | None = None
    problems: tuple[str, ...] = ()
    refused: Mapping[str, str] = {}


class TakesPolicy(Protocol):
    """Whoever puts settings in force: the daemon's reload."""

    def policy_changed(self) -> None:
        """To be called when `PolicyFollower.in_force` is another one."""


class PolicyFollower:
    """Follows the Node's annotations."""

    def __init__(
        self,
        client: Asks,
        node: str,
        files: tuple[OwnFiles, Path],
        taker: TakesPolicy,
        *,
        clock: Clock,
        rng: random.Random,
        log: FilteringBoundLogger,
    ) -> None:
        """`files` are the config's, which whoever puts settings in force reads, and where the policy is remembered."""
        self._client = client
        self._node = node
        self._own, self._file = files[0], PolicyFile(files[1])
        self._files = Apart("policy", _DISK_S)
        self._checks = Apart("policy-check", _DISK_S)
        """Apart from the files: a disk that hangs must not keep the cluster's switch from being in force."""
        self._taker = taker
        self._clock = clock
        self._rng = rng
        self._log = log
        self._newest: Node | None = None
        self._changed = asyncio.Event()
        self._judged: tuple[str, str] | None = None
        """The annotations' texts that were looked at last; None: none were."""
        self._report: PolicyReport | None = None
        self._trouble = ""
        self._kept: InForce | None = None
        """What is on disk; None: it could not be read."""
        self.in_force = NONE

    def status(self) -> PolicyStatus:
        in_force = NONE if self._own.errors else self.in_force  # without a file in order, none holds
        policy, settings = in_force.policy, split(in_force.policy.settings)[0]
        keys = (f"{section}.{key}" for section, table in settings.items() for key in table)
        ignored = (f"{key}: only this node's own file may set it: it has no effect" for key in in_force.ignored)
        problems = (*(self._report.problems if self._report else ()), *ignored)
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
            self.in_force = self._kept = await self._files.run("read the policy", self._file.read)
        except (OSError, PolicyError) as error:
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
            left_s = pause_s(failures, self._rng.random()) if failed else None

    async def look(self) -> bool:
        """Judge the newest annotations, keep and report them. Whether something failed that should be tried again."""
        node = self._newest
        if node is None:
            return False
        texts = node.annotation(POLICY) or "", node.annotation(POLICIES) or ""
        if texts != self._judged:
            try:
                await self._judge(*texts)
            except TimeoutError as error:
                return self._failed(f"the policy can't be checked: {error}")
        trouble = "; ".join(filter(None, (await self._keep(), await self._tell(node))))
        if trouble:
            return self._failed(trouble)
        self._trouble = ""
        return False

    async def _judge(self, text: str, parts_text: str) -> None:
        found = Judged(in_force=NONE)
        if text:
            found = await self._checks.run("check the policy", lambda: self._checked(text, parts_text))
        self._judged = text, parts_text
        taken = found.in_force if found.in_force is not None and found.in_force != self.in_force else None
        if taken is not None:
            self.in_force = taken
        before, self._report = self._report, self._reported(text, found)
        if found.problems and self._report != before:
            version, holds = found.policy.version, self._holds(found)
            self._log.error("policy_refused", version=version, problems=list(found.problems), consequence=holds)
        if taken is not None:
            version, name, keys = taken.policy.version, taken.policy.name, list(self.status().keys)
            self._log.info("policy_taken", version=version, name=name, settings=keys)
            if taken.ignored:
                self._log.warning("policy_keys_ignored", version=version, name=name, settings=list(taken.ignored))
            self._taker.policy_changed()

    def _holds(self, found: Judged) -> str:
        """In words, what holds where something was refused."""
        if self._own.errors:
            return "no policy holds before the file is in order"
        policy = self.in_force.policy
        if found.refused:
            return f"{policy.name} holds" if policy.name else "the file holds"
        return f"version {policy.version} holds" if policy.version else "the file holds"

    def _checked(self, text: str, parts_text: str) -> Judged:
        """Blocks."""
        try:
            policy = parsed(text)
        except PolicyError as error:
            return Judged(problems=bounded([str(error)]))
        if own := self._own.errors:
            found = ["this node's own file has had errors since criproxy began", *map(str, own)]
            return Judged(policy, problems=bounded(found))
        parts = parts_of(parts_text, policy)
        refused = self._own.refused([_override(one) for one in parts or (policy,)])
        if not refused:
            return Judged(policy, InForce(policy, parts))
        if not parts:
            return Judged(policy, problems=bounded([str(error) for one in refused for error in one.errors]))
        return self._sifted(policy, parts)

    def _sifted(self, policy: NodePolicy, parts: tuple[NodePolicy, ...]) -> Judged:
        """With what was in force before in place of parts that are refused, and with their switch. Blocks."""
        former = {one.name: one for one in self.in_force.parts}
        left, problems, why = list(parts), list[str](), dict[str, str]()
        while refused := self._own.refused([_override(one) for one in left]):
            for one in refused:
                at = [_override(part) for part in left].index(one.override)
                bad = left[at]
                if bad.name not in why:  # else it is the one before that does not fit any more
                    words = [str(error) for error in one.errors]
                    problems += words
                    why[bad.name] = "; ".join(words)[:MAX_PROBLEM] if len(why) < MAX_REASONS else ""
                before = former.pop(bad.name, bad)
                instead = [] if before == bad else [before]
                switch = switched_off(bad.settings)
                if switch and not bad.name.endswith(_SWITCH) and not any(switched_off(one.settings) for one in instead):
                    instead.append(NodePolicy(bad.version, f"{bad.name}{_SWITCH}", switch))
                left[at : at + 1] = instead
        return Judged(policy, InForce(_joined(policy.version, left), tuple(left)), bounded(problems), why)

    def _reported(self, text: str, found: Judged) -> PolicyReport | None:
        """None: there is nothing to report of."""
        if not text:
            return None
        before = self.in_force.policy
        another = found.in_force is None and found.policy != before and not self._own.errors
        instead = before.version if another else ""
        ignored = split(found.policy.settings)[1]
        return PolicyReport(found.policy.version, not found.problems, found.problems, instead, found.refused, ignored)

    async def _keep(self) -> str:
        """Write what is in force to disk, unless it is there. Returns what went wrong; "": nothing."""
        in_force = self.in_force
        if in_force != self._kept:
            try:
                await self._files.run("keep the policy", lambda: self._file.write(in_force))
            except OSError as error:
                return f"the policy is in force, but can't be kept for a restart ({self._file.path}): {error}"
            self._kept = in_force
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
