"""The inventory's copy of the runtime's truth, also when both change at once."""

import asyncio

import pytest

from criproxy.model import PLACEMENT_ANNOTATION, PodRef, Sandbox
from criproxy.proxy import cri_pb2 as cri
from criproxy.proxy.inventory import Inventory

POD = PodRef("1", "batch", "job")
PLACE = "/offline/pod1"


def _sandboxes(*ids: str, placement: str = PLACE) -> bytes:
    metadata = cri.PodSandboxMetadata(uid=b"1", namespace=b"batch", name=b"job")
    entry = cri.StringEntry(key=PLACEMENT_ANNOTATION.encode(), value=placement.encode())
    return cri.ListPodSandboxResponse(
        items=[cri.PodSandbox(id=i.encode(), metadata=metadata, annotations=[entry]) for i in ids]
    ).SerializeToString()


def _containers(**sandbox_by_id: str) -> bytes:
    return cri.ListContainersResponse(
        containers=[cri.Container(id=c.encode(), pod_sandbox_id=s.encode()) for c, s in sandbox_by_id.items()]
    ).SerializeToString()


class Gate:
    """A runtime whose list answers wait until they are opened."""

    def __init__(self, sandboxes: bytes, containers: bytes) -> None:
        self.answers = {"ListPodSandbox": sandboxes, "ListContainers": containers}
        self.open = asyncio.Event()

    async def query(self, method: str, request: bytes) -> bytes:
        await self.open.wait()
        return self.answers[method]


def test_refresh_learned_meanwhile_wins_over_the_list() -> None:
    async def go() -> Inventory:
        gate = Gate(_sandboxes("old", "gone"), _containers(c_old="old", c_gone="gone"))
        inventory = Inventory(gate.query, lambda _: True)
        refreshes = [asyncio.create_task(inventory.refresh()) for _ in range(2)]
        await asyncio.sleep(0)
        inventory.sandbox_started(Sandbox("new", POD, PLACE))
        inventory.container_created("c_new", "new")
        inventory.sandbox_removed("gone")
        gate.open.set()
        await asyncio.gather(*refreshes)
        return inventory

    inventory = asyncio.run(go())
    assert {s.id for s in inventory.placed} == {"old", "new"}
    assert len(inventory) == 4


def test_refresh_forgets_what_the_runtime_no_longer_lists() -> None:
    async def go() -> Inventory:
        gate = Gate(_sandboxes("a"), _containers())
        gate.open.set()
        inventory = Inventory(gate.query, lambda _: True)
        inventory.sandbox_started(Sandbox("b", POD, PLACE))
        inventory.container_created("c", "b")
        await inventory.refresh()
        return inventory

    inventory = asyncio.run(go())
    assert [s.id for s in inventory.placed] == ["a"]
    assert len(inventory) == 1


def test_refresh_that_fails_keeps_what_is_known() -> None:
    async def query(method: str, request: bytes) -> bytes:
        raise ConnectionError

    async def go() -> Inventory:
        inventory = Inventory(query, lambda _: True)
        inventory.sandbox_started(Sandbox("b", POD, PLACE))
        try:
            await inventory.refresh()
        except ConnectionError:
            return inventory
        raise AssertionError("refresh hid the failure")

    assert len(asyncio.run(go()).placed) == 1


def test_placement_without_a_cgroup_is_not_believed() -> None:
    async def go() -> Inventory:
        gate = Gate(_sandboxes("a"), _containers())
        gate.open.set()
        inventory = Inventory(gate.query, lambda _: False)
        await inventory.refresh()
        return inventory

    assert asyncio.run(go()).placed == ()


@pytest.mark.parametrize(
    "placement",
    ["/", "/kubepods/pod1", "/offline/pod2", "/offline/../kubepods/pod1", "/offline/pod1/..", "offline", "\x00", ""],
)
def test_placement_that_is_not_the_pod_s_own_place_in_a_box_is_not_believed(placement: str) -> None:
    async def go() -> Inventory:
        gate = Gate(_sandboxes("a", placement=placement), _containers())
        gate.open.set()
        inventory = Inventory(gate.query, lambda _: True)
        await inventory.refresh()
        return inventory

    inventory = asyncio.run(go())
    assert (inventory.placed, len(inventory)) == ((), 1)


def test_sandbox_keeps_its_placement_when_its_cgroup_has_vanished() -> None:
    there = [PLACE]

    async def go() -> Inventory:
        gate = Gate(_sandboxes("a"), _containers())
        gate.open.set()
        inventory = Inventory(gate.query, lambda place: place in there)
        await inventory.refresh()
        there.clear()
        await inventory.refresh()
        return inventory

    assert [s.placement for s in asyncio.run(go()).placed] == [PLACE]
