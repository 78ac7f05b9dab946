"""Has disks keep to the box's weight by the means that an operator has chosen, and puts back what it has changed."""

import asyncio
import contextlib
from typing import Final

from msgspec import Struct, field

from criproxy.cgroup.disk_keepers import DiskKeepers, Keeper, Kept
from criproxy.cgroup.worker import Worker
from criproxy.pods.shared import PodsShared, Trouble

EVERY_S: Final = 60.0
_TIMEOUT_S: Final = 10.0


class DiskKeeping(Struct, eq=False):
    """`keeper` None: it is not ours to change now. `kept` is for any thread."""

    keeper: Keeper | None
    shared: PodsShared
    keepers: DiskKeepers
    kept: Kept = Kept()
    _worker: Worker | None = None
    """A thread of its own: to switch a disk waits for what it has under way. None: nothing was to be done yet."""
    _due: asyncio.Event = field(default_factory=asyncio.Event)
    _trouble: Trouble = field(default_factory=Trouble)

    def configure(self, keeper: Keeper | None) -> None:
        if keeper != self.keeper:
            self.keeper = keeper
            self._due.set()

    @property
    def _is_at_work(self) -> bool:
        """Whether disks are to be kept, or put back."""
        return self.keeper not in (None, "leave") or (self.keeper == "leave" and self.keepers.has_changed_some)

    async def run(self) -> None:
        """Look at once, at each change of the setting, and each minute while disks are to be kept."""
        while True:
            self._due.clear()
            await self.look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S if self._is_at_work else None):
                    await self._due.wait()

    async def look(self) -> None:
        """Never raises: a failure is logged once, and the next look tries again."""
        keeper, log = self.keeper, self.shared.log
        if keeper is None or not self._is_at_work:
            self.kept = Kept()
            return
        before = self.kept
        with self._trouble.logged_by(lambda error: log.warning("disk_weight_not_switched", error=str(error))):
            if self._worker is None:
                self._worker = Worker("disk-keepers", _TIMEOUT_S)
            self.kept = await self._worker.run("switch disks", lambda: self.keepers.keep(keeper))
            if self.kept.switched:
                log.info("disk_weight_switched", disks=dict(self.kept.switched), reason=f"io.weight = {keeper}")
            if self.kept.failures and self.kept.failures != before.failures:
                log.warning("disk_weight_not_switched", disks=dict(self.kept.failures))

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
