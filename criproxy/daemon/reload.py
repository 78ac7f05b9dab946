"""Takes up a changed config and the schedule's next stage: configures the parts, and has the status show it."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import structlog
from msgspec import Struct, field
from msgspec.structs import replace

from criproxy.concurrency.clock import Clock
from criproxy.concurrency.worker import StuckError, Worker
from criproxy.config import Config, Loaded, files_of, load, restart_keys
from criproxy.daemon.bypass import Bypass
from criproxy.daemon.lifecycle import run_apart
from criproxy.daemon.settings import Timetable
from criproxy.fronts.socket import ListenSocket, SocketError
from criproxy.model.shown import Shows
from criproxy.observe import log as logs
from criproxy.observe.metrics import Metrics
from criproxy.observe.notify import Notifier
from criproxy.observe.recorder import Recorder
from criproxy.observe.status import ConfigStatus
from criproxy.pods.hold_offs import HoldOffs
from criproxy.pods.part import NodeSettings

_LOOK_AFTER_S: Final = 2.0
_SLACK_S: Final = 1.0
"""From one look at the file, and at the schedule, to the next: with the control loop's ticks, which wake up anyway, and
of which there is always one within the slack. The schedule is looked at again and again, not once at its next change,
as the wall clock may jump.
"""

_AT_REST_AFTER_S: Final = 0.25
"""A changed file is read when it is still the same after this."""

_READ_S: Final = 10.0

_AT_ONCE_S: Final = 2.0
"""How long a hand-over waits for the files: nobody bounds the box meanwhile."""

_AGAIN_S: Final = 5.0
"""When a disk does not answer."""


_Stat = tuple[str, int, int, int]
"""A file's name, when it was modified, its size, and its inode."""


class FileWatch:
    """`file` and its drop-ins as they were when this was made, or at the last `changed` that said so or `read`. Any
    thread may call it.

    A file that is just being written is empty or cut off, and may be valid all the same, with another meaning. So a
    change counts only when the next look finds the same.
    """

    def __init__(self, file: Path) -> None:
        self.file: Final = file
        self._seen = self._look()
        self._known: list[_Stat] | None = self._seen

    def changed(self) -> bool:
        """Whether the file has changed, and not since the last call. Call it at intervals."""
        now = self._look()
        at_rest, self._seen = now == self._seen, now
        if not at_rest or now == self._known:
            return False
        self._known = now
        return True

    @property
    def settling(self) -> bool:
        """Whether the next look may say that the file has changed: it should come soon."""
        return self._seen != self._known

    def ask(self) -> None:
        """Have the next call of `changed` that finds the file at rest say so."""
        self._known = None

    def read(self) -> None:
        """The file is about to be read, changed or not."""
        self._known = self._seen = self._look()

    def _look(self) -> list[_Stat]:
        """Differs whenever the files differ."""
        files: Sequence[Path] = (self.file,)
        with contextlib.suppress(OSError):
            files = files_of(self.file)
        found = []
        for file in files:
            with contextlib.suppress(OSError):
                status = file.stat()
                found.append((str(file), status.st_mtime_ns, status.st_size, status.st_ino))
        return found


class Reload(Shows, Struct):
    """`settings` are what holds, here at the start; `apply` configures the parts whenever something else holds.

    Whoever sets `asked` has the file read at once, changed or not. `load` reads it, and may set other
    settings above it.
    """

    watch: FileWatch
    settings: NodeSettings
    timetable: Timetable
    apply: Callable[[NodeSettings], None]
    bypass: Bypass
    socket: ListenSocket
    recorder: Recorder
    metrics: Metrics
    notifier: Notifier
    clock: Clock
    log: structlog.typing.FilteringBoundLogger
    hold_offs: HoldOffs
    load: Callable[[Path], Loaded] = load
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    files: Worker = field(default_factory=lambda: Worker("config-files", _READ_S))
    """A disk with the config on it may hang, and must not keep any call."""
    _first_config: Config = Config()
    _to_tell: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._first_config = self.settings.config

    def begin(self, loaded: Loaded) -> None:
        """Report the config and the stage at the start, which the parts were made for."""
        self._report_config(loaded)
        self._report_stage()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_switch_told())
            group.create_task(self.reload_when_asked())
            group.create_task(self.look_around())

    async def reload_when_asked(self) -> None:
        """One after the other, so that what was read last holds. Reading and parsing must not delay any call."""
        while True:
            await self.asked.wait()
            self.asked.clear()
            try:
                loaded = await self.files.run(f"read {self.watch.file}", self._read)
            except StuckError as error:
                self.log.warning("config_not_read", error=str(error), consequence="tried again")
                self.asked.set()
                await self.clock.sleep(_AGAIN_S)
                continue
            except BaseException:  # a hand-over begins, and may fail: then this begins anew
                self.asked.set()
                raise
            self._take_up(loaded)
            self._to_tell.set()

    async def read_again(self) -> None:
        """Have the parts go by what the files say now, before any of them acts: they were read when this process began,
        and another one has followed them since, and has obeyed its operator.

        Raises OSError when a disk does not answer, and ValueError when the config has errors by now: then the other
        process, which knows what holds, is to go on.
        """

        def read() -> Loaded:
            self.hold_offs.read()
            return self._read()

        try:
            async with asyncio.timeout(_AT_ONCE_S):
                loaded = await self.files.run("read the files again", read)
        except TimeoutError as error:
            raise TimeoutError(f"{self.watch.file} can't be read within {_AT_ONCE_S:g} s") from error
        if loaded.errors:
            raise ValueError(f"the config has errors: {'; '.join(map(str, loaded.errors))}")
        self._follow(loaded.config)
        self._report_config(loaded)
        self._report_stage()
        self.follow_operator()

    async def look_around(self) -> None:
        """Follow the schedule and the operator, and reload when the file has changed.

        The first look at that is as long after that of a task before as all others.
        """
        while True:
            self._follow_schedule()
            self.follow_operator()
            if self.watch.settling:
                await self.clock.sleep(_AT_REST_AFTER_S)
            else:
                await self.clock.sleep(_LOOK_AFTER_S, _SLACK_S)
            with contextlib.suppress(StuckError):  # the disk hangs, which `problems` says
                if await self.files.run(f"look at {self.watch.file}", self.watch.changed):
                    self.asked.set()

    def _read(self) -> Loaded:
        """Blocks."""
        self.watch.read()
        return self.load(self.watch.file)

    def problems(self) -> Iterator[str]:
        if self.files.stuck:
            yield f"{self.watch.file} can't be read, as its disk does not answer: what was read last holds"

    def close(self) -> None:
        self.files.close()

    def _follow_schedule(self) -> None:
        self._leave_bypass()
        stage = self.timetable.stage(self.clock.wall_s())
        if stage != self.settings.stage:
            self._put_in_force(replace(self.settings, stage=stage))
            self._report_stage()

    def follow_operator(self) -> None:
        """Have the parts go by the hold-offs that are in force now."""
        self.hold_offs.end_due()
        held_off = self.hold_offs.why_box()
        if held_off != self.settings.held_off:
            self._put_in_force(replace(self.settings, held_off=held_off))
            self.recorder.scheduled(self.settings.modes, self.settings.stage.words)

    def _leave_bypass(self) -> None:
        """The bypass may have opened at the moment of our return: then its switch had no more reason to shut it."""
        if not self.socket.is_bypassed:
            return
        try:
            self.socket.publish()
        except SocketError as error:
            self.log.warning("bypass_stays", error=str(error))
        else:
            self.log.info("bypass_left", socket=str(self.socket.path))

    async def _keep_switch_told(self) -> None:
        """Nothing waits for its disk. Until this begins, it goes by what the process before has told it: that holds."""
        while True:
            self._to_tell.clear()
            with contextlib.suppress(RuntimeError):  # no thread: the switch goes by what it knew
                if failed := await run_apart("bypass", self.bypass.tell):
                    self.log.warning("bypass_not_told", error=failed)
            await self._to_tell.wait()

    def _take_up(self, loaded: Loaded) -> None:
        """Follow the new config; with errors in it, what holds instead, or the old one still."""
        self.notifier.reloading()
        config = loaded.instead if loaded.errors else loaded.config
        if config is not None:
            self._follow(config)
        self.metrics.count("config_reload_failures" if loaded.errors else "config_reloads")
        self._report_config(loaded)
        self._report_stage()
        self.notifier.ready(self.recorder.headline())

    def _follow(self, config: Config) -> None:
        self.timetable = Timetable(config)
        stage = self.timetable.stage(self.clock.wall_s())
        self._put_in_force(replace(self.settings, config=config, stage=stage, pass_through=False))
        logs.configure(config.observe.log_level)

    def _put_in_force(self, settings: NodeSettings) -> None:
        self.settings = settings
        self.apply(settings)

    def _report_stage(self) -> None:
        stage = self.settings.stage
        self.recorder.scheduled(self.settings.modes, stage.words)
        if stage.words:
            self.log.info("schedule", holds=stage.words, closed=stage.closed, drain=stage.drain)

    def _report_config(self, loaded: Loaded) -> None:
        settings = self.settings
        pending = restart_keys(self._first_config, settings.config)
        errors = tuple(map(str, loaded.errors))
        self.recorder.configured(
            ConfigStatus(str(self.watch.file), errors, pending), settings.config.control.interval_s
        )
        if errors:
            self.log.error(
                "config_refused",
                errors=list(errors),
                consequence="nothing new is placed" if settings.pass_through else "the old one holds",
            )
        else:
            self.log.info(
                "config_taken", file=str(self.watch.file), enabled=settings.modes.judges, needs_restart=list(pending)
            )
