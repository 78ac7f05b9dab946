"""The inventory's copy of the runtime's truth, also when both change at once."""

import asyncio

import pytest

from criproxy.clients.runtime import PodsRuntime
from criproxy.fronts.cri import messages as cri
from criproxy.model import PLACEMENT_ANNOTATION, Asked, ContainerKind, Pod, PodRef, Sandbox
from criproxy.pods.inventory import Inventory, PodObserver, asked_now, described
from criproxy.pods.runtime import ListedContainer, ListedSandbox, Running

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

    ready, pid = True, 7

    async def call(self, method: str, request: bytes, timeout_s: float) -> bytes:
        await self.open.wait()
        return self.answers[method]


class Cgroups:
    """`there`: the places that exist; None: all."""

    def __init__(self, there: list[str] | None = None) -> None:
        self._there = there

    def exists(self, path: str) -> bool:
        return self._there is None or path in self._there


def inventory_of(runtime: Gate, cgroups: Cgroups) -> Inventory:
    return Inventory(PodsRuntime(runtime), cgroups)  # type: ignore[arg-type]


class Observer(PodObserver):
    def __init__(self) -> None:
        self.told: list[object] = []

    def pod_started(self, running: Running) -> None:
        self.told.append(running)

    def pod_removed(self, sandbox: Sandbox) -> None:
        self.told.append(sandbox.id)

    def pods_listed(self) -> None:
        self.told.append("listed")


def test_refresh_learned_meanwhile_wins_over_the_list() -> None:
    async def go() -> Inventory:
        gate = Gate(_sandboxes("old", "gone"), _containers(c_old="old", c_gone="gone"))
        inventory = inventory_of(gate, Cgroups())
        refreshes = [asyncio.create_task(inventory.refresh()) for _ in range(2)]
        await asyncio.sleep(0)
        inventory.sandbox_started(Sandbox("new", POD, PLACE))
        inventory.container_created("c_new", "new", "main")
        inventory.sandbox_removed("gone")
        gate.open.set()
        await asyncio.gather(*refreshes)
        return inventory

    inventory = asyncio.run(go())
    assert {s.id for s in inventory.placed} == {"old", "new"}
    assert len(inventory) == 4


class Gates(Gate):
    """Each list waits for its own gate, in the order in which they were asked for."""

    def __init__(self, sandboxes: bytes, containers: bytes) -> None:
        super().__init__(sandboxes, containers)
        self.gates: list[asyncio.Event] = []

    async def call(self, method: str, request: bytes, timeout_s: float) -> bytes:
        if method == "ListPodSandbox":
            self.gates.append(gate := asyncio.Event())
            await gate.wait()
        return self.answers[method]


def test_refresh_that_another_one_overtakes_keeps_what_is_learned_after_that() -> None:
    async def play() -> None:
        runtime = Gates(_sandboxes("a"), b"")
        inventory = inventory_of(runtime, Cgroups())
        slow, quick = (asyncio.create_task(inventory.refresh()) for _ in range(2))
        await asyncio.sleep(0)
        runtime.gates[1].set()
        await quick
        inventory.sandbox_started(Sandbox("new", POD, PLACE))
        runtime.gates[0].set()
        await slow
        assert {sandbox.id for sandbox in inventory.placed} == {"a", "new"}

    asyncio.run(play())


def test_refresh_forgets_what_the_runtime_no_longer_lists() -> None:
    async def go() -> Inventory:
        gate = Gate(_sandboxes("a"), _containers())
        gate.open.set()
        inventory = inventory_of(gate, Cgroups())
        inventory.sandbox_started(Sandbox("b", POD, PLACE))
        inventory.container_created("c", "b", "main")
        await inventory.refresh()
        return inventory

    inventory = asyncio.run(go())
    assert [s.id for s in inventory.placed] == ["a"]
    assert len(inventory) == 1


def test_refresh_that_fails_keeps_what_is_known() -> None:
    class Down(Gate):
        async def call(self, method: str, request: bytes, timeout_s: float) -> bytes:
            raise ConnectionError

    async def go() -> Inventory:
        inventory = inventory_of(Down(b"", b""), Cgroups())
        inventory.sandbox_started(Sandbox("b", POD, PLACE))
        try:
            await inventory.refresh()
        except ConnectionError:
            return inventory
        raise AssertionError("refresh hid the failure")

    assert len(asyncio.run(go()).placed) == 1


@pytest.mark.parametrize(("placement", "shares"), [(PLACE, 2048), (None, 0)], ids=["in-the-box", "elsewhere"])
def test_what_a_pod_asks_for_of_what_nodes_lend_is_read_of_those_in_the_box(placement: str | None, shares: int) -> None:
    annotations = {"colocation.criproxy.io/resources": '{"containers": {"main": {"requests": {"cpu": "2"}}}}'}

    sandbox = described("s1", PodRef("1", "batch", "job"), placement, {}, annotations)

    assert sandbox.cpu_shares == shares


def test_lowered_claim_stays_while_the_sandbox_is_known_and_rises_no_more() -> None:
    record = {"colocation.criproxy.io/resources": '{"containers": {"main": {"requests": {"cpu": "64"}}}}'}
    gate = Gate(_sandboxes("s1"), _containers())
    gate.open.set()
    inventory = inventory_of(gate, Cgroups())
    inventory.sandbox_started(described("s1", POD, PLACE, {}, record))

    for most, left in ((2048, 2048), (4096, 2048)):
        inventory.lower_shares("s1", most)
        inventory.lower_shares("gone", most)
        asyncio.run(inventory.refresh())
        assert [one.cpu_shares for one in inventory.placed] == [left]


def test_what_is_asked_once_init_containers_are_over_is_no_more_than_the_lowered_claim() -> None:
    kinds = {"init": Asked(8192, kind=ContainerKind.INIT), "main": Asked(4096)}
    sandbox = Sandbox("s1", POD, PLACE, cpu_shares=1024, containers=kinds)
    runs = [ListedContainer("c1", "s1", "main", True)]
    assert asked_now(sandbox, runs).cpu_shares == 1024


def test_sandbox_is_known_by_its_id_or_by_a_container_s_without_asking_the_runtime() -> None:
    inventory = inventory_of(Gate(b"", b""), Cgroups())
    sandbox = described("s1", POD, None, {}, {})
    inventory.sandbox_started(sandbox)
    inventory.container_created("c1", "s1", "main")
    inventory.container_created("c2", "s2", "main")

    found = [inventory.known(*ids) for ids in (("s1",), ("", "c1"), ("s1", "c2"), ("s2", "c1"), ("", "c2"), ("",))]
    assert found == [sandbox, sandbox, sandbox, None, None, None]


def test_placement_without_a_cgroup_is_not_believed() -> None:
    async def go() -> Inventory:
        gate = Gate(_sandboxes("a"), _containers())
        gate.open.set()
        inventory = inventory_of(gate, Cgroups([]))
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
        inventory = inventory_of(gate, Cgroups())
        await inventory.refresh()
        return inventory

    inventory = asyncio.run(go())
    assert (inventory.placed, len(inventory)) == ((), 1)


def test_sandbox_keeps_its_placement_when_its_cgroup_has_vanished() -> None:
    there = [PLACE]

    async def go() -> Inventory:
        gate = Gate(_sandboxes("a"), _containers())
        gate.open.set()
        inventory = inventory_of(gate, Cgroups(there))
        await inventory.refresh()
        there.clear()
        await inventory.refresh()
        return inventory

    assert [s.placement for s in asyncio.run(go()).placed] == [PLACE]


# --- what runs -----------------------------------------------------------------------------------------------------

READY, NOT_READY = 0, 1
CREATED, RUNNING, EXITED = 0, 1, 2


async def _refreshed(sandboxes: bytes, containers: bytes) -> Inventory:
    gate = Gate(sandboxes, containers)
    gate.open.set()
    inventory = inventory_of(gate, Cgroups())
    await inventory.refresh()
    return inventory


def _in_state(listed: bytes, **states: int) -> bytes:
    """A list of sandboxes in these states."""
    answer = cri.ListPodSandboxResponse.FromString(listed)
    for sandbox in answer.items:
        sandbox.state = states[sandbox.id.decode()]
    return answer.SerializeToString()


def _containers_in_state(**states: int) -> bytes:
    named = cri.ContainerMetadata(name=b"main")
    return cri.ListContainersResponse(
        containers=[
            cri.Container(id=c.encode(), pod_sandbox_id=b"a", metadata=named, state=state)
            for c, state in states.items()
        ]
    ).SerializeToString()


def test_running_is_what_the_list_says_runs_in_the_box() -> None:
    sandboxes = _in_state(_sandboxes("a", "b"), a=READY, b=NOT_READY)
    inventory = asyncio.run(_refreshed(sandboxes, _containers_in_state(new=CREATED, up=RUNNING, over=EXITED)))
    assert [(one.id, one.container, one.sandbox.id) for one in inventory.running] == [
        ("a", "", "a"),
        ("up", "main", "a"),
    ]


def test_running_leaves_out_what_is_not_placed() -> None:
    sandboxes = _sandboxes("a", placement="/kubepods/pod1")
    assert asyncio.run(_refreshed(sandboxes, _containers_in_state(up=RUNNING))).running == ()


def test_what_is_known_of_the_pods_in_the_box_comes_from_the_list_or_from_their_start() -> None:
    inventory = asyncio.run(_refreshed(_sandboxes("a"), _containers()))
    marks = Pod(POD, {"app": "sort"}, {"keep": "yes"})
    inventory.sandbox_started(Sandbox("b", POD, PLACE), marks)
    inventory.sandbox_started(Sandbox("online", POD, None), marks)
    found = {one.id: (one.labels, one.annotations) for one in inventory.marked}
    assert found.keys() == {"a", "b"}
    assert found["b"] == ({"app": "sort"}, {"keep": "yes"})
    inventory.sandbox_removed("a")
    assert [one.id for one in inventory.marked] == ["b"]
    assert asyncio.run(_refreshed(_sandboxes("a", placement="/kubepods/pod1"), _containers())).marked == ()


def test_running_follows_starts_and_removals() -> None:
    inventory = asyncio.run(_refreshed(_in_state(_sandboxes("a"), a=READY), _containers_in_state(c=CREATED, d=RUNNING)))
    inventory.container_started("c")
    inventory.container_removed("d")
    assert [one.id for one in inventory.running] == ["a", "c"]
    inventory.sandbox_removed("a")
    assert inventory.running == ()


def test_running_pods_leave_out_those_that_have_ended_while_placed_keeps_them() -> None:
    sandboxes = _in_state(_sandboxes("a", "b"), a=READY, b=NOT_READY)
    inventory = asyncio.run(_refreshed(sandboxes, _containers_in_state(up=RUNNING)))
    before = [sandbox.id for sandbox in inventory.running_pods]
    inventory.sandbox_stopped("a")
    assert (before, inventory.running_pods, inventory.running) == (["a"], (), ())
    assert [sandbox.id for sandbox in inventory.placed] == ["a", "b"]


def test_pod_has_ended_once_neither_its_sandbox_nor_a_container_of_it_runs() -> None:
    sandboxes = _in_state(_sandboxes("a", "b", "c"), a=READY, b=NOT_READY, c=NOT_READY)
    listed = cri.ListContainersResponse.FromString(_containers(up="b", over="c"))
    for one, state in zip(listed.containers, (RUNNING, EXITED), strict=True):
        one.state = state
    inventory = asyncio.run(_refreshed(sandboxes, listed.SerializeToString()))
    assert [one.id for one in inventory.ended_pods] == ["c"]
    inventory.sandbox_stopped("b")
    assert [one.id for one in inventory.ended_pods] == ["b", "c"]


def _ids(inventory: Inventory) -> tuple[list[str], list[str]]:
    return [one.id for one in inventory.placed], [one.id for one in inventory.running_pods]


def test_pods_of_the_box_are_those_of_now_after_each_change_whoever_has_asked_before() -> None:
    async def go() -> None:
        gate = Gate(_in_state(_sandboxes("a", "b"), a=READY, b=NOT_READY), _containers())
        gate.open.set()
        inventory = inventory_of(gate, Cgroups())
        assert _ids(inventory) == ([], [])
        await inventory.sandbox("b")
        assert _ids(inventory) == (["b"], [])
        await inventory.refresh()
        assert _ids(inventory) == (["a", "b"], ["a"])
        inventory.sandbox_started(Sandbox("c", POD, PLACE))
        assert _ids(inventory) == (["a", "b", "c"], ["a", "c"])
        inventory.sandbox_stopped("a")
        assert _ids(inventory) == (["a", "b", "c"], ["c"])
        inventory.sandbox_removed("c")
        assert _ids(inventory) == (["a", "b"], [])
        assert inventory.placed is inventory.placed

    asyncio.run(go())


def _pod_sandbox(sandbox_id: str, state: int, placement: str = "") -> cri.PodSandbox:
    return cri.PodSandbox(
        id=sandbox_id.encode(),
        metadata=cri.PodSandboxMetadata(uid=b"1", namespace=b"batch", name=b"job"),
        state=state,
        labels=[cri.StringEntry(key=b"l", value=b"1")],
        annotations=[cri.StringEntry(key=PLACEMENT_ANNOTATION.encode(), value=placement.encode())],
    )


def test_online_pod_is_outside_from_its_start_on() -> None:
    """Whether it was online when rules change must not depend on when the runtime was listed last."""

    async def go() -> Inventory:
        inventory = await _refreshed(_sandboxes(), _containers())
        inventory.sandbox_started(Sandbox("s", POD, None), Pod(POD, {"l": "1"}))
        return inventory

    inventory = asyncio.run(go())
    assert {id: pod.labels for id, pod in inventory.outside.items()} == {"s": {"l": "1"}}
    inventory.sandbox_removed("s")
    assert not inventory.outside


def test_outside_are_the_pods_that_run_outside_the_box() -> None:
    listed = cri.ListPodSandboxResponse(
        items=[_pod_sandbox("in", 0, PLACE), _pod_sandbox("out", 0), _pod_sandbox("ended", 1), _pod_sandbox("gone", 0)]
    )

    async def go() -> Inventory:
        gate = Gate(listed.SerializeToString(), _containers())
        gate.open.set()
        inventory = inventory_of(gate, Cgroups())
        await inventory.refresh()
        inventory.sandbox_removed("gone")
        return inventory

    inventory = asyncio.run(go())
    outside = inventory.outside
    assert outside is inventory.outside  # asked for with each look, and gone through only once something has changed
    inventory.sandbox_stopped("in")
    assert outside is not inventory.outside
    assert outside == {"out": Pod(POD, {"l": "1"}, {PLACEMENT_ANNOTATION: ""})}


def test_observer_is_told_of_each_listing_and_of_starts_and_removals_in_the_box() -> None:
    async def go() -> list[object]:
        gate = Gate(_sandboxes("a"), _containers())
        inventory, observer = inventory_of(gate, Cgroups()), Observer()
        inventory.watch(observer)
        gate.open.set()
        await inventory.refresh()
        for sandbox_id, place in (("in", PLACE), ("out", None)):
            inventory.sandbox_started(Sandbox(sandbox_id, POD, place))
            inventory.container_created(f"c_{sandbox_id}", sandbox_id, "main")
            inventory.container_started(f"c_{sandbox_id}")
            inventory.sandbox_removed(sandbox_id)
        inventory.container_started("nobody's")
        return observer.told

    placed = Sandbox("in", POD, PLACE)
    assert asyncio.run(go()) == ["listed", Running(placed, "in", ""), Running(placed, "c_in", "main"), "in"]


@pytest.mark.parametrize("place", ["/offline/pod1", "offline-pod1.slice"])
def test_pods_that_carry_no_placement_are_found_by_their_cgroup_in_the_box(place: str) -> None:
    """By NRI, a sandbox can't be given an annotation; the runtime's list comes before NRI's."""

    async def go(there: list[str]) -> Inventory:
        gate = Gate(_sandboxes("a", placement=""), _containers())
        gate.open.set()
        inventory = Inventory(PodsRuntime(gate), Cgroups(there), holds_sandboxes=False)  # type: ignore[arg-type]
        await inventory.refresh()
        return inventory

    assert [one.placement for one in asyncio.run(go([place])).placed] == [place]
    assert not asyncio.run(go(["/offline/pod2"])).placed


@pytest.mark.parametrize("change", ["a pod starts", "a pod goes"])
def test_what_other_threads_read_is_read_while_pods_start_and_go(change: str) -> None:
    inventory = inventory_of(Gate(b"", b""), Cgroups())
    for sandbox_id in ("a", "b"):
        inventory.sandbox_started(Sandbox(sandbox_id, POD, None), Pod(POD))
        inventory.sandbox_started(Sandbox(f"boxed-{sandbox_id}", POD, PLACE), Pod(POD))

    class Changing(set[str]):
        """The event loop has its turn in the middle of another thread's look."""

        def __contains__(self, sandbox_id: object) -> bool:
            inventory._running = set(self)
            if change == "a pod starts":
                inventory.sandbox_started(Sandbox("new", POD, None), Pod(POD))
            else:
                inventory.sandbox_removed(str(sandbox_id))
            return set.__contains__(self, sandbox_id)

    inventory._running = Changing(inventory._running)
    assert set(inventory.outside) in ({"a", "b"}, {"b"})

    class Listed(dict[str, ListedSandbox]):
        def __contains__(self, sandbox_id: object) -> bool:
            inventory.sandbox_removed(str(sandbox_id))
            return True

    inventory._listed = Listed(inventory._listed)
    assert {one.id for one in inventory.marked} == {"boxed-a", "boxed-b"}
