"""The checkpoint on disk: whole or not there, and never in the way of a start."""

import asyncio
import json
import os
import re
import stat
import threading
import time
from types import SimpleNamespace

import msgspec
import pytest
from msgspec.structs import replace

from criproxy.concurrency.clock import Clock
from criproxy.control.histogram import CPU_BUCKETS
from criproxy.control.interference.ladder import LadderSettings, Rung, Transition
from criproxy.control.interference.responder import Move, Responder
from criproxy.control.predictor import make_predictor
from criproxy.control.series import PredictorSettings
from criproxy.daemon.checkpoint import MAX_AGE_S, MOST_BYTES, Checkpointer, CheckpointFile, Remembered
from criproxy.daemon.round import Round
from criproxy.daemon.upgrade.channel import KubernetesMemory
from criproxy.model import GivingBack, PodRef
from criproxy.pods.interference import InterferenceState
from criproxy.pods.stopping import ON_HARM, ON_UNBOUNDED, HeldPod, Holds, StopBudget
from criproxy.vocabulary.gives_back import MOST_WAIT_S
from tests.fakes.clock import FakeClock, Stop
from tests.fakes.counters import FakeCounters
from tests.fakes.hold_offs import no_hold_offs
from tests.fakes.log import FakeLog
from tests.fakes.waiting import until


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def log():
    return FakeLog()


@pytest.fixture
def file(tmp_path, clock, log):
    return CheckpointFile(tmp_path / "state" / "predictor.json", clock, log)


@pytest.fixture
def states(clock):
    predictor = make_predictor(PredictorSettings(), CPU_BUCKETS)
    for i in range(3000):
        t = clock.now - 3000 + i
        predictor.observe(t, clock.wall - 3000 + i, (37 * i % 101) / 10, 32.0)
    return Remembered({"cpu": predictor.checkpoint()}, kubernetes=KubernetesMemory())


def unsigned(file):
    """The file's text as a criproxy wrote it that knew no checksum."""
    return re.sub(r'"crc32":"[0-9a-f]{8}",', "", file.path.read_text())


class Memory:
    """What was learned, by all of which is known `states`; what comes back to it is `restored`, in order."""

    def __init__(self, states=None):
        self.states = states or Remembered({})
        self.restored: list[tuple[object, float]] = []
        self.waits: list[bool] = []
        self.harm = SimpleNamespace(
            checkpoint=lambda: self.states.interference, restore=lambda *what: self.restored.append(what)
        )

    def predictors(self):
        return self.states.predictors

    def restore(self, *what):
        self.restored.append(what)

    def wait_for_checkpoint(self, waits):
        self.waits.append(waits)


class Promises:
    """What Kubernetes was promised."""

    def __init__(self, memory=None):
        self.now = memory or KubernetesMemory()

    def memory(self):
        return self.now

    def go_on_by(self, before):
        self.now = before


def keeper(file, states=None, *, promises=None, stops_by=(ON_HARM,)):
    holds = Holds(file.clock, no_hold_offs(file.clock), frozenset(stops_by))
    return Checkpointer(file, Memory(states), Promises(promises), holds, StopBudget())


def round_of(part, clock, log):
    return Round([part], FakeCounters(), clock, log)


def with_one_sample(states):
    return replace(states, predictors={"cpu": replace(states.predictors["cpu"], samples=1)})


def responder():
    """Of a box whose CPU is on its way down the ladder."""
    known = Responder(LadderSettings())
    for t_s in range(30):
        known.tick(1000.0 + t_s, {"cpu_pressure": 50.0 if t_s < 8 else 5.0}, 3)
    return known


def test_where_the_ladder_stands_is_written_and_read(file, states):
    known = responder()
    move = Move(1.5, Transition(1000.0, "cpu", Rung.OPEN, Rung.TRIED, "cpu_pressure", "it waits"))
    kept = InterferenceState(known.state(), (move,))
    file.write(replace(states, interference=kept))
    again = Responder(LadderSettings())
    loaded, _ = file.load()
    again.load(loaded.interference.responder)
    assert loaded == replace(states, interference=kept)
    assert again.state() == known.state()


def test_ladder_that_another_version_has_written_costs_nobody_the_rest(file, states, log):
    file.write(states)
    file.path.write_text(unsigned(file).replace('"interference":null', '"interference":{"rungs":[]}'))
    assert file.load() == (states, 0.0)
    assert log.names() == ["interference_starts_cold"]


def test_hurry_saves_at_once(file, states, log):
    checkpointer = keeper(file, states)

    async def main():
        running = asyncio.create_task(round_of(checkpointer, Clock(), log).run())
        await asyncio.sleep(0.01)
        assert not file.path.exists()
        checkpointer.budget.counts.set()
        await until(file.path.exists)
        running.cancel()

    asyncio.run(main())
    assert file.load() == (states, 0.0)


def test_checkpoint_written_then_loaded_is_bit_exact(file, states, log):
    file.write(states)
    assert file.load() == (states, 0.0)
    assert log.events == []


def test_checkpoint_missing_file_loads_nothing_silently(file, log):
    assert file.load() == (Remembered({}), 0.0)
    assert log.events == []


@pytest.mark.parametrize(
    "moved",
    [
        (30.0, 1030.0, 0.0),
        (50.0, 1030.0, 0.0),
        (-10.0, 1030.0, 0.0),
        (30.0, 12.0, 12.0 - 1000.0 - 30.0),
        (-10.0, 12.0, 12.0 - 1000.0),
        (3000.0, 1000.0, -3000.0),
        (3630.0, 1030.0, -3600.0),
    ],
    ids=[
        "same-boot",
        "wall-set-ahead",
        "wall-set-back",
        "rebooted",
        "rebooted-and-wall-set-back",
        "rebooted-with-longer-uptime",
        "wall-set-far-ahead",
    ],
)
def test_checkpoint_times_are_moved_by_what_the_boots_differ(file, states, clock, moved):
    file.write(states)
    wall_later, clock.now, shift = moved
    clock.wall += wall_later
    assert file.load() == (states, shift)


def test_checkpoint_after_a_reboot_is_taken_over_by_the_predictor(file, states, clock):
    file.write(states)
    clock.advance(90.0)
    clock.now = 12.0
    loaded, shift = file.load()
    predictor = make_predictor(PredictorSettings(), CPU_BUCKETS)
    assert predictor.restore(loaded.predictors["cpu"], clock.now, shift) == ()
    assert predictor.checkpoint().samples == 3000


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda text: "", "truncated"),
        (lambda text: text[: len(text) // 2], "truncated|malformed"),
        (lambda text: "not json", "malformed"),
        (lambda text: "[]", "Expected `object`"),
        (lambda text: "{}", "version is missing"),
        (lambda text: text.replace('"version":1', '"version":2'), "version is 2, not 1"),
        (lambda text: text.replace('"samples":3000', '"samples":"many"'), "Expected `int`"),
        (lambda text: text.replace('"usage"', '"use"'), "missing required field `usage`"),
        (lambda text: text.replace('"wall_s":1700006400.0', '"wall_s":1700006461.0'), "-61 s old"),
        (lambda text: text.replace('"wall_s":1700006400.0', f'"wall_s":{1700006399.0 - MAX_AGE_S}'), "604801 s old"),
        (lambda text: text.replace('"wall_s":1700006400.0', '"wall_s":1e999'), "out of range"),
        (lambda text: "\udc80" + text, "malformed|invalid"),
        (lambda text: re.sub(r'"last_s":[0-9.]+', '"last_s":1e12', text, count=1), "last_s is 1e.12, later"),
        (lambda text: '{"x":' * 5000, "recursion"),
        (lambda text: text[:-1] + " " * MOST_BYTES + "}", "more than 16 MiB"),
    ],
    ids=["empty", "half", "text", "list", "no-version", "newer-version", "wrong-type", "missing-key", "future", "old",
         "infinite", "not-utf8", "moment-to-come", "deep", "large"],
)  # fmt: skip
def test_checkpoint_unusable_file_is_set_aside_with_one_line(file, states, log, spoil, reason):
    file.write(states)
    text = spoil(unsigned(file))
    file.path.write_bytes(text.encode(errors="surrogateescape"))
    assert file.load() == (Remembered({}), 0.0)
    [(level, event, fields)] = log.events
    assert (level, event) == ("warning", "checkpoint_set_aside")
    assert re.search(reason, fields["reason"]), fields["reason"]
    aside = file.path.with_name("predictor.json.bad")
    assert aside.read_bytes() == text.encode(errors="surrogateescape")
    assert not file.path.exists()
    assert file.load() == (Remembered({}), 0.0)


def test_checkpoint_with_any_bit_flipped_is_set_aside_or_says_the_same(file, states, log):
    """A name with another letter is a key that nobody misses: what it held would be gone, and nobody told."""
    file.write(replace(states, interference=InterferenceState(responder().state())))
    data, loaded = file.path.read_bytes(), file.load()
    log.events.clear()
    for at in range(0, len(data), 7):
        file.path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        found = file.load()
        assert found == loaded or (found == (Remembered({}), 0.0) and log.names()[-1] == "checkpoint_set_aside")
    assert len(log.events) > len(data) / 8


def test_checkpoint_of_a_criproxy_that_wrote_no_checksum_is_read(file, states, log):
    file.write(states)
    file.path.write_text(unsigned(file))
    assert file.load() == (states, 0.0)
    assert log.events == []


def test_ladder_with_a_moment_to_come_costs_nobody_the_rest(file, states, log):
    file.write(replace(states, interference=InterferenceState(responder().state())))
    file.path.write_text(re.sub(r'"t_s":[0-9.]+', '"t_s":1e12', unsigned(file), count=1))
    assert file.load() == (states, 0.0)
    assert log.names() == ["interference_starts_cold"]


def test_checkpoint_of_3_gib_is_set_aside_unread(file, log):
    file.path.parent.mkdir()
    with file.path.open("wb") as sparse:
        sparse.truncate(3 << 30)
    began_s = time.thread_time()
    assert file.load() == (Remembered({}), 0.0)
    assert log.names() == ["checkpoint_set_aside"]
    assert time.thread_time() - began_s < 1.0
    file.path.with_name("predictor.json.bad").unlink()


def test_checkpoint_that_is_a_fifo_is_set_aside_and_not_waited_for(file, log):
    file.path.parent.mkdir()
    os.mkfifo(file.path)
    assert file.load() == (Remembered({}), 0.0)
    assert log.names() == ["checkpoint_set_aside"]


def test_checkpoint_is_for_its_own_user_alone(file, states):
    file.write(states)
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700


def test_checkpoint_a_directory_in_its_place_is_not_fatal(file, log):
    file.path.mkdir(parents=True)
    assert file.load() == (Remembered({}), 0.0)
    assert log.names() == ["checkpoint_unreadable"]


def test_checkpoint_write_that_fails_leaves_the_old_file(file, states, monkeypatch):
    file.write(states)
    before = file.path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("criproxy.daemon.checkpoint.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        file.write(with_one_sample(states))
    assert file.path.read_bytes() == before


def test_checkpoint_old_file_is_never_written_into(file, states):
    """Who has it open, as who reads the disk after a power failure, sees it whole."""
    file.write(states)
    before = file.path.read_bytes()
    with file.path.open("rb") as old:
        file.write(with_one_sample(states))
        assert old.read() == before
    assert file.load()[0].predictors["cpu"].samples == 1
    assert [entry.name for entry in file.path.parent.iterdir()] == ["predictor.json"]


def test_checkpointer_writes_each_minute(file, states, clock, log):
    clock.stop_after = 4
    with pytest.raises(BaseExceptionGroup) as ended:
        asyncio.run(round_of(keeper(file, states), clock, log).run())
    assert ended.group_contains(Stop)
    assert clock.slept == [60.0] * 4
    assert json.loads(file.path.read_text())["boottime_s"] == 1000.0 + 180.0


def test_checkpointer_failure_is_logged_once_until_it_works(file, states, clock, log):
    file.path.parent.write_text("a file where the directory should be")
    checkpointer = keeper(file, states)
    round = round_of(checkpointer, clock, log)
    for _ in range(3):
        asyncio.run(round.look(checkpointer))
    assert log.names() == ["look_failed"]
    assert f"{file.path} can't be written" in checkpointer.failure
    file.path.parent.unlink()
    asyncio.run(round.look(checkpointer))
    assert file.load()[0] == states
    assert json.loads(file.path.read_text())["wall_s"] == clock.wall
    file.path.with_name("predictor.json.tmp").mkdir()
    asyncio.run(round.look(checkpointer))
    assert log.names() == ["look_failed", "look_succeeded", "look_failed"]


class SlowDisk:
    """fsync ends only when `freed` is set."""

    def __init__(self, monkeypatch):
        self.freed, self.entered = threading.Event(), threading.Event()
        self._fsync = os.fsync
        monkeypatch.setattr("criproxy.daemon.checkpoint.os.fsync", self._sync)
        monkeypatch.setattr("criproxy.daemon.checkpoint.LAST_S", 60.0)  # this machine may be slow, too

    def _sync(self, descriptor):
        self.entered.set()
        self.freed.wait()
        self._fsync(descriptor)

    def writers(self):
        return [thread for thread in threading.enumerate() if thread.name == "checkpoint"]

    def end(self):
        self.freed.set()
        for thread in self.writers():
            thread.join()


@pytest.fixture
def slow_disk(monkeypatch):
    disk = SlowDisk(monkeypatch)
    yield disk
    disk.end()


def test_last_checkpoint_waits_for_no_fsync_and_is_not_overwritten_by_one_before(file, states, clock, log, slow_disk):
    later = with_one_sample(states)
    checkpointer = keeper(file, states)

    async def main():
        each_minute = asyncio.create_task(checkpointer.look())
        await asyncio.to_thread(slow_disk.entered.wait)
        each_minute.cancel()  # as the end of the process does
        checkpointer.memory.states = later
        await checkpointer.save_last()

    asyncio.run(main())
    assert file.load()[0] == later
    slow_disk.end()
    assert file.load()[0] == later
    assert [entry.name for entry in file.path.parent.iterdir()] == ["predictor.json"]
    assert log.events == []


def test_last_checkpoint_of_a_disk_that_hangs_altogether_is_given_up(file, states, clock, log, monkeypatch):
    freed = threading.Event()
    monkeypatch.setattr("criproxy.daemon.checkpoint.LAST_S", 0.05)
    monkeypatch.setattr(CheckpointFile, "write", lambda *_, **__: freed.wait())
    try:
        asyncio.run(keeper(file, states).save_last())  # which joins asyncio's threads
        assert log.names() == ["checkpoint_given_up"]
    finally:
        freed.set()


def test_checkpoint_that_is_read_late_is_restored_and_not_saved_over_before(file, states, clock, log, monkeypatch):
    file.write(states)
    freed, load = threading.Event(), file.load
    monkeypatch.setattr(CheckpointFile, "load", lambda _: (freed.wait(), load())[1])
    checkpointer = keeper(file)
    memory = checkpointer.memory

    async def main():
        loading = asyncio.create_task(checkpointer.load())
        await asyncio.wait((loading,), timeout=0.05)
        assert (memory.restored, memory.waits) == ([], [True])
        await checkpointer.look()
        freed.set()
        await loading

    asyncio.run(main())
    assert (memory.restored, memory.waits) == ([(states.predictors, 0.0)], [True, False])


def test_checkpoint_of_a_disk_that_hangs_is_not_waited_for_for_ever_and_undoes_nothing_when_it_comes(
    file, states, log, monkeypatch
):
    kept = replace(states, interference=InterferenceState(responder().state()))
    file.write(kept)
    freed, load = threading.Event(), file.load
    monkeypatch.setattr("criproxy.daemon.checkpoint.WAITED_FOR_S", 0.01)
    monkeypatch.setattr(CheckpointFile, "load", lambda _: (freed.wait(), load())[1])

    checkpointer = keeper(file)
    memory = checkpointer.memory

    async def main():
        loading = asyncio.create_task(checkpointer.load())
        await until(lambda: memory.waits == [True, False])
        freed.set()
        await loading

    asyncio.run(main())
    assert memory.restored == [(states.predictors, 0.0)]
    assert log.names() == ["interference_starts_cold"]


@pytest.mark.parametrize("late", [False, True], ids=["ladder-unreadable", "late"])
def test_stops_that_count_are_known_again_without_the_ladder(file, states, clock, monkeypatch, late):
    began_s = {"s1": clock.now - 30.0, "s2": clock.now - 400.0}
    before = keeper(file, replace(states, interference=InterferenceState(responder().state())))
    before.budget.recall(began_s, clock.now)
    asyncio.run(before.save())
    if not late:
        file.path.write_text(unsigned(file).replace('"interference":{', '"interference":{"responder":1,'))
    freed, load = threading.Event(), file.load
    monkeypatch.setattr("criproxy.daemon.checkpoint.WAITED_FOR_S", 0.01 if late else 60.0)
    monkeypatch.setattr(CheckpointFile, "load", lambda _: (freed.wait(), load())[1])
    after = keeper(file)

    async def main():
        loading = asyncio.create_task(after.load())
        await until(lambda: after.memory.waits == ([True, False] if late else [True]))
        freed.set()
        await loading

    asyncio.run(main())
    assert after.memory.restored == [(states.predictors, 0.0)], "nothing is known of the ladder"
    assert after.budget.memory(clock.now) == began_s


@pytest.mark.parametrize("predictors", [True, False], ids=["all", "the-ladder-alone"])
def test_what_the_file_holds_is_restored_but_for_what_a_predecessor_has_passed_on(file, states, predictors):
    kept = InterferenceState(responder().state())
    file.write(replace(states, interference=kept))
    checkpointer = keeper(file)

    asyncio.run(checkpointer.load(predictors=predictors))

    assert checkpointer.memory.restored == [(states.predictors, 0.0)] * predictors + [(kept, 0.0)]


def test_restore_that_fails_keeps_nobody_waiting(file, states, log):
    def fail(*_):
        raise OverflowError("too large")

    file.write(states)
    checkpointer = keeper(file, states)
    checkpointer.memory.restore = fail
    asyncio.run(checkpointer.load())
    assert checkpointer.memory.waits == [True, False]
    assert "checkpoint_unreadable" in log.names()


# --- what was promised, and which pods are held --------------------------------------------------------------------

POD = PodRef("batch", "job", "7")
GIVING_BACK = GivingBack(3.0, 8.0, 9.0)


def restarted(file, before, **settings):
    file.write(before.remembered())
    after = keeper(file, **settings)
    asyncio.run(after.load())
    return after


def test_pod_that_was_stopped_may_not_start_after_a_restart(file, clock):
    before = keeper(file)
    before.holds.hold(POD, 60.0, "online waits", ON_HARM)
    clock.advance(20.0)
    after = restarted(file, before)
    assert after.holds.held(POD) == f"it was stopped, as online waits ({ON_HARM}), so it is not let in for 40 s"


def test_hold_ends_with_its_setting_over_a_restart(file):
    before = keeper(file)
    before.holds.hold(POD, 60.0, "online waits", ON_HARM)
    assert restarted(file, before, stops_by=(ON_UNBOUNDED,)).holds.held(POD) == ""


def test_hold_that_is_over_is_not_kept(file, clock):
    before = keeper(file)
    before.holds.hold(POD, 60.0, "online waits", ON_HARM)
    clock.advance(61.0)
    assert before.remembered().holds == ()


def test_memory_that_was_promised_is_waited_for_after_a_restart(file, clock):
    policy = msgspec.Raw(b'{"name":"night"}')
    before = keeper(file, promises=KubernetesMemory(policy, GIVING_BACK, clock.now + 99.0))
    after = restarted(file, before)
    assert after.kubernetes.now == KubernetesMemory(giving_back=GIVING_BACK, until_s=clock.now + 99.0)


def test_what_a_predecessor_has_promised_is_not_undone_by_the_file(file, clock):
    before = keeper(file, promises=KubernetesMemory(giving_back=GIVING_BACK, until_s=clock.now + 99.0))
    file.write(before.remembered())
    handed = KubernetesMemory(msgspec.Raw(b'{"name":"night"}'))
    after = keeper(file, promises=handed)
    asyncio.run(after.load(promises=False))
    assert after.kubernetes.now is handed


def test_times_of_another_boot_are_ours_after_it(file, clock):
    before = keeper(file, promises=KubernetesMemory(giving_back=GIVING_BACK, until_s=clock.now + 99.0))
    before.holds.hold(POD, 60.0, "online waits", ON_HARM)
    file.write(before.remembered())
    clock.now, clock.wall = 5.0, clock.wall + 10.0
    after = keeper(file)
    asyncio.run(after.load())
    assert after.kubernetes.now.until_s == pytest.approx(clock.now + 89.0)
    assert after.holds.held(POD).endswith("not let in for 50 s")


def test_no_time_of_the_file_is_believed_beyond_what_it_can_be(file, clock):
    held = (HeldPod(POD.uid, ON_HARM, 1e12, "online waits"),)
    file.write(Remembered({}, None, KubernetesMemory(giving_back=GIVING_BACK, until_s=1e12), held))
    after = keeper(file)
    asyncio.run(after.load())
    assert after.kubernetes.now.until_s == clock.now + MOST_WAIT_S
    assert after.holds.held(POD).endswith("not let in for 300 s")


@pytest.mark.parametrize("part", ["kubernetes", "holds"])
def test_part_that_another_version_has_written_costs_nobody_the_rest(file, states, log, clock, part):
    held = (HeldPod(POD.uid, ON_HARM, clock.now + 60.0, "online waits"),)
    whole = Remembered(
        states.predictors,
        InterferenceState(responder().state()),
        KubernetesMemory(giving_back=GIVING_BACK, until_s=clock.now + 99.0),
        held,
    )
    file.write(whole)
    document = json.loads(unsigned(file))
    file.path.write_text(json.dumps(document | {part: [{"another": 3}]}))
    assert file.load() == (replace(whole, **{part: Remembered({}).holds if part == "holds" else None}), 0.0)
    assert log.names() == ["checkpoint_part_unreadable"]
