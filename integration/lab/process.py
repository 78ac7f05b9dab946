"""Child processes that never outlive their owner, waiting for what they do, and ending processes by pid."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

POLL_S = 0.02
END_S = 60
"""What ends by itself, or is killed, is given so long on a busy machine."""
TAIL_LINES = 25

T = TypeVar("T")


class LabError(Exception):
    """The lab can't do what it was asked to; the message says why and, where one is known, the remedy."""


class Process:
    """A running child, in a session of its own (so that Ctrl-C is its owner's alone), its output appended to `log`.

    The kernel kills it when the *thread* that started it ends: start it from a thread that lives as long as the lab.
    Source: prctl(2), PR_SET_PDEATHSIG.
    """

    def __init__(self, name: str, argv: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None) -> None:
        """`name` is for error messages; `env` is added to the environment."""
        self.name = name
        self.log = log
        # setpriv sets the signal and becomes the program; a preexec_fn would fork this process, gRPC's threads and all.
        command = ["setpriv", "--pdeathsig", "KILL", "--", *map(str, argv)]
        with log.open("ab") as out:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def exit_status(self) -> int | None:
        """None while it runs; -N after signal N."""
        return self._popen.poll()

    def is_alive(self) -> bool:
        return self.exit_status is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens when the process has ended."""
        self._popen.send_signal(number)

    def stop(self, timeout_s: float = END_S) -> None:
        """SIGTERM, and SIGKILL when it has not ended after `timeout_s`."""
        self._popen.terminate()
        try:
            self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone."""
        self._popen.kill()
        self._popen.wait()

    def wait_until(self, condition: Callable[[], T], timeout_s: float, what: str, poll_s: float = POLL_S) -> T:
        """As `wait_until`, and raises LabError at once when the process ends."""

        def check() -> T:
            lived = self.is_alive()  # asked before: what waits for the end itself must not find it between the two
            result = condition()
            if not result and not lived:
                raise LabError(f"{self.name} ended with status {self.exit_status}, before {what}{tail(self.log)}")
            return result

        return wait_until(check, timeout_s, f"{self.name}: {what}", self.log, poll_s)


class Service:
    """A program of the lab's that can be started more than once. `log` is its log."""

    def __init__(self, name: str, log: Path) -> None:
        self.log = log
        self._name = name
        self._process: Process | None = None

    @property
    def pid(self) -> int:
        """Raises LabError when it was not started."""
        return self._running().pid

    @property
    def exit_status(self) -> int | None:
        """None while it runs; -N after signal N. Raises LabError when it was not started."""
        return self._running().exit_status

    def start(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """End it in order; pods go on."""
        self._running().stop()

    def kill(self) -> None:
        """SIGKILL; pods go on."""
        self._running().kill()

    def restart(self) -> None:
        """Stop and start; pods go on."""
        self.stop()
        self.start()

    def is_alive(self) -> bool:
        return self._process is not None and self._process.is_alive()

    def _running(self) -> Process:
        if self._process is None:
            raise LabError(f"{self._name} was not started")
        return self._process


def wait_until(
    condition: Callable[[], T], timeout_s: float, what: str, log: Path | None = None, poll_s: float = POLL_S
) -> T:
    """Call `condition` every `poll_s` until its result is true, and return that.

    Raises LabError after `timeout_s`, with `what` was awaited and the tail of `log`.
    """
    deadline = time.monotonic() + timeout_s
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise LabError(f"waited {timeout_s:g} s in vain for {what}{tail(log)}")
        time.sleep(poll_s)
    return result


def timed(call: Callable[[], object]) -> float:
    """How long it takes, in s."""
    began_s = time.monotonic()
    call()
    return time.monotonic() - began_s


def tail(log: Path | None) -> str:
    """The last lines of a log, led by its name, to end an error message with; "" when there is none."""
    if log is None or not log.exists():
        return ""
    lines = log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
    return "\n".join([f"\n--- the end of {log}:", *lines])


def is_running(pid: int) -> bool:
    """Whether a process exists and is not a zombie; one whose other threads still end has its files and mounts yet.

    Source: proc_pid_stat(5), state and num_threads.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    fields = stat.rpartition(")")[2].split()
    return fields[0] not in "ZX" or int(fields[17]) > 1


def birth_of(pid: int) -> str:
    """When a process was started, in the kernel's words: of two with one pid, each has its own. "": there is none.

    Source: proc_pid_stat(5), starttime.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def argv_of(pid: int) -> list[str]:
    """A process's argument vector; [] when it is gone, a zombie or a kernel thread."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except (FileNotFoundError, ProcessLookupError):
        return []


def cpus_of(pid: int) -> frozenset[int]:
    """The CPUs that a process may run on; none when it has gone."""
    try:
        return frozenset(os.sched_getaffinity(pid))
    except ProcessLookupError:
        return frozenset()


def all_pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]


def descendants(pids: Collection[int]) -> set[int]:
    """The given processes' children, their children, and so on."""
    children: dict[int, list[int]] = {}
    for pid in all_pids():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
            children.setdefault(int(parent), []).append(pid)
    found: set[int] = set()
    pending = list(pids)
    while pending:
        new = [child for child in children.get(pending.pop(), []) if child not in found]
        found.update(new)
        pending.extend(new)
    return found


def kill_all(find: Callable[[], Collection[int]], timeout_s: float = END_S) -> None:
    """SIGKILL what `find` returns until it returns nothing that runs. Raises LabError after `timeout_s`."""
    # By pid and birth: a process that is ending has lost its arguments, by which it may be found, before all else, and
    # its pid may be another's soon.
    found: set[tuple[int, str]] = set()

    def gone() -> bool:
        found.update((pid, birth_of(pid)) for pid in find())
        running = [pid for pid, birth in found if is_running(pid) and birth_of(pid) == birth]
        for pid in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not running

    wait_until(gone, timeout_s, "killed processes to end")
