"""Bounds the box on disks, as the ladder says; the law is `control.interference.disks`.

Each look has what the kernel holds. Where that is not what is wanted, it is written, by a task of its own: a disk that
hangs must keep no look from being taken. So what a process before this one has left is taken over or lifted with the
first look, and what somebody else has lifted is put back with the next.
"""

import enum
from collections.abc import Mapping

from msgspec import Struct, field

from criproxy.cgroup.box import Box
from criproxy.cgroup.disks import hold_disks
from criproxy.concurrency.clock import Wake
from criproxy.control.interference.disks import DisksOrder, DisksState, step, suspected
from criproxy.control.interference.responder import DiskBound
from criproxy.model.signals import DiskCounters, DiskRate, Missing, SignalReading
from criproxy.pods.part import Part
from criproxy.pods.shared import PodsShared


class DisksUse(enum.Enum):
    """Whose the box's limits on disks are now."""

    HELD = "the ladder's"
    LIFTED = "nobody's: they are lifted"
    LEFT = "whose they were"


class DiskBounds(Part, Struct, eq=False):
    """See the module. Any thread may call `status`."""

    NAME = "bounding the box on disks"

    shared: PodsShared
    box: Box
    state: DisksState = DisksState()
    _last: DiskCounters | None = None
    _this: DiskCounters | None = None
    _limits: Mapping[str, DiskRate | None] | Missing = Missing("no look has been taken yet")
    _lifted: bool = False
    _names: Mapping[str, str] = {}
    _is_due: bool = False
    _wake: Wake = field(default_factory=Wake)

    @property
    def wake(self) -> Wake:
        return self._wake

    async def look(self) -> None:
        """Write what is wanted, if that is due. What fails is due again with the next reading."""
        if not self._is_due:
            return
        self._is_due, wanted = False, self.state.bounds
        try:
            changes = await self.box.writes(
                "bound disks", lambda driver, box: hold_disks(driver.files, box, wanted), apart="cgroup-disks"
            )
        except BaseException:
            self._lifted = False
            raise
        if changes:
            self.shared.log.debug("disks_bounded", changes=[one.new for one in changes])

    def _write_soon(self) -> None:
        self._is_due = True
        self._wake.set()

    def _is_well(self) -> None:
        """Nothing is to be written: have a look say so, where the last one failed, as a write that came late does."""
        if self.failure:
            self._wake.set()

    def read(self, reading: SignalReading | None) -> None:
        """What a look has found; None: nothing."""
        self._last = self._this
        self._this, self._limits = None, Missing("nothing could be read")
        if reading is not None:
            self._this = reading.disks if isinstance(reading.disks, DiskCounters) else None
            self._limits = reading.disk_limits
        if self._this is not None:
            self._names = self._this.names

    @property
    def suspected(self) -> bool:
        """Whether there is a disk of whose IO the box does a large part, and on which it can be bounded."""
        if self._last is None or self._this is None or isinstance(self._limits, Missing):
            return False
        return bool(suspected(self._last, self._this, self._others))

    @property
    def problem(self) -> str:
        """Why the box can't be bounded on any disk; "" when it can."""
        return self._limits.why if isinstance(self._limits, Missing) else ""

    @property
    def _others(self) -> frozenset[str]:
        limits = {} if isinstance(self._limits, Missing) else self._limits
        return frozenset(number for number, rate in limits.items() if rate is None)

    def keep(self, share: float | None, *, calm: bool, innocent: bool) -> None:
        """Have the kernel hold what the ladder says from now on; see `DisksOrder`."""
        limits = {} if isinstance(self._limits, Missing) else self._limits
        held = {number: rate for number, rate in limits.items() if rate is not None}
        order = DisksOrder(share, calm, innocent, tuple(held), self._others)
        self.state, self._lifted = step(self._last, self._this, self.state, order), False
        wanted = {number: rate.whole for number, rate in self.state.bounds.items()}
        if isinstance(self._limits, Missing):
            return
        if wanted != held:
            self._write_soon()
        else:
            self._is_well()

    def rest(self, use: DisksUse) -> None:
        """No look is taken any more."""
        self.read(None)
        if use is DisksUse.LIFTED and not self._lifted:
            self.state = step(None, None, self.state, DisksOrder(None, calm=False, innocent=True))
            self._lifted = self.box.path is not None  # without a box there is nothing yet that could be lifted
            self._write_soon()
        else:
            self._is_well()

    def status(self) -> tuple[DiskBound, ...]:
        """The disks that the box uses."""
        return tuple(
            DiskBound(
                name=self._names.get(number, number),
                bytes_per_s=None if past.bound is None else past.bound.bytes_per_s,
                operations_per_s=None if past.bound is None else past.bound.operations_per_s,
                calm_bytes_per_s=past.calm.bytes_per_s,
                calm_operations_per_s=past.calm.operations_per_s,
            )
            for number, past in self.state.of.items()
        )
