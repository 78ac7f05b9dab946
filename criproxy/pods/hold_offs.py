"""An operator's word that criproxy is to leave its hands off the box, or off a pod of it, for a while.

**The box held off.** criproxy writes none of its limits: not those on CPU and memory (the guard is off, too), nor its
share of processes, nor its priority. What the kernel holds stays, whoever has set it. As nobody then keeps the box in
step with online, no new offline pod is let in; and no pod is stopped, whatever a setting or the schedule says.

**A pod held off.** It is not stopped, whatever a setting or the schedule says, and no limits are carried to its
cgroup.

**What goes on all the same**, as online would not be safe without it: the box is kept off CPUs that are an online
pod's alone, kubelet's own requests for a pod are followed, and when kubelet is about to evict online pods for memory,
the largest offline pod is stopped, one that criproxy is held off after all others.

The file lies beside criproxy's socket, in /run: it outlives a restart and an upgrade of criproxy, but no reboot.
Neither does CLOCK_BOOTTIME, in which the ends are; so no jump of the wall clock ends or prolongs a hold-off.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct, field
from structlog.typing import FilteringBoundLogger

from criproxy.concurrency import statefile
from criproxy.concurrency.clock import Clock
from criproxy.concurrency.worker import Worker
from criproxy.model import PodRef
from criproxy.model.shown import Gauge, Shows
from criproxy.pods.words import moment

BOX: Final = "box"

MOST_S: Final = 7 * 86400.0
"""Nobody forgets a hold-off for longer than that."""

MOST: Final = 100
"""At one time: more is a script that has gone wild."""

MOST_BYTES: Final = 1 << 20

MOST_WORDS: Final = 500
"""Characters of a reason."""


class HoldOff(Struct, frozen=True):
    """`uid` is the pod's, "" for the box; `name` is what people call it. `until_s` is CLOCK_BOOTTIME."""

    uid: str
    name: str
    until_s: float
    reason: str


class HoldOffStatus(Struct, frozen=True):
    """What criproxy is held off: "box" or namespace/name, with the pod's `uid` ("": the box). `until_s` is UTC."""

    of: str
    uid: str
    until_s: float
    reason: str


class HoldOffs(Shows, Struct):
    """Those of this node, in `file`, which is read and written in `worker`'s thread, but for `read`."""

    GAUGES = (
        Gauge(
            "hold_offs",
            "What operators hold criproxy off for now: the box, pods",
            lambda one: len(one.in_force()),
        ),
    )

    file: Path
    worker: Worker
    clock: Clock
    log: FilteringBoundLogger
    _all: Mapping[str, HoldOff] = {}
    """By uid. Replaced as a whole: the status reads it from its thread."""
    resting: bool = False
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    # --- what holds -------------------------------------------------------------------------------------------------

    def in_force(self) -> tuple[HoldOff, ...]:
        """Any thread may call it."""
        if not self._all:  # nearly always, and some ask for each pod
            return ()
        now_s = self.clock.boottime_s()
        return tuple(one for one in self._all.values() if one.until_s > now_s)

    def of_box(self) -> HoldOff | None:
        return next((one for one in self.in_force() if not one.uid), None)

    def why_box(self) -> str:
        """Why the box's limits stay and no pod is let in, in words; "": criproxy is not held off the box."""
        one = self.of_box()
        return f"an operator holds criproxy off the box: {one.reason}" if one else ""

    def covers(self, pod: PodRef) -> bool:
        """Whether criproxy is held off this very pod."""
        return bool(self._all) and any(one.uid == pod.uid for one in self.in_force())

    def until_wall_s(self, one: HoldOff) -> float:
        """Its end by the wall clock, as it stands now."""
        return self.clock.wall_s() + one.until_s - self.clock.boottime_s()

    # --- what changes it --------------------------------------------------------------------------------------------

    def status(self) -> tuple[HoldOffStatus, ...]:
        return tuple(HoldOffStatus(one.name, one.uid, self.until_wall_s(one), one.reason) for one in self.in_force())

    def section(self) -> Mapping[str, Any]:
        return {"hold_offs": self.status()}

    def rows(self) -> Iterator[tuple[str, ...]]:
        for one in self.status():
            yield "hold-off", f"{one.of} until {moment(one.until_s)}: {one.reason}"

    def read(self) -> None:
        """Take up what the file says, as a criproxy before this one has left it. Never raises; blocks on the file."""
        try:
            found = msgspec.json.decode(statefile.read(self.file, MOST_BYTES), type=list[HoldOff])
        except FileNotFoundError:
            self._all = {}
        except (OSError, ValueError, RecursionError) as error:
            self._not_read(str(error))
        else:
            self._all = {one.uid: one for one in found}

    async def rest(self) -> None:
        """Until `resume`, another process answers operators. What is under way here is in the file by then."""
        self.resting = True
        async with self._turn:
            pass

    def resume(self) -> None:
        self.resting = False

    async def hold(self, name: str, uid: str, seconds: float, reason: str) -> HoldOff:
        """From now on; one of the same is replaced. Raises ValueError, saying what is wrong, or OSError."""
        if not 1.0 <= seconds <= MOST_S:
            raise ValueError(f"{seconds:g} s is not within 1 s and 7 days")
        reason = " ".join(reason.split())
        if not reason or len(reason) > MOST_WORDS:
            raise ValueError(
                f"the reason has {len(reason)} characters, not 1 to {MOST_WORDS}: say why, for who comes next"
            )
        one = HoldOff(uid, name, self.clock.boottime_s() + seconds, reason)
        async with self._turn:
            others = {other.uid: other for other in self.in_force() if other.uid != uid}
            if len(others) >= MOST:
                raise ValueError(f"{MOST} hold-offs are in force: release one first")
            await self._keep({**others, uid: one})
        self.log.warning("hold_off", of=name, pod_uid=uid, seconds=round(seconds), reason=reason)
        return one

    async def release(self, uid: str) -> HoldOff | None:
        """End it; None: there is none. Raises OSError: then it goes on."""
        async with self._turn:
            others = {one.uid: one for one in self.in_force()}
            if (released := others.pop(uid, None)) is not None:
                await self._keep(others)
        if released is not None:
            self.log.info("hold_off_released", of=released.name, pod_uid=uid, reason=released.reason)
        return released

    def end_due(self) -> None:
        """Forget those whose time is over. The file may keep them: their end is in it."""
        now_s = self.clock.boottime_s()
        for one in self._all.values():
            if one.until_s <= now_s:
                self.log.info("hold_off_ended", of=one.name, pod_uid=one.uid, reason=one.reason)
                self._all = {uid: other for uid, other in self._all.items() if uid != one.uid}

    async def _keep(self, wanted: Mapping[str, HoldOff]) -> None:
        """What can't be written would be forgotten by a restart, so it does not hold."""
        if self.resting:
            raise OSError("another criproxy takes over just now: say it again")
        await self.worker.run("write the hold-offs", lambda: self._write(wanted.values()))
        self._all = wanted

    def _write(self, wanted: Iterable[HoldOff]) -> None:
        new = self.file.with_name(f"{self.file.name}.new")
        try:
            with open(new, "wb", opener=statefile.private) as file:
                file.write(msgspec.json.encode(list(wanted)))
            new.replace(self.file)
        except OSError:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
            raise

    def _not_read(self, error: str) -> None:
        self.log.error(
            "hold_offs_not_read", file=str(self.file), error=error, consequence="what was held off before is not now"
        )
