"""The look at the config file for a change, and reading it beside the event loop."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from criproxy.config import Config, ConfigError, Loaded
from criproxy.config.settings import Colocation, Kubelet, Proxy
from criproxy.daemon.reload import FileWatch, Reload
from criproxy.daemon.settings import Timetable, placing
from criproxy.pods.part import NodeSettings
from tests.fakes.clock import FakeClock
from tests.fakes.waiting import until

ON, OFF = (Config(colocation=Colocation(enabled=enabled)) for enabled in (True, False))
WRONG = (ConfigError("config.toml", "cpu.min_cores", "-1", "is wrong", "correct it"),)


class Clock(FakeClock):
    """Ends with the fifth sleep. `shared`: which of them may end with another's."""

    def __init__(self):
        super().__init__(boottime_s=0.0)
        self.shared = []

    async def sleep(self, seconds, slack_s=0.0, wake=None):
        if len(self.shared) == 4:
            raise TimeoutError
        await super().sleep(seconds, slack_s)
        self.shared.append(slack_s > 0.0)


@pytest.fixture(autouse=True)
def no_schedule(monkeypatch):
    monkeypatch.setattr(Reload, "_follow_schedule", lambda _: None)
    monkeypatch.setattr(Reload, "follow_operator", lambda _: None)


def reload_of(watch, clock):
    """Of which only the watch and the reading are asked."""
    first, bypass = SimpleNamespace(config=None), SimpleNamespace(tell=lambda: "")
    others = dict.fromkeys(("socket", "recorder", "metrics", "notifier", "log", "hold_offs"))
    return Reload(watch, first, None, None, bypass=bypass, clock=clock, **others)  # type: ignore[arg-type]


def test_first_look_at_the_config_comes_as_long_after_a_task_before_as_all_others():
    """A hand-over that failed begins anew with what it had ceased: a file amid a change is no file at rest."""
    clock, looks = Clock(), []
    watch = SimpleNamespace(changed=lambda: looks.append(clock.now), settling=False, file="")
    reload = reload_of(watch, clock)
    with pytest.raises(TimeoutError):
        asyncio.run(reload.look_around())
    assert looks == [2.0, 4.0, 6.0, 8.0]


def test_file_amid_a_change_is_looked_at_again_soon_and_at_rest_with_others_wake_ups(tmp_path):
    file, clock = tmp_path / "config.toml", Clock()
    watch = FileWatch(file)
    reload = reload_of(watch, clock)
    file.write_text("new")
    with pytest.raises(TimeoutError):
        asyncio.run(reload.look_around())
    assert reload.asked.is_set()
    assert clock.shared == [True, False, True, True]


def test_switch_is_told_nothing_before_the_process_acts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A successor may be refused, or have read the config before a change: the one before has told what holds."""
    told: list[str] = []
    was_told = threading.Event()

    def tell() -> str:
        told.append("told")
        was_told.set()
        return ""

    reload = reload_of(SimpleNamespace(changed=lambda: False, settling=False, file=""), Clock())
    reload.bypass = SimpleNamespace(tell=tell)
    for report in ("_report_config", "_report_stage"):
        monkeypatch.setattr(Reload, report, lambda *_: None)
    reload.begin(Loaded(Config(), ()))
    assert told == []
    with pytest.raises(ExceptionGroup, match="unhandled"):  # the clock ends it
        asyncio.run(reload.run())
    assert was_told.wait(30.0)  # its thread may begin later than the clock ends
    assert told == ["told"]


class SlowFile:
    """A config whose reading lasts until `done` is set. `taken`: what was taken up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.done = threading.Semaphore(0), threading.Semaphore(0)
        self.taken: list[Loaded] = []
        self.read = 0
        watch = SimpleNamespace(file="config.toml", read=lambda: None)
        self.reload = reload_of(watch, Clock())
        self.reload.load = self._load
        monkeypatch.setattr(Reload, "_take_up", lambda _, loaded: self.taken.append(loaded))

    def _load(self, _file: object) -> Loaded:
        self.read += 1
        loaded = Loaded(Config(), ())
        self.begun.release()
        self.done.acquire()
        return loaded


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowFile:
    return SlowFile(monkeypatch)


def test_config_is_read_while_the_loop_goes_on_and_a_wish_meanwhile_reads_it_again(slow: SlowFile) -> None:
    async def main() -> None:
        task = asyncio.create_task(slow.reload.reload_when_asked())
        slow.reload.asked.set()
        await until(lambda: slow.begun.acquire(blocking=False))  # the loop runs: else this would not come back
        slow.reload.asked.set()
        assert slow.taken == []
        slow.done.release(2)
        await until(lambda: len(slow.taken) == 2)
        task.cancel()

    asyncio.run(main())
    assert slow.read == 2


def test_reading_that_a_failed_hand_over_has_cut_off_is_done_again(slow: SlowFile) -> None:
    async def main() -> None:
        first = asyncio.create_task(slow.reload.reload_when_asked())
        slow.reload.asked.set()
        await until(lambda: slow.begun.acquire(blocking=False))
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        slow.done.release(2)
        second = asyncio.create_task(slow.reload.reload_when_asked())
        await until(lambda: len(slow.taken) == 1)
        second.cancel()

    asyncio.run(main())


# --- what holds then ----------------------------------------------------------------------------------


class Shown:
    """What is told of the reload: recorder, notifier, metrics and log."""

    def __getattr__(self, _name: str) -> Callable[..., object]:
        return lambda *_, **__: None


def taking(settings: NodeSettings) -> tuple[Reload, list[NodeSettings]]:
    """A reload that takes configs up, and what it applies."""
    shown, applied = Shown(), list[NodeSettings]()
    watch = SimpleNamespace(file=Path("config.toml"))
    others = dict.fromkeys(("socket", "hold_offs", "bypass"))
    told = dict.fromkeys(("recorder", "metrics", "notifier", "log"), shown)
    table = Timetable(settings.config)
    return Reload(watch, settings, table, applied.append, clock=FakeClock(), **told, **others), applied  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("loaded", "enabled"),
    [
        pytest.param(Loaded(OFF, ()), False, id="in order"),
        pytest.param(Loaded(OFF, WRONG), True, id="an error: the old one"),
        pytest.param(Loaded(Config(), WRONG, instead=OFF), False, id="an error, and what holds instead"),
    ],
)
def test_config_that_is_taken(loaded: Loaded, enabled: bool) -> None:
    reload, applied = taking(NodeSettings(ON, Timetable(ON).stage(0.0), pass_through=False, dry_run=False))
    reload._take_up(loaded)
    assert reload.settings.config.colocation.enabled is enabled
    assert [one.config.colocation.enabled for one in applied] == ([] if enabled else [False])


def test_front_of_a_config_that_is_taken_waits_for_a_restart() -> None:
    settings = NodeSettings(ON, Timetable(ON).stage(0.0), pass_through=False, dry_run=False, front="cri")
    reload, applied = taking(settings)
    by_nri = Config(proxy=Proxy(front="nri"))
    reload._take_up(Loaded(by_nri, ()))
    assert [(one.config.proxy.front, one.front) for one in applied] == [("nri", "cri")]


def test_folders_of_kubelet_and_the_sockets_stay_refused_beside_those_of_a_config_that_waits_for_a_restart() -> None:
    """The kubelet and the runtime that run still have their files there."""
    begun, other = (
        Config(kubelet=Kubelet(root_dir=f"/{name}/kubelet"), proxy=Proxy(listen=f"/{name}/s/a", runtime=f"/{name}/r/b"))
        for name in ("begun", "other")
    )
    settings = NodeSettings(
        begun, Timetable(begun).stage(0.0), pass_through=False, dry_run=False, own_folders=begun.own_folders
    )
    reload, applied = taking(settings)
    reload._take_up(Loaded(other, ()))
    (now,) = applied
    refused = placing(now, child_quota=True).hardening.refuse_host_paths
    folders = [f"/{name}/{own}" for name in ("other", "begun") for own in ("kubelet", "r", "s")]
    assert list(refused[-6:]) == folders


# --- before anything acts -------------------------------------------------------------------------------


class Taken(Shown):
    """What is told, and the hold-offs' file."""

    def __init__(self) -> None:
        self.reads = 0

    def read(self) -> None:
        self.reads += 1


EVICT = Config(colocation=Colocation(enabled=False, on_disable="evict"))


def begun(tmp_path: Path, load: Callable[[Path], Loaded], applied: list[NodeSettings]) -> tuple[Reload, Taken]:
    """A reload that was begun while colocation was off, and pods were to be evicted."""
    shown, clock = Taken(), FakeClock()
    told = dict.fromkeys(("bypass", "socket", "recorder", "metrics", "notifier", "log", "hold_offs"), shown)
    settings = NodeSettings(EVICT, Timetable(EVICT).stage(0.0), pass_through=False, dry_run=False)
    watch = FileWatch(tmp_path / "config.toml")
    return Reload(watch, settings, Timetable(EVICT), applied.append, clock=clock, load=load, **told), shown  # type: ignore[arg-type]


def test_what_was_read_before_a_hand_over_is_read_again(tmp_path: Path) -> None:
    applied: list[NodeSettings] = []
    reload, shown = begun(tmp_path, lambda _: Loaded(ON, ()), applied)
    asyncio.run(reload.read_again())
    assert [one.config for one in applied] == [ON]
    assert (reload.settings.config, shown.reads) == (ON, 1)


def test_config_that_has_an_error_by_now_ends_the_hand_over_and_changes_nothing(tmp_path: Path) -> None:
    applied: list[NodeSettings] = []
    reload, _ = begun(tmp_path, lambda _: Loaded(ON, WRONG), applied)
    with pytest.raises(ValueError, match=r"the config has errors: .*cpu\.min_cores"):
        asyncio.run(reload.read_again())
    assert (applied, reload.settings.config) == ([], EVICT)


def test_disk_that_hangs_ends_the_hand_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("criproxy.daemon.reload._AT_ONCE_S", 0.05)
    gate, applied = threading.Event(), list[NodeSettings]()

    def load(_: Path) -> Loaded:
        gate.wait()
        return Loaded(ON, ())

    reload, _ = begun(tmp_path, load, applied)
    try:
        with pytest.raises(TimeoutError, match=r"config\.toml can't be read within 0\.05 s"):
            asyncio.run(reload.read_again())
        assert applied == []
    finally:
        gate.set()


def test_listing_of_the_config_that_takes_long_keeps_nothing_waiting(tmp_path: Path) -> None:
    gate = threading.Event()
    reload, _ = begun(tmp_path, lambda _: Loaded(ON, ()), [])
    reload.watch = SimpleNamespace(changed=lambda: gate.wait(2.0), settling=False, file=tmp_path)  # type: ignore[assignment]

    async def play() -> None:
        looks = asyncio.create_task(reload.look_around())
        async with asyncio.timeout(5.0):
            while not gate.is_set():
                await asyncio.sleep(0.01)
                gate.set()
        await until(reload.asked.is_set)
        looks.cancel()

    asyncio.run(play())


# --- the watch ------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "f"
    path.write_text("old")
    return path


def test_file_that_is_left_alone_has_not_changed(file: Path) -> None:
    watch = FileWatch(file)
    assert [watch.changed() for _ in range(3)] == [False, False, False]


def test_changed_file_is_told_once_and_only_at_rest(file: Path) -> None:
    watch = FileWatch(file)
    file.write_text("")
    first = watch.changed()
    file.write_text("new, in full")
    assert [first, *(watch.changed() for _ in range(3))] == [False, False, True, False]


def test_file_that_was_changed_and_changed_back_by_rename_is_told(file: Path) -> None:
    watch = FileWatch(file)
    copy = file.with_name("copy")
    copy.write_text("old")
    copy.rename(file)
    assert [watch.changed(), watch.changed()] == [False, True]


def test_file_that_vanishes_and_comes_back_is_told_each_time(file: Path) -> None:
    watch = FileWatch(file)
    file.unlink()
    assert [watch.changed() for _ in range(3)] == [False, True, False]
    file.write_text("new")
    assert [watch.changed() for _ in range(3)] == [False, True, False]


def test_file_that_is_asked_for_amid_a_change_is_told_once_it_is_at_rest(file: Path) -> None:
    """What is half written may be valid: a change of the policy is no reason to read it."""
    watch = FileWatch(file)
    watch.ask()
    assert (watch.settling, [watch.changed() for _ in range(2)]) == (True, [True, False])
    file.write_text("")
    watch.ask()
    assert watch.changed() is False
    file.write_text("new, in full")
    assert [watch.changed() for _ in range(3)] == [False, True, False]


def test_file_that_was_read_is_not_told_again(file: Path) -> None:
    watch = FileWatch(file)
    file.write_text("new text")
    watch.read()
    assert [watch.changed(), watch.changed()] == [False, False]


@pytest.mark.parametrize("change", [lambda d: (d / "a.toml").write_text("b"), lambda d: (d / "a.toml").unlink()])
def test_dropin_that_changes_or_vanishes_is_told(file: Path, change: Callable[[Path], object]) -> None:
    directory = file.with_name("f.d")
    directory.mkdir()
    (directory / "a.toml").write_text("a, in full")
    watch = FileWatch(file)
    change(directory)
    assert [watch.changed() for _ in range(3)] == [False, True, False]


def test_first_dropin_is_told(file: Path) -> None:
    watch = FileWatch(file)
    file.with_name("f.d").mkdir()
    assert [watch.changed() for _ in range(2)] == [False, False]
    (file.with_name("f.d") / "a.toml").write_text("a")
    assert [watch.changed() for _ in range(3)] == [False, True, False]
