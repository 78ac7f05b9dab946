"""Where pods are let in, before, amid and after a hand-over: nobody is forgotten, and one process writes."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import msgspec
import pytest

from criproxy.cgroup.naming import parse_placement
from criproxy.control.histogram import CPU_BUCKETS
from criproxy.control.predictor import make_predictor
from criproxy.control.series import PredictorSettings
from criproxy.daemon.upgrade.admission import Admissions, Remote
from criproxy.daemon.upgrade.channel import Channel, HeldMessage, Learned, Main, NriMessage, Ready, Serving, Take
from criproxy.daemon.upgrade.predecessor import CHANNEL, LISTENERS, NRI_EVENTS, Predecessor
from criproxy.model import AdmissionError, Resources
from criproxy.pods.stopping import ON_HARM, HeldPod
from tests.fakes.box import FakeAdmissions
from tests.fakes.waiting import until

PLACE = parse_placement("/offline/pod1")
RESIZED = Resources(cpu_period_us=100_000, cpu_quota_us=50_000, cpu_shares=512, memory_limit_bytes=6)


LEARNED = make_predictor(PredictorSettings(), CPU_BUCKETS).checkpoint()
HELD = (HeldPod("1", ON_HARM, 90.0, "online waits"),)


@dataclass
class Two:
    """The old process's end, and the new one's, which serves for `box`."""

    remote: Remote
    box: FakeAdmissions
    channel: Channel
    predecessor: Predecessor
    serving: asyncio.Task[None]
    mains: list[bool]
    changes: list[bool]
    listing: asyncio.Event
    """Cleared: the runtime answers no list."""
    giving: socket.socket
    """By which the old one gives sockets."""
    nri: list[tuple[bytes, bytes]]
    """What the new one has read from each connection to the runtime that it took over, and with which state."""


@contextlib.asynccontextmanager
async def handed_over() -> AsyncIterator[Two]:
    ours, theirs = socket.socketpair()
    giving, taking = socket.socketpair()
    end, way = theirs.detach(), taking.detach()
    environ = {CHANNEL: str(end), LISTENERS: f"{end}:{way}", NRI_EVENTS: f"{os.getpid()}:7", "PATH": "/bin"}
    predecessor = Predecessor.of_environment(environ)
    assert predecessor is not None
    assert environ == {"PATH": "/bin"}
    assert predecessor.nri_events == 7
    channel = await Channel.open(ours)
    turn = asyncio.create_task(predecessor.turn(Ready("1", "/l")))
    assert await channel.receive() == Ready("1", "/l")
    channel.send(Learned("cpu", LEARNED))
    channel.send(HeldMessage(HELD))
    channel.send(Take("/offline", ("pod0",)))
    assert await turn == Take("/offline", ("pod0",))
    assert (predecessor.learned, predecessor.held) == ({"cpu": LEARNED}, HELD)
    predecessor.serving()
    assert await channel.receive() == Serving()
    mains: list[bool] = []
    changes: list[bool] = []

    listing = asyncio.Event()
    listing.set()

    async def changed() -> None:
        changes.append(True)
        await listing.wait()

    nri: list[tuple[bytes, bytes]] = []

    def take_nri(sockets: Sequence[socket.socket], state: bytes) -> None:
        said = b"".join(one.recv(10) for one in sockets)
        assert not any(one.get_inheritable() for one in sockets)
        for one in sockets:
            one.close()
        nri.append((said, state))

    assert predecessor.listeners() == []
    box, remote = FakeAdmissions(), Remote(channel)
    serving = asyncio.create_task(predecessor.serve(box, lambda: mains.append(True), changed, take_nri))
    answering = asyncio.create_task(remote.run())
    yield Two(remote, box, channel, predecessor, serving, mains, changes, listing, giving, nri)
    for task in (serving, answering):
        task.cancel()
    await asyncio.gather(serving, answering, return_exceptions=True)
    channel.close()
    giving.close()


def test_nobody_hands_over_without_the_variable() -> None:
    assert Predecessor.of_environment({}) is None
    assert Predecessor.of_environment({CHANNEL: "junk"}) is None
    assert Predecessor.of_environment({CHANNEL: "9998", LISTENERS: "9998:9999"}) is None


def test_connection_to_nri_is_passed_on_once_the_listeners_have_been() -> None:
    async def play() -> None:
        async with handed_over() as two:
            runtime, ours = socket.socketpair()
            launcher, its = socket.socketpair()
            with runtime, ours, launcher, its:
                runtime.sendall(b"a call")
                launcher.sendall(b", 1")
                socket.send_fds(two.giving, [b"sockets"], [ours.fileno(), its.fileno()])
                two.channel.send(NriMessage(msgspec.Raw(b'{"by":"launcher"}')))
                await until(lambda: two.nri)
                assert two.nri == [(b"a call, 1", b'{"by":"launcher"}')]
            two.channel.send(NriMessage())
            await until(lambda: len(two.nri) == 2)
            assert two.nri[1] == (b"", b"null")
            two.channel.close()
            await until(lambda: len(two.nri) == 3)

    asyncio.run(play())


@pytest.mark.parametrize("left", ["1:7", "7", "", "1:"])
def test_what_another_process_has_left_in_the_environment_promises_no_connection(left: str) -> None:
    """A version that does not know the variable hands it on."""
    ours, theirs = socket.socketpair()
    giving, taking = socket.socketpair()
    with ours, giving:
        end, way = theirs.detach(), taking.detach()
        found = Predecessor.of_environment({CHANNEL: str(end), LISTENERS: f"{end}:{way}", NRI_EVENTS: left})
        assert found is not None
        assert found.nri_events == 0
        found.end.close()
        found.way.close()


def test_pod_is_let_in_by_the_new_process_and_its_refusal_is_passed_on() -> None:
    async def play() -> None:
        async with handed_over() as two:
            two.box.refused.add("pod2")
            await asyncio.gather(two.remote.admit(PLACE, 5, mid=True), two.remote.update_pod(PLACE, RESIZED))
            assert two.box.mid == ["pod1"]
            assert (two.box.admitted, two.box.resized) == ([("/offline/pod1", 5)], [("/offline/pod1", RESIZED)])
            with pytest.raises(AdmissionError, match="no room for pod2"):
                await two.remote.admit(parse_placement("/offline/pod2"), 0)

    asyncio.run(play())


def test_new_process_lists_at_once_and_when_the_old_one_has_changed_something() -> None:
    async def play() -> None:
        async with handed_over() as two:
            await until(lambda: len(two.changes) == 1)
            two.remote.forget("pod1")
            await until(lambda: two.box.forgotten == ["pod1"] and len(two.changes) == 2)
            two.remote.changed()
            await until(lambda: len(two.changes) == 3)
            assert two.mains == []
            two.channel.send(Main())
            await until(lambda: two.mains == [True])

    asyncio.run(play())


@pytest.mark.parametrize("ends", [False, True])
def test_pod_whose_start_is_over_counts_as_starting_until_it_is_listed(ends: bool) -> None:
    async def play() -> None:
        async with handed_over() as two:
            await until(lambda: len(two.changes) == 1)
            two.listing.clear()
            two.remote.forget("pod1")
            await until(lambda: len(two.changes) == 2)
            if ends:  # amid a list, which is made anew then
                two.channel.close()
                await until(lambda: len(two.changes) == 3)
            assert two.box.forgotten == []
            two.listing.set()
            await until(lambda: two.box.forgotten == ["pod1"])

    asyncio.run(play())


def test_end_of_the_old_process_makes_the_new_one_the_main_one_and_list_again() -> None:
    async def play() -> None:
        async with handed_over() as two:
            await until(lambda: len(two.changes) == 1)
            two.channel.close()
            await two.serving
            assert two.predecessor.gone.is_set()
            assert two.mains == [True]
            assert len(two.changes) == 2

    asyncio.run(play())


def test_end_of_the_new_process_refuses_pods_that_wait_and_those_to_come() -> None:
    async def play() -> None:
        ours, theirs = socket.socketpair()
        remote = Remote(await Channel.open(ours))
        answering = asyncio.create_task(remote.run())
        waiting = asyncio.create_task(remote.admit(PLACE, 0))
        await asyncio.sleep(0.01)
        theirs.close()
        with pytest.raises(AdmissionError, match="has gone: kubelet tries again"):
            await waiting
        await answering
        with pytest.raises(AdmissionError, match="has gone"):
            await remote.admit(PLACE, 0)

    asyncio.run(play())


@pytest.mark.parametrize("handed", [True, False])
def test_pods_that_come_amid_the_hand_over_wait_for_its_outcome(handed: bool) -> None:
    async def play() -> None:
        own, other = FakeAdmissions(), FakeAdmissions()
        admissions = Admissions(own)
        await admissions.admit(PLACE, 1)
        admissions.hold()
        waiting = [
            asyncio.create_task(admissions.admit(PLACE, 2)),
            asyncio.create_task(admissions.update_pod(PLACE, RESIZED)),
        ]
        await asyncio.sleep(0.01)
        assert (own.admitted, own.resized) == ([("/offline/pod1", 1)], [])
        if handed:
            admissions.hand_to(other)  # type: ignore[arg-type]
        else:
            admissions.resume()
        await asyncio.gather(*waiting)
        none: tuple[list[object], list[object]] = [], []
        late = [("/offline/pod1", 2)], [("/offline/pod1", RESIZED)]
        told = (own.admitted[1:], own.resized), (other.admitted, other.resized)
        assert told == ((none, late) if handed else (late, none))

    asyncio.run(play())


@pytest.mark.parametrize("handed", [True, False], ids=["handed-over", "failed"])
def test_start_that_ends_amid_the_hand_over_is_told_to_whom_the_pod_was_named(handed: bool) -> None:
    before, after = FakeAdmissions(), FakeAdmissions()
    admissions = Admissions(before)
    admissions.forget("pod1")
    admissions.hold()
    admissions.forget("pod2")
    if handed:
        admissions.hand_to(after)  # type: ignore[arg-type]
    else:
        admissions.resume()
        admissions.hold()
        admissions.hand_to(after)  # type: ignore[arg-type]
    admissions.forget("pod3")
    assert before.forgotten == ["pod1", "pod2"]
    assert after.forgotten == (["pod2", "pod3"] if handed else ["pod3"])
