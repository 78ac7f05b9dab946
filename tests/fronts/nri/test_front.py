"""The front's connections: dialled, handed over, lost and dialled anew, and every call answered in its time."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from structlog.testing import capture_logs

from criproxy.concurrency.clock import Clock
from criproxy.fronts.nri import front as front_module
from criproxy.fronts.nri import messages as nri
from criproxy.fronts.nri.front import NriFront, PassedOn
from criproxy.fronts.nri.handed import NAME, TAKEN
from criproxy.fronts.nri.plugin import RuntimeSeen
from criproxy.model.modes import Mode
from tests.fakes.nri import (
    BOXED,
    KUBELET,
    OFFLINE,
    ONLINE,
    AsyncNri,
    AsyncPlugins,
    call,
    container,
    event,
    registered,
    sandbox,
)
from tests.fakes.part import node_settings
from tests.fakes.waiting import until
from tests.fronts.nri.test_plugin import PluginBench

pytestmark = pytest.mark.usefixtures("runner", "quick")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_module, "_LATER_S", 0.02)
    monkeypatch.setattr(front_module, "DEADLINE_S", 30.0)


class NriRig:
    """A front, and the socket that it dials."""

    def __init__(self, directory: Path, *, awaits: bool = False) -> None:
        directory.mkdir(exist_ok=True)
        self.path = directory / "nri.sock"
        self.bench = PluginBench()
        self.listed = 0
        self.state, self.starts = "off", False
        self.info: RuntimeSeen | None = RuntimeSeen("containerd", "2.4.2")
        self.front = NriFront(
            self.bench.plugin,
            self.path,
            directory,
            self.list,
            self,
            sentry=self,
            clock=Clock(),
            log=structlog.get_logger(),
            awaits=awaits,
        )
        self.listener: socket.socket | None = None

    async def list(self) -> None:
        self.listed += 1

    def listen(self) -> None:
        self.path.unlink(missing_ok=True)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.path))
        self.listener.listen()
        self.listener.setblocking(False)

    async def accept(self) -> AsyncNri:
        assert self.listener is not None
        end, _ = await asyncio.wait_for(asyncio.get_running_loop().sock_accept(self.listener), 5)
        return AsyncNri(end)

    async def registered(self, *pods: Any, containers: Sequence[Any] = ()) -> AsyncNri:
        runtime = await self.accept()
        await runtime.register(b"v0.12.3", *pods, containers=containers)
        await asyncio.wait_for(self.front.registered.wait(), 5)
        return runtime


@asynccontextmanager
async def rig(directory: Path, *, acts: bool = True, listens: bool = True) -> AsyncIterator[NriRig]:
    made = NriRig(directory)
    if listens:
        made.listen()
    made.front.start()
    if acts:
        made.front.act()
    try:
        yield made
    finally:
        await made.front.stop(0.1)
        if made.listener is not None:
            made.listener.close()


async def test_it_registers_and_answers_and_pods_are_listed_then(tmp_path: Path) -> None:
    async with rig(tmp_path) as one:
        assert list(one.front.problems())
        assert one.front.unready()
        runtime = await one.registered()
        answer = await runtime.ask(5, "RunPodSandbox", event(sandbox(labels=ONLINE)))
        assert (answer.stream, answer.response.HasField("status")) == (5, False)
        assert list(one.front.problems()) == []
        assert one.front.unready() is None
        await until(lambda: one.listed == 1)
        shown = one.front.section()["nri"]
        assert (shown.connected, shown.by, shown.runtime, shown.lost) == (True, "socket", "containerd 2.4", 0)


async def test_the_status_says_what_this_front_does_not_do(tmp_path: Path) -> None:
    async with rig(tmp_path) as one:
        await one.registered()
        past = "at the runtime's start: {}; while criproxy is away: {}"
        front, not_bounded = one.front.rows()
        required = "closed for pods that require the plugin"
        assert past.format(required, f"{required}, but for one container that the runtime waits 2 s for") in front
        assert not_bounded[0] == "not bounded"
        one.state = "on"
        assert past.format(required, "closed") in next(one.front.rows())
        one.state, one.starts = "not known", True
        assert past.format("closed", required) in next(one.front.rows())[-2]
        one.state = "on"
        assert past.format("closed", "closed") in next(one.front.rows())
        one.front.configure(node_settings('[hardening]\ncapabilities = ["NET_RAW"]\n').config)
        assert [text.partition(" (")[0] for text in one.front.problems()] == [
            'hardening.capabilities: no effect with proxy.front = "nri"'
        ]


async def test_a_runtime_that_comes_later_and_goes_is_dialled_anew(tmp_path: Path) -> None:
    async with rig(tmp_path, listens=False) as one:
        await asyncio.sleep(0.03)
        one.listen()
        with capture_logs() as logs:
            (await one.registered()).end.close()
            await one.registered()
        assert one.front.lost == 1
        assert [entry["event"] for entry in logs].count("nri_lost") == 1


async def test_nothing_is_lent_once_the_runtime_has_not_called_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path, listens=False) as one:
        assert (one.front.knows_modes(), one.front.modes()) == (False, {}), "its NRI may be off"
        with monkeypatch.context() as later:
            later.setattr(front_module, "_NOT_CALLED_S", 0.0)
            assert (one.front.knows_modes(), list(one.front.modes())) == (True, [Mode.NOT_CALLED])
        one.listen()
        runtime = await one.registered()
        assert (one.front.knows_modes(), one.front.modes()) == (True, {})
        runtime.end.close()
        await until(lambda: not one.front.connected)
        assert (one.front.knows_modes(), one.front.modes()) == (True, {}), "it may be restarted"
        monkeypatch.setattr(front_module, "_NOT_CALLED_S", 0.0)
        assert list(one.front.modes()) == [Mode.NOT_CALLED]


async def test_an_offline_pods_call_has_an_answer_in_its_time_and_an_online_ones_does_not_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_module, "DEADLINE_S", 0.3)
    async with rig(tmp_path) as one:
        runtime, stuck = await one.registered(), asyncio.Event()

        async def admit(*_: Any, **__: Any) -> None:
            await stuck.wait()

        one.bench.box.admit = admit  # type: ignore[method-assign]
        runtime.send(call(5, "RunPodSandbox", event(sandbox())))
        first = await runtime.ask(7, "RunPodSandbox", event(sandbox("s2", labels=ONLINE, parent="/kubepods/pod2")))
        assert (first.stream, first.response.HasField("status")) == (7, False)
        second = await runtime.answer()
        assert second.stream == 5
        assert b"did not make room for it within" in second.response.status.message
        stuck.set()


async def test_what_the_runtime_writes_wrongly_ends_the_connection_and_is_said(tmp_path: Path) -> None:
    async with rig(tmp_path) as one:
        runtime = await one.registered()
        runtime.send(b"\xff" * 8)
        assert await runtime.is_closed()
        await until(lambda: "can't be followed" in one.front.problem)


async def test_a_fault_of_our_own_lets_an_online_pod_start(tmp_path: Path) -> None:
    async with rig(tmp_path) as one:
        runtime = await one.registered()
        one.bench.plugin.placing = None  # type: ignore[assignment]
        with capture_logs() as logs:
            answer = await runtime.ask(5, "CreateContainer", event(sandbox(labels=ONLINE), container()))
        assert not answer.response.HasField("status")
        assert [entry["event"] for entry in logs] == ["nri_call_failed"]


async def test_a_runtime_that_does_not_know_an_event_is_asked_for_less_the_next_time(tmp_path: Path) -> None:
    async with rig(tmp_path) as one:
        runtime = await one.accept()
        await runtime.answer()
        asked = nri.ConfigureRequest(NRI_version=b"v0.12.0").SerializeToString()
        first = await runtime.ask(1, "Configure", asked)
        runtime.end.close()
        runtime = await one.accept()
        await runtime.answer()
        second = await runtime.ask(1, "Configure", asked)
        masks = [nri.ConfigureResponse.FromString(one.response.payload).events for one in (first, second)]
        assert masks[0] - masks[1] == 1 << 11
        await runtime.ask(3, "Synchronize")
        await asyncio.wait_for(one.front.registered.wait(), 5)
        runtime.end.close()
        runtime = await one.accept()
        await runtime.answer()
        third = await runtime.ask(1, "Configure", asked)
        assert nri.ConfigureResponse.FromString(third.response.payload).events == masks[0], "perhaps it only ended"


async def test_a_runtime_that_is_slow_to_synchronize_is_asked_for_all_events_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_module, "_REGISTERS_S", 0.2)
    asked, masks = nri.ConfigureRequest(NRI_version=b"v0.12.0").SerializeToString(), []
    async with rig(tmp_path) as one:
        for ends in (False, True, False):
            runtime = await one.accept()
            await runtime.answer()
            answer = await runtime.ask(1, "Configure", asked)
            masks.append(nri.ConfigureResponse.FromString(answer.response.payload).events)
            if ends:  # as it is out of its patience with what we say to Synchronize
                await runtime.ask(3, "Synchronize", nri.SynchronizeRequest(more=True).SerializeToString())
                runtime.end.close()
    assert masks[0] == masks[1] == masks[2]


async def test_it_is_registered_once_the_runtime_has_told_all_parts(tmp_path: Path) -> None:
    async with rig(tmp_path) as one:
        runtime = await one.accept()
        await runtime.answer()
        await runtime.ask(1, "Configure", nri.ConfigureRequest(NRI_version=b"v0.12.0").SerializeToString())
        await runtime.ask(3, "Synchronize", nri.SynchronizeRequest(pods=[sandbox()], more=True).SerializeToString())
        assert not one.front.connected
        await runtime.ask(5, "Synchronize", nri.SynchronizeRequest().SerializeToString())
        await asyncio.wait_for(one.front.registered.wait(), 5)


async def test_one_that_is_refused_says_why(tmp_path: Path) -> None:
    async with rig(tmp_path) as one:
        runtime = await one.accept()
        await runtime.answer()
        runtime.send(registered(2, "no such index"))
        assert await runtime.is_closed()
        await until(lambda: "no such index" in one.front.problem)


async def test_a_connection_that_is_handed_over_is_served_and_the_socket_is_not_dialled_meanwhile(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, listens=False) as one:
        runtime = brought(tmp_path)
        await runtime.register()
        await asyncio.wait_for(one.front.registered.wait(), 5)
        assert one.front.section()["nri"].by == "launcher"
        runtime.end.close()
        await until(lambda: not one.front.connected)


def brought(directory: Path) -> AsyncNri:
    """The runtime's end of a connection that the launcher brings."""
    with socket.socket(socket.AF_UNIX) as launcher:
        return brought_by(launcher, directory)


def brought_by(launcher: socket.socket, directory: Path) -> AsyncNri:
    ours, theirs = socket.socketpair()
    with theirs:
        launcher.connect(str(directory / NAME))
        said = {"plugin_name": "criproxy", "plugin_index": "50", "runtime": "containerd"}
        socket.send_fds(launcher, [json.dumps(said).encode()], [theirs.fileno()])
    return AsyncNri(ours)


async def test_who_hands_over_leaves_once_its_calls_have_ended(tmp_path: Path) -> None:
    async with rig(tmp_path) as one:
        runtime, stuck = await one.registered(), asyncio.Event()

        async def admit(*_: Any, **__: Any) -> None:
            await stuck.wait()

        one.bench.box.admit = admit  # type: ignore[method-assign]
        runtime.send(call(5, "RunPodSandbox", event(sandbox())))
        await until(lambda: one.front.busy)
        leaving = asyncio.ensure_future(one.front.drain(5))
        stuck.set()
        answer = await runtime.answer()
        assert (answer.stream, answer.response.HasField("status")) == (5, False)
        assert await runtime.is_closed()
        await leaving


async def test_one_that_waits_for_its_turn_is_registered_and_places_nothing(tmp_path: Path) -> None:
    async with rig(tmp_path, acts=False) as one:
        runtime = await one.registered()
        answer = await runtime.ask(5, "RunPodSandbox", event(sandbox()))
        assert not answer.response.HasField("status")
        assert one.bench.box.admitted == []
        assert not (tmp_path / NAME).exists()


LATER = "c2"
"""Another container of the pod, when both are back."""


@pytest.mark.parametrize("in_time", ["the start", "nothing"])
async def test_a_container_that_both_of_a_hand_over_are_late_for_is_made_outside_and_told_by_both(
    tmp_path: Path, in_time: str
) -> None:
    """As on a node without CPU: the runtime asks the old one, and then the new, 2 s each, and makes the container."""
    async with rig(tmp_path / "old") as old, rig(tmp_path / "new", acts=False) as new:
        plugins = AsyncPlugins(*(ends := [await old.registered(), await new.registered()]))
        old.bench.cgroups.has = new.bench.cgroups.has = boxed = set[str]()  # one node
        if in_time == "the start":
            assert await plugins.run(sandbox()) == ""
            boxed.add(BOXED)
            made, refusal = await plugins.create(sandbox(), container(), late=ends)
        else:
            assert await plugins.run(sandbox(), late=ends) == ""
            made, refusal = await plugins.create(sandbox(), container())
        assert (made.linux.cgroups_path.decode(), refusal) == (f"{KUBELET}/c1", "")

        with capture_logs() as logs:
            plugins = AsyncPlugins(*[await one.registered(sandbox(), containers=[made]) for one in (old, new)])
        told = [log for log in logs if log["event"] == "nri_missed"]
        assert [log["containers"] for log in told] == [["batch/job, container main"]] * 2
        assert (old.front.missed, new.front.missed) == (1, 1)
        await until(lambda: old.listed == 2)  # and so the placement is checked, and what is outside is stopped

        new.front.act()
        made, _ = await plugins.create(sandbox(), container(LATER))
        assert made.linux.cgroups_path.decode() == f"{BOXED}/{LATER}"


async def test_a_container_that_the_old_one_alone_is_late_for_is_placed_by_the_new_one(tmp_path: Path) -> None:
    async with rig(tmp_path / "old") as old, rig(tmp_path / "new", acts=False) as new:
        plugins = AsyncPlugins(end := await old.registered(), await new.registered())
        old.bench.cgroups.has = new.bench.cgroups.has = boxed = set[str]()
        assert await plugins.run(sandbox()) == ""
        boxed.add(BOXED)
        made, _ = await plugins.create(sandbox(), container(), late=[end])
        assert made.linux.cgroups_path.decode() == f"{BOXED}/c1"
        assert new.bench.box.admitted == []


async def test_a_container_whose_start_the_old_one_was_late_for_waits_for_the_new_ones_turn(tmp_path: Path) -> None:
    async with rig(tmp_path / "old") as old, rig(tmp_path / "new", acts=False) as new:
        plugins = AsyncPlugins(end := await old.registered(), await new.registered())
        assert await plugins.run(sandbox(), late=[end]) == ""
        _, refusal = await plugins.create(sandbox(), container())
        assert "the old one was too slow for it; kubelet tries again by itself" in refusal
        new.front.act()
        made, refusal = await plugins.create(sandbox(), container())
        assert (made.linux.cgroups_path.decode(), refusal) == (f"{BOXED}/c1", "")


@pytest.mark.parametrize(
    ("told_s", "deadline_s", "problems"),
    [(0.0, 0.45, 0), (2.0, 0.45, 0), (60.0, 0.45, 0), (0.5, 0.25, 0), (0.4, 0.2, 0), (0.3, 0.15, 1)],
)
async def test_an_answer_comes_in_half_of_the_time_that_the_runtime_has_for_it(
    tmp_path: Path, told_s: float, deadline_s: float, problems: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_module, "DEADLINE_S", 0.45)
    async with rig(tmp_path) as one:
        runtime = await one.registered()
        one.bench.plugin.runtime = RuntimeSeen("containerd", "2.4.2", request_timeout_s=told_s)
        assert len(list(one.front.problems())) == problems
        stuck = asyncio.Event()

        async def admit(*_: Any, **__: Any) -> None:
            await stuck.wait()

        one.bench.box.admit = admit  # type: ignore[method-assign]
        answer = await runtime.ask(5, "RunPodSandbox", event(sandbox()))
        assert f"did not make room for it within {deadline_s:g} s" in answer.response.status.message.decode()
        stuck.set()


@pytest.mark.parametrize(
    ("info", "says"),
    [
        (None, "over CRI"),
        (RuntimeSeen("containerd", "1.7.15"), "can lock up"),
        (RuntimeSeen("containerd", "?"), "lock"),
    ],
)
async def test_a_runtime_that_a_plugin_can_lock_up_is_not_dialled(
    tmp_path: Path, info: RuntimeSeen | None, says: str
) -> None:
    async with rig(tmp_path, listens=False) as one:
        one.info = info
        one.listen()
        await until(lambda: says in one.front.problem)
        assert one.listener is not None
        with pytest.raises(BlockingIOError):
            one.listener.accept()
        one.info = RuntimeSeen("containerd", "v1.7.24")
        await one.registered()


# --- a hand-over ----------------------------------------------------------------------------------------------------


def passing(old: NriRig, new: NriRig) -> None:
    """What the channel between two processes does."""

    def pass_on(sockets: Sequence[socket.socket], state: bytes) -> None:
        new.front.take([socket.socket(fileno=os.dup(one.fileno())) for one in sockets], state)

    old.front.pass_on = pass_on


@asynccontextmanager
async def waiting(directory: Path) -> AsyncIterator[NriRig]:
    """The new process: it has not registered, and counts as called."""
    made = NriRig(directory, awaits=True)
    made.front.start()
    try:
        yield made
    finally:
        await made.front.stop(0.1)


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "not listed yet"])
async def test_connection_goes_on_in_another_process_with_what_it_knows(tmp_path: Path, listed: bool) -> None:
    async with rig(tmp_path / "old") as old, waiting(tmp_path / "new") as new:
        runtime = await old.registered()
        await runtime.ask(1, "RunPodSandbox", event(sandbox()))
        passing(old, new)
        assert new.front.connected
        new.front.act()
        if listed:
            new.bench.runtime.placements["s1"] = ""
        new.bench.runtime.placements["has gone since"] = ""
        await new.bench.inventory.refresh()
        await old.front.drain(5)
        assert new.bench.inventory.ids == ("s1",)
        del new.bench.runtime.placements["has gone since"]
        await new.bench.inventory.refresh()
        answer = await runtime.ask(3, "CreateContainer", event(sandbox(), container()))
        assert answer.created.cgroups_path.decode() == f"{BOXED}/c1"
        await until(lambda: new.listed)
        shown = new.front.section()["nri"]
        assert (shown.connected, shown.by, shown.runtime, new.listed) == (True, "socket", "containerd 2.4", 1)
        assert not old.front.connected
        assert new.bench.inventory.places_known


async def test_state_that_is_passed_on_has_of_pods_texts_what_is_read(tmp_path: Path) -> None:
    """However much pods have of others."""
    read = {"colocation.criproxy.io/notice-seconds": "30", "colocation.criproxy.io/priority": "-7"}
    others = {"note": "\x01" * (128 * 1024)}
    async with rig(tmp_path / "old") as old, waiting(tmp_path / "new") as new:
        runtime, states = await old.registered(), list[bytes]()
        for number in range(11):
            started = sandbox(f"s{number}", annotations=read | others, labels=OFFLINE | {"job-name": "a"})
            await runtime.ask(1 + 2 * number, "RunPodSandbox", event(started))
        old.front.pass_on = lambda _, state: states.append(state)
        await old.front.drain(5)
        assert 0 < len(states[0]) < 64 * 1024
        new.front.plugin.recall(msgspec.json.decode(states[0], type=PassedOn).plugin)
        (one,) = (one for one in new.bench.inventory.marked if one.id == "s1")
        assert (one.annotations, one.labels["job-name"]) == (read, "a")
        assert new.bench.inventory.notice_s("s1") == 30


async def test_call_that_is_under_way_is_answered_by_the_old_process_and_the_next_by_the_new(tmp_path: Path) -> None:
    async with rig(tmp_path / "old") as old, waiting(tmp_path / "new") as new:
        runtime = await old.registered()
        room = asyncio.Event()

        async def admit(*_: Any, **__: Any) -> None:
            await room.wait()

        old.bench.box.admit = admit  # type: ignore[method-assign]
        asked = asyncio.create_task(runtime.ask(1, "RunPodSandbox", event(sandbox())))
        await until(lambda: old.front.busy)
        passing(old, new)
        new.front.act()
        draining = asyncio.create_task(old.front.drain(5))
        await asyncio.sleep(0.05)
        assert not draining.done()
        room.set()
        assert not (await asked).response.HasField("status")
        await draining
        await runtime.ask(3, "RunPodSandbox", event(sandbox("s2", labels=ONLINE)))
        assert new.bench.inventory.known("s2") is not None


async def test_call_that_was_refused_as_late_does_not_keep_the_connection_from_going_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_module, "DEADLINE_S", 0.05)
    async with rig(tmp_path / "old") as old, waiting(tmp_path / "new") as new:
        runtime, hung = await old.registered(), asyncio.Event()

        async def admit(*_: Any, **__: Any) -> None:
            await hung.wait()

        old.bench.box.admit = admit  # type: ignore[method-assign]
        answer = await runtime.ask(1, "RunPodSandbox", event(sandbox()))
        assert b"did not make room for it within" in answer.response.status.message
        passing(old, new)
        new.front.act()
        await asyncio.wait_for(old.front.drain(3600), 5)
        await until(partial(is_served_by, new))
        hung.set()


async def test_message_that_has_come_in_part_is_read_to_its_end_before_the_connection_goes_on(tmp_path: Path) -> None:
    async with rig(tmp_path / "old") as old, waiting(tmp_path / "new") as new:
        runtime = await old.registered()
        whole = call(1, "RunPodSandbox", event(sandbox(labels=ONLINE)))
        runtime.end.send(whole[:20])
        await asyncio.sleep(0.05)
        passing(old, new)
        new.front.act()
        draining = asyncio.create_task(old.front.drain(5))
        await asyncio.sleep(0.05)
        runtime.end.send(whole[20:])
        await draining
        assert old.bench.inventory.known("s1") is not None
        await runtime.ask(3, "RunPodSandbox", event(sandbox("s2", labels=ONLINE)))
        assert new.bench.inventory.known("s2") is not None


@pytest.mark.parametrize("told", [True, False], ids=["it says so", "it says nothing"])
async def test_new_process_registers_where_the_old_one_has_no_connection_to_pass_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    monkeypatch.setattr(front_module, "_PASSED_S", 0.05)
    async with waiting(tmp_path) as new:
        new.listen()
        if told:
            new.front.take((), b"null")
        else:
            new.front.act()
        await new.registered()
        assert new.front.section()["nri"].by == "socket"
        assert new.listener is not None
        new.listener.close()


async def test_process_whose_connection_goes_on_elsewhere_registers_no_more(tmp_path: Path) -> None:
    async with rig(tmp_path / "1") as first, waiting(tmp_path / "2") as second, waiting(tmp_path / "3") as third:
        runtime = await first.registered()
        for one, other in ((first, second), (second, third)):
            passing(one, other)
            other.front.act()
            await one.front.drain(5)
            await until(partial(is_served_by, other))
        second.listen()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(second.accept(), 0.2)
        runtime.end.close()
        third.listen()
        await third.registered()
        for one in (second, third):
            assert one.listener is not None
            one.listener.close()


@asynccontextmanager
async def two_upgrades(directory: Path) -> AsyncIterator[tuple[AsyncNri, NriRig, NriRig, NriRig]]:
    """The second has begun while the first old process still has the connection to the runtime."""
    async with rig(directory / "1") as first, waiting(directory / "2") as second, waiting(directory / "3") as third:
        runtime = await first.registered()
        passing(first, second)
        passing(second, third)
        for one in (second, third):
            one.front.act()
        yield runtime, first, second, third


async def test_second_upgrade_waits_for_the_connection_of_the_first(tmp_path: Path) -> None:
    async with two_upgrades(tmp_path) as (runtime, first, second, third):
        leaving = asyncio.create_task(second.front.drain(5))
        await asyncio.sleep(0.05)
        assert not leaving.done()
        await first.front.drain(5)
        await leaving
        await runtime.ask(3, "RunPodSandbox", event(sandbox(labels=ONLINE)))
        assert third.bench.inventory.known("s1") is not None


async def test_process_that_has_left_takes_no_connection(tmp_path: Path) -> None:
    async with two_upgrades(tmp_path) as (runtime, first, second, third):
        await second.front.drain(0.05)
        third.listen()
        later = await third.registered()
        await first.front.drain(5)
        assert await runtime.is_closed()
        assert (await later.ask(5, "RunPodSandbox", event(sandbox(labels=ONLINE)))).stream == 5
        assert third.listener is not None
        third.listener.close()


async def test_launcher_ends_with_its_connection_in_whichever_process_that_is(tmp_path: Path) -> None:
    """The runtime waits for no plugin that ends before: it would stay as a zombie."""
    async with rig(tmp_path / "old", listens=False) as old, waiting(tmp_path / "new") as new:
        with socket.socket(socket.AF_UNIX) as launcher:
            runtime = brought_by(launcher, tmp_path / "old")
            launcher.setblocking(False)
            await runtime.register()
            await asyncio.wait_for(old.front.registered.wait(), 5)
            passing(old, new)
            new.front.act()
            await old.front.drain(5)
            await until(partial(is_served_by, new))
            await until(lambda: not old.front._launcher._serving)
            assert launcher.recv(2) == TAKEN
            with pytest.raises(BlockingIOError):
                launcher.recv(1)
            runtime.end.close()
            assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(launcher, 1), 5) == b""


async def test_connection_that_the_launcher_brings_meanwhile_is_enough(tmp_path: Path) -> None:
    async with waiting(tmp_path) as new:
        new.listen()
        new.front.act()
        runtime = brought(tmp_path)
        await runtime.register()
        await until(lambda: is_served_by(new))
        new.front.take((), b"null")
        assert new.front.connected
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(new.accept(), 0.2)
        runtime.end.close()
        assert new.listener is not None
        new.listener.close()


def is_served_by(one: NriRig) -> bool:
    return bool(one.front.section()["nri"].by)
