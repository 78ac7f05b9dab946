"""What was learned of online, where the ladder stands, what is promised, and which pods are held or were stopped, on
disk.

It is written atomically, each minute and when the ladder moves, and read once at the start; nothing of it is fatal.

    {"crc32":"8a1c…", "version":1, "wall_s":…, "boottime_s":…, "predictors":{…}, "interference":…,
     "kubernetes":…, "holds":[…], "counted":{…}}

The checksum is of all that follows it. A bit that has flipped in a name would be a key that nobody misses, and in a
number a level that nobody had. A file of a criproxy that wrote none is read without.
"""

import asyncio
import contextlib
import errno
import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol, TypeVar

import msgspec
import structlog
from msgspec import Struct, field
from msgspec.structs import replace

from criproxy.concurrency import statefile
from criproxy.concurrency.clock import Clock, Wake
from criproxy.concurrency.worker import Apart
from criproxy.control.series import PredictorState
from criproxy.daemon.lifecycle import run_apart
from criproxy.daemon.upgrade.channel import KubernetesMemory
from criproxy.pods.interference import InterferenceState
from criproxy.pods.part import Part
from criproxy.pods.stopping import HeldPod, Holds, StopBudget
from criproxy.vocabulary.gives_back import MOST_WAIT_S

VERSION: Final = 1
WAITED_FOR_S: Final = 3.0
"""How long a slow disk keeps what may have been held back before a restart from being given back, and harm to online
from being answered.
"""

_LADDER: Final = "where the ladder stood, and what was learned of the signals of harm"

_PROMISES: Final = "what memory was promised, so that its limit waits for nobody"
_HOLDS: Final = "which pods may not start again yet"
_COUNTED: Final = "how many pods were stopped lately, so that more may go than interference.evict_most"

LAST_S: Final = 1.0
"""What the end of the process waits for the last one."""

MOST_BYTES: Final = 16 << 20
"""Of the file; a real one has some hundred kilobytes."""

MAX_AGE_S: Final = 7 * 86400.0
WALL_SLACK_S: Final = 60.0
"""Clocks are set while a machine runs; by more than this, a file is from the future or from another boot."""


_MOMENTS: Final = frozenset({"t_s", "last_s", "loss_s"})
"""Keys of states that name a moment (CLOCK_BOOTTIME), and not a time that passes."""

_CRC: Final = re.compile(rb'\{"crc32":"([0-9a-f]{8})",')


_NONE: Final = msgspec.Raw(b"null")

T = TypeVar("T")


class Document(Struct, frozen=True):
    """The file's content: when it was written, by both clocks, and a state per resource.

    `interference`, `kubernetes`, `holds` and `counted` are read each by itself: what another version wrote there costs
    nobody the rest.
    """

    version: int
    wall_s: float
    boottime_s: float
    predictors: dict[str, PredictorState]
    interference: msgspec.Raw = _NONE
    kubernetes: msgspec.Raw = _NONE
    holds: msgspec.Raw = _NONE
    counted: msgspec.Raw = _NONE


class Remembered(Struct, frozen=True):
    """What a restart keeps; `interference` or `kubernetes` None: nothing is known of it.

    `kubernetes` says what the memory limit waits for; the policy has a file of its own. `counted`: when each was to go
    that counts in the `StopBudget` (CLOCK_BOOTTIME), by sandbox id.
    """

    predictors: Mapping[str, PredictorState]
    interference: InterferenceState | None = None
    kubernetes: KubernetesMemory | None = None
    holds: tuple[HeldPod, ...] = ()
    counted: Mapping[str, float] = {}


_NOTHING: Final = Remembered({})


class Ladder(Protocol):
    """Whoever answers harm: `criproxy.pods.interference`."""

    def checkpoint(self) -> InterferenceState: ...

    def restore(self, state: InterferenceState, shift_s: float) -> None: ...


class Remembers(Protocol):
    """Whoever has learned something of online: `criproxy.pods.control_loop`. All times that come back need `shift_s`
    added.
    """

    @property
    def harm(self) -> Ladder: ...

    def predictors(self) -> Mapping[str, PredictorState]: ...

    def restore(self, predictors: Mapping[str, PredictorState], shift_s: float) -> None: ...

    def wait_for_checkpoint(self, waits: bool) -> None:
        """While it waits, no limit that may have been lowered rises."""


class GoesOn(Protocol):
    """Whoever knows what the Node will say only later: `criproxy.daemon.kubernetes`."""

    def memory(self) -> KubernetesMemory:
        """For the process after this one."""

    def go_on_by(self, before: KubernetesMemory) -> None:
        """That of the process before this one."""


class CheckpointFile(Struct):
    """One file. What can't be used is set aside as `<name>.bad`, with one line in the log."""

    path: Path
    clock: Clock
    log: structlog.typing.FilteringBoundLogger

    def write(self, states: Remembered, *, durable: bool = True) -> None:
        """The old file or the new one is there, whole, whenever the power fails; but not for long after one that is
        not `durable`, which waits for no disk unless the kernel makes it.

        Raises OSError, also when another write has begun since, whatever process it is of. Blocks.
        """
        parts = states.interference, states.kubernetes, states.holds, states.counted
        encoded = (msgspec.Raw(msgspec.json.encode(one)) for one in parts)
        document = Document(VERSION, self.clock.wall_s(), self.clock.boottime_s(), dict(states.predictors), *encoded)
        statefile.make_directory(self.path.parent)
        temporary = self.path.with_name(f"{self.path.name}.tmp")
        temporary.unlink(missing_ok=True)
        with open(temporary, "xb", opener=statefile.private) as file:
            file.write(_encode(document))
            file.flush()
            if durable:
                os.fsync(file.fileno())
            if os.fstat(file.fileno()).st_ino != temporary.stat().st_ino:
                raise OSError(errno.ESTALE, "a later checkpoint is on its way", str(temporary))
        temporary.replace(self.path)
        if durable:
            directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)

    def load(self) -> tuple[Remembered, float]:
        """The states, and what to add to their times to make them ours (0 within one boot); nothing when unusable."""
        try:
            document = _decode(statefile.read(self.path, MOST_BYTES))
            age_s = self.clock.wall_s() - document.wall_s
            if not -WALL_SLACK_S <= age_s <= MAX_AGE_S:
                raise ValueError(f"it is {age_s:.0f} s old by the wall clock, not within 0 and {MAX_AGE_S:.0f}")
            _check_moments(document.predictors, document.boottime_s + WALL_SLACK_S)
        except FileNotFoundError:
            return _NOTHING, 0.0
        except OSError as error:
            self.log.warning("checkpoint_unreadable", file=str(self.path), error=str(error), remedy="starting cold")
            return _NOTHING, 0.0
        except (ValueError, RecursionError) as error:
            self._set_aside(str(error))
            return _NOTHING, 0.0
        since_s = self.clock.boottime_s() - document.boottime_s
        shift_s = since_s - max(age_s, 0.0)
        same_boot = since_s >= 0.0 and abs(shift_s) <= WALL_SLACK_S
        kubernetes = self._part(document.kubernetes, KubernetesMemory, _PROMISES)
        holds = self._part(document.holds, tuple[HeldPod, ...], _HOLDS) or ()
        counted = self._part(document.counted, dict[str, float], _COUNTED) or {}
        remembered = Remembered(document.predictors, self._ladder(document), kubernetes, holds, counted)
        return remembered, 0.0 if same_boot else shift_s

    def _ladder(self, document: Document) -> InterferenceState | None:
        try:
            found = msgspec.json.decode(document.interference, type=InterferenceState | None)
            _check_moments(found, document.boottime_s + WALL_SLACK_S)
            return found
        except (ValueError, RecursionError) as error:
            self.log.warning("interference_starts_cold", file=str(self.path), lost=_LADDER, error=str(error))
            return None

    def _part(self, held: msgspec.Raw, kind: type[T], lost: str) -> T | None:
        """What has a place of its own in the file; None: nothing is there that can be read, so that is `lost`."""
        if bytes(held) == b"null":
            return None
        try:
            return msgspec.json.decode(held, type=kind)
        except (ValueError, RecursionError) as error:
            self.log.warning("checkpoint_part_unreadable", file=str(self.path), lost=lost, error=str(error))
            return None

    def _set_aside(self, reason: str) -> None:
        aside = self.path.with_name(f"{self.path.name}.bad")
        with contextlib.suppress(OSError):
            self.path.replace(aside)
        self.log.warning(
            "checkpoint_set_aside", file=str(self.path), to=str(aside), reason=reason, remedy="starting cold"
        )


def _encode(document: Document) -> bytes:
    data = msgspec.json.encode(document)
    return b'{"crc32":"%08x",%b' % (zlib.crc32(data[1:]), data[1:])


def _check_moments(states: object, latest_s: float) -> None:
    """Raises ValueError where states speak of a moment after the one at which they were written."""
    waiting = [msgspec.to_builtins(states)]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            for key, value in one.items():
                if key in _MOMENTS and isinstance(value, int | float) and not value <= latest_s:
                    raise ValueError(f"its {key} is {value:g}, later than the file")
            waiting += one.values()
        elif isinstance(one, list | tuple):
            waiting += one


def _decode(data: bytes) -> Document:
    """Raises ValueError on anything but a document of this version, whole."""
    if (found := _CRC.match(data)) and int(found[1], 16) != zlib.crc32(data[found.end() :]):
        raise ValueError("its checksum is not that of its content")
    version = msgspec.json.decode(data, type=dict[str, msgspec.Raw]).get("version")
    if version is None or bytes(version) != str(VERSION).encode():
        raise ValueError(f"its version is {bytes(version).decode() if version else 'missing'}, not {VERSION}")
    return msgspec.json.decode(data, type=Document)


_WRITE_S: Final = 60.0
"""What a disk takes to write the file and sync it; one that hangs costs one thread, and the log says so."""


class Checkpointer(Part, Struct, eq=False):
    """Saves what `memory` has learned each minute, and whenever a stop counts in `budget`; restores it once."""

    NAME = "saving what was learned"
    EVERY_S = FIRST_S = 60.0

    file: CheckpointFile
    memory: Remembers
    kubernetes: GoesOn
    holds: Holds
    budget: StopBudget
    _apart: Apart = field(default_factory=lambda: Apart("checkpoint", _WRITE_S))
    _loading: bool = False

    @property
    def wake(self) -> Wake:
        return self.budget.counts

    async def look(self) -> None:
        await self.save()

    def remembered(self) -> Remembered:
        now = self.kubernetes.memory()
        promises = KubernetesMemory(giving_back=now.giving_back, until_s=now.until_s)
        predictors, interference = self.memory.predictors(), self.memory.harm.checkpoint()
        counted = dict(self.budget.memory(self.file.clock.boottime_s()))
        return Remembered(predictors, interference, promises, self.holds.memory(), counted)

    def restore(self, remembered: Remembered, shift_s: float) -> None:
        """Take over what there is of it, by times that need `shift_s` added."""
        self.holds.recall(remembered.holds, shift_s)
        counted = {one: began_s + shift_s for one, began_s in remembered.counted.items()}
        self.budget.recall(counted, self.file.clock.boottime_s())
        if (then := remembered.kubernetes) is not None:
            until_s = min(then.until_s + shift_s, self.file.clock.boottime_s() + MOST_WAIT_S)
            self.kubernetes.go_on_by(KubernetesMemory(giving_back=then.giving_back, until_s=until_s))
        if remembered.predictors:
            self.memory.restore(remembered.predictors, shift_s)
        if remembered.interference is not None:
            self.memory.harm.restore(remembered.interference, shift_s)

    async def load(self, *, predictors: bool = True, promises: bool = True) -> None:
        """Restore what the file holds; `predictors`, and the `promises` to Kubernetes: those, too. Until then nothing
        is saved over it.

        Others wait for it, for `WAITED_FOR_S` at the most. What the ladder has done from then on is not undone by what
        comes later: of that, all but the ladder is restored.
        """
        self._loading = True
        self.memory.wait_for_checkpoint(True)
        goes_on = asyncio.Event()

        def go_on() -> None:
            goes_on.set()
            self.memory.wait_for_checkpoint(False)

        late = asyncio.get_running_loop().call_later(WAITED_FOR_S, go_on)
        try:
            remembered, shift_s = await run_apart("checkpoint", self.file.load)
            if goes_on.is_set() and remembered.interference is not None:
                why = f"it was read after more than {WAITED_FOR_S:g} s"
                self.file.log.warning("interference_starts_cold", file=str(self.file.path), lost=_LADDER, error=why)
                remembered = replace(remembered, interference=None)
            if not predictors:
                remembered = replace(remembered, predictors={})
            if not promises:
                remembered = replace(remembered, kubernetes=None)
            self.restore(remembered, shift_s)
        except Exception as error:  # the machine has no more threads, or what was read does not fit
            self.file.log.warning("checkpoint_unreadable", file=str(self.file.path), error=repr(error))
        finally:
            late.cancel()
            self._loading = False
            self.memory.wait_for_checkpoint(False)

    async def save(self, *, durable: bool = True) -> None:
        """Raises OSError; without a checkpoint only the next start is colder."""
        if self._loading:
            return
        remembered = self.remembered()
        try:
            await self._apart.run("write", lambda: self.file.write(remembered, durable=durable))
        except OSError as error:
            raise OSError(f"{self.file.path} can't be written: {error}") from error

    async def save_last(self) -> None:
        """As `save`, but within `LAST_S` or not at all, and so that no disk keeps the process from ending.

        A power failure within the next half minute may cost the checkpoint; a restart of the process does not.
        """
        try:
            async with asyncio.timeout(LAST_S):
                await self.save(durable=False)
        except OSError as error:
            reason = str(error) or f"it took more than {LAST_S} s"
            self.file.log.warning("checkpoint_given_up", file=str(self.file.path), reason=reason)
