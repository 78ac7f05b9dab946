"""What `criproxy hold-off` and `criproxy release` ask of a running criproxy, done by the time that it answers."""

import asyncio
from collections.abc import Iterable
from typing import Final

from criproxy.cgroup.box import Box
from criproxy.cgroup.driver import CgroupError
from criproxy.daemon.reload import Reload
from criproxy.observe.routes import TakesHoldOffs
from criproxy.pods.hold_offs import BOX, HoldOffs
from criproxy.pods.inventory import Inventory
from criproxy.pods.unbounded import UnboundedPods

_BOX_STAYS: Final = "the box's limits stay, and no new offline pod is let in"
_POD_STAYS: Final = (
    "criproxy does not stop it, unless the node is about to run out of memory; an eviction that was accepted before, "
    "and a stop signal that its containers have, can't be taken back (CRI-O also kills who ignores it, a minute later)"
)

_SETTLES_S: Final = 5.0
"""Who has asked waits for 12 s. The hold-off is in force before."""


class OperatorsHoldOffs(TakesHoldOffs):
    """Finds whom an operator means, and has the parts go by it at once: no limit is written after the answer."""

    def __init__(
        self, hold_offs: HoldOffs, reload: Reload, box: Box, inventory: Inventory, unbounded: UnboundedPods
    ) -> None:
        self._hold_offs = hold_offs
        self._reload = reload
        self._box = box
        self._inventory = inventory
        self._unbounded = unbounded

    async def hold(self, of: str, seconds: float, reason: str) -> str:
        name, uid = self._found(of)
        await self._hold_offs.hold(name, uid, seconds, reason)
        self._reload.follow_operator()
        held = f"criproxy is held off {name} for {seconds:.0f} s: {_BOX_STAYS if name == BOX else _POD_STAYS}"
        try:
            async with asyncio.timeout(_SETTLES_S):
                await self._box.settle()
        except (OSError, CgroupError) as error:
            reason = str(error) or f"it takes longer than {_SETTLES_S:g} s"
            return f"{held}. What criproxy began before may still be written, as the kernel has not answered: {reason}"
        return held

    async def release(self, of: str) -> str:
        found = [one for one in self._hold_offs.in_force() if of and of in _called(one.name, one.uid)]
        if not found:
            raise ValueError(f"criproxy is not held off {of!r}: `criproxy status` lists the hold-offs")
        if len(found) > 1:
            raise ValueError(_several(of, (one.uid for one in found)))
        await self._hold_offs.release(found[0].uid)
        self._reload.follow_operator()
        return f"criproxy is no longer held off {found[0].name}"

    def _found(self, of: str) -> tuple[str, str]:
        """The name and the uid ("": the box's) of whom `of` means. Raises ValueError."""
        if of == BOX:
            return BOX, ""
        offline = {one.pod.uid: str(one.pod) for one in self._inventory.placed}
        offline |= {pod.uid: str(pod) for pod in self._unbounded.pods().values()}
        found = {uid: name for uid, name in offline.items() if of in _called(name, uid)}
        if not found:
            raise ValueError(
                f"no offline pod of this node is called {of!r}: `criproxy status` lists them; for all, say {BOX!r}"
            )
        if len(found) > 1:
            raise ValueError(_several(of, found))
        ((uid, name),) = found.items()
        return name, uid


def _called(name: str, uid: str) -> tuple[str, str, str]:
    """By what an operator may call a pod: namespace/name, the name alone, its uid."""
    return name, name.rpartition("/")[2], uid


def _several(of: str, uids: Iterable[str]) -> str:
    return f"{of!r} are several pods: name one by its uid: {', '.join(sorted(uids))}"
