"""What a hand-over does of the daemon's parts, whatever fails of it."""

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from criproxy.cgroup.driver import CgroupError
from criproxy.concurrency.worker import StuckError
from criproxy.concurrency.workers import Workers
from criproxy.control.interference.ladder import LadderState
from criproxy.control.interference.responder import ResponderState
from criproxy.daemon.checkpoint import Remembered
from criproxy.daemon.lifecycle import Tasks
from criproxy.daemon.upgrade import upgrades
from criproxy.daemon.upgrade.channel import (
    MOST_BYTES,
    HeldMessage,
    KubernetesMemory,
    LadderMessage,
    NriMessage,
    Take,
)
from criproxy.daemon.upgrade.successor import HandOverRefusedError, UpgradeError
from criproxy.daemon.upgrade.upgrades import Upgrades
from criproxy.fronts.socket import SocketError
from criproxy.model import PodRef
from criproxy.pods.interference import InterferenceState
from criproxy.pods.stopping import ON_HARM, HeldPod, Holds
from tests.fakes.clock import FakeClock
from tests.fakes.hold_offs import no_hold_offs
from tests.fakes.log import FakeLog

POD = PodRef("batch", "job", "7")
HELD = (HeldPod(POD.uid, ON_HARM, 90.0, "online waits"),)
STATE = InterferenceState(ResponderState({}, LadderState()))


class Did:
    """Stands for a part: keeps what it was asked for, and fails as often as `fails` says, by method."""

    goes_on = is_published = False

    def __init__(self, did: list[str], **fails: int) -> None:
        self._did, self._fails = did, fails

    def __getattr__(self, name: str) -> Any:
        def call(*_: object, **__: object) -> None:
            if self._fails.get(name, 0):
                self._fails[name] -= 1
                raise SocketError("no free descriptor")
            self._did.append(name)

        return call


class Waits(Did):
    """One whose methods are to be awaited."""

    def __getattr__(self, name: str) -> Any:
        done = super().__getattr__(name)

        async def call(*asked: object) -> None:
            done(*asked)

        return call


class Old:
    """The process that hands over: it says that the box is at /offline."""

    def __init__(self) -> None:
        self.learned: dict[str, object] = {}
        self.ladder = STATE
        self.kubernetes = KubernetesMemory(until_s=7.0)
        self.held = HELD
        self.declined: list[str] = []

    async def turn(self, ready: object) -> Take:
        return Take("/offline", ())

    def listeners(self) -> list[object]:
        return []

    def decline(self, reason: str) -> None:
        self.declined.append(reason)


class Socket(Did):
    def publish(self) -> None:
        self.__getattr__("publish")()
        self.is_published = True


class Memory(Did):
    def memory(self) -> KubernetesMemory:
        return KubernetesMemory(until_s=7.0)

    def go_on_by(self, before: KubernetesMemory) -> None:
        assert before.until_s == 7.0
        self.__getattr__("go_on_by")()


def made(did: list[str], tasks: Tasks, socket: Did, predecessor: Any = None, **parts: Any) -> Upgrades:
    part: Any = Did(did)
    holds: Any = Did(did)
    holds.hold_offs = Waits(did)
    return Upgrades(
        engine=part,
        socket=socket,  # type: ignore[arg-type]
        admissions=part,
        box=parts.get("box", part),
        cpu_manager=Waits(did),  # type: ignore[arg-type]
        reconciler=Waits(did),  # type: ignore[arg-type]
        holds=holds,
        workers=Workers(),
        reload=parts.get("reload", part),
        remembered=lambda: Remembered({}, STATE, holds=HELD),
        kubernetes=Memory(did),
        active=parts.get("active", part),
        watchdog=part,
        notifier=part,
        recorder=part,
        tasks=tasks,
        command=(),
        predecessor=predecessor,
        log=FakeLog(),
    )


@pytest.mark.parametrize("fails", ["clear_leftovers", "publish"])
def test_parts_work_again_after_a_hand_over_that_failed_whatever_fails_of_that(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrades, "_AGAIN_S", 0.001)
    did: list[str] = []

    async def play() -> Tasks:
        tasks = Tasks(FakeLog())
        socket = Socket(did, **{fails: 2})
        await made(did, tasks, socket).resume()
        async with asyncio.timeout(5.0):
            while not socket.is_published:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        await tasks.cancel()
        return tasks

    tasks = asyncio.run(play())
    assert tasks.failure is None
    assert did[:3] == ["resume", "resume", "resume"]
    assert {"begins", "begin", "publish"} <= set(did)


# --- taking over ---------------------------------------------------------------------------------------------------


class ReadsAgain:
    def __init__(self, did: list[str], error: Exception | None = None) -> None:
        self.did, self.error = did, error

    async def read_again(self) -> None:
        await asyncio.sleep(0)
        self.did.append("read_again")
        if self.error is not None:
            raise self.error


def taken_over(did: list[str], error: Exception | None = None, holds: Holds | None = None) -> tuple[bool, Upgrades]:
    async def play() -> tuple[bool, Upgrades]:
        box: Any = Did(did)
        box.pods = Did(did)
        new = made(did, Tasks(FakeLog()), Socket(did), Old(), reload=ReadsAgain(did, error), box=box)
        new.socket.path = "/run/x.sock"  # type: ignore[assignment]
        new.listed.set()
        new.holds = holds or new.holds
        return await new.take_over(()), new

    return asyncio.run(play())


def test_nothing_acts_before_all_that_may_have_changed_was_read_again() -> None:
    did: list[str] = []
    took, new = taken_over(did)
    assert took
    assert did == ["go_on_by", "read_again", "recall", "adopt", "expect", "refresh", "take_over"]
    assert new.ladder == STATE


def test_pod_that_was_stopped_may_not_start_in_the_process_that_takes_over() -> None:
    clock = FakeClock(10.0)
    _, new = taken_over([], holds=Holds(clock, no_hold_offs(clock), frozenset({ON_HARM})))
    assert new.holds.held(POD) == f"it was stopped, as online waits ({ON_HARM}), so it is not let in for 80 s"


@pytest.mark.parametrize("error", [TimeoutError("the disk"), ValueError("the config has errors")])
def test_what_cannot_be_read_again_leaves_the_node_to_the_other_process(error: Exception) -> None:
    did: list[str] = []
    took, new = taken_over(did, error)
    assert (took, new.waiting, did) == (False, True, ["go_on_by", "read_again"])
    assert isinstance(new.predecessor, Old)
    assert new.predecessor.declined == [str(error)]


# --- handing over --------------------------------------------------------------------------------------------------


def test_hold_off_under_way_is_waited_for_while_the_box_is_still_bounded() -> None:
    did: list[str] = []

    class HoldOffs:
        async def rest(self) -> None:
            await asyncio.sleep(0)
            did.append("hold-offs are written")

    async def play() -> tuple[Any, Any]:
        box: Any = Waits(did)
        box.path, box.pods = "/offline", Did(did)
        active: Any = Waits(did)
        active.sockets = list
        old = made(did, Tasks(FakeLog()), Socket(did), box=box, active=active)
        old.holds.hold_offs = HoldOffs()  # type: ignore[assignment]
        return await old.rest()

    _, (ladder, kubernetes, held, take) = asyncio.run(play())
    assert did[:2] == ["hold-offs are written", "cease"]
    assert isinstance(ladder, LadderMessage)
    assert msgspec.json.decode(ladder.state, type=InterferenceState) == STATE
    assert kubernetes == KubernetesMemory(until_s=7.0)
    assert held == HeldMessage(HELD)
    assert isinstance(take, Take)


@pytest.mark.parametrize("by_nri", [False, True], ids=["cri", "nri"])
def test_who_is_asked_until_the_connection_has_been_passed_on_judges_on(by_nri: bool) -> None:
    judges: list[bool] = []

    async def play() -> None:
        box: Any = Waits([])
        active: Any = Waits([])
        box.path, box.pods = "/offline", Did([])
        active.sockets = list
        old = made([], Tasks(FakeLog()), Socket([]), box=box, active=active)
        old.holds = SimpleNamespace(hold_offs=Waits([]), rest=lambda *, judges_on: judges.append(judges_on))  # type: ignore[assignment]
        old.nri = Did([]) if by_nri else None  # type: ignore[assignment]
        await old.rest()

    asyncio.run(play())
    assert judges == [by_nri]


@pytest.mark.parametrize(
    ("state", "passed", "sent"),
    [
        pytest.param(b'{"by":"socket"}', 1, b'{"by":"socket"}', id="short"),
        pytest.param(b'"' + b"x" * MOST_BYTES + b'"', 0, b"null", id="too-long"),
    ],
)
def test_connection_whose_state_is_too_long_for_a_message_is_dialled_anew(
    state: bytes, passed: int, sent: bytes
) -> None:
    """The new process would wait for it in vain, or take the old one for gone."""
    given: list[int] = []
    messages: list[NriMessage] = []
    log = FakeLog()
    successor: Any = SimpleNamespace(
        give=lambda sockets: given.append(len(sockets)), channel=SimpleNamespace(send=messages.append)
    )
    with socket.socket() as connection:
        upgrades._pass_nri(successor, log, [connection], state)
    assert (given, bytes(messages[0].state)) == ([passed], sent)
    assert log.names() == ([] if passed else ["nri_not_passed_on"])


@pytest.mark.parametrize("error", [CgroupError("cpu.max: no answer"), StuckError("a write hangs")])
def test_hand_over_is_refused_while_a_write_does_not_end(error: Exception) -> None:
    async def stuck() -> None:
        raise error

    async def play() -> None:
        box: Any = Waits([])
        box.settle = stuck
        old = made([], Tasks(FakeLog()), Socket([]), box=box, active=Waits([]))
        await old.rest()

    with pytest.raises(HandOverRefusedError, match=f"{error}: try again"):
        asyncio.run(play())


def test_hand_over_is_refused_while_pods_are_let_in_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the other process begins, nobody bounds the box."""
    monkeypatch.setattr(upgrades, "_SETTLES_S", 0.05)

    async def play() -> None:
        box: Any = Waits([])
        box.settle = asyncio.Event().wait
        old = made([], Tasks(FakeLog()), Socket([]), box=box, active=Waits([]))
        async with asyncio.timeout(5.0):
            await old.rest()

    with pytest.raises(HandOverRefusedError, match=r"pods are let in for longer than 0.05 s: try again"):
        asyncio.run(play())


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        pytest.param(HandOverRefusedError("the config has errors"), True, id="refused"),
        pytest.param(UpgradeError("pid 7 was not ready within 60 s"), False, id="did-not-start"),
        pytest.param(ZeroDivisionError("division by zero"), False, id="a-fault-of-ours"),
    ],
)
def test_status_says_whether_a_hand_over_was_refused(
    error: Exception, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = asyncio.Event()
    said: list[tuple[str, bool]] = []

    async def fails(*_: object) -> None:
        raise error

    def upgrade_failed(problem: str, *, refused: bool) -> None:
        said.append((problem, refused))
        counted.set()

    async def play() -> None:
        old = made([], Tasks(FakeLog()), Socket([]))
        old.socket.path = "/run/x.sock"  # type: ignore[assignment]
        old.recorder = SimpleNamespace(upgrade_failed=upgrade_failed)  # type: ignore[assignment]
        old.ask()
        working = asyncio.create_task(old._hand_over())
        async with asyncio.timeout(5.0):
            await counted.wait()
        working.cancel()

    monkeypatch.setattr(upgrades, "hand_over", fails)
    asyncio.run(play())
    assert said == [(str(error), refused)]
