"""The host as attach and detach touch it, with all effects of this package: programs, sockets, time, files, systemd.

Every path is below `root`, so that a test can give it a directory instead of a node.
"""

import contextlib
import fcntl
import glob
import os
import posixpath
import stat
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from criproxy.commands.attach.edits import Edit, NodeError
from criproxy.kubelet.attachment import STATE, AttachRecord, from_json, to_json
from criproxy.kubelet.flags import EMBEDDING, UNIT
from criproxy.kubelet.process import processes_of_unit
from criproxy.model import rootless

_HTTP_S: Final = 5.0
_VERSION_S: Final = 10.0
_LONG_S: Final = 180.0
"""For a restart, as systemd gives a service 90 s to stop. For a reload, which runs all generators and reads all units:
that takes a starved node a minute.
"""
_QUICK_S: Final = 30.0
_PROPERTIES: Final = (
    "LoadState", "ActiveState", "SubState", "MainPID", "NRestarts", "FragmentPath", "DropInPaths", "Environment",
    "EnvironmentFiles",
)  # fmt: skip
_ENVIRONMENT_FILES: Final = ("EnvironmentFiles", "EnvironmentFile")
"""One line for each; older systemd answers with the latter."""

_CGROUPS: Final = "/sys/fs/cgroup"
_OOM_GROUP: Final = "memory.oom.group"
_RESETS_S: Final = 2.0
_AGAIN_S: Final = 0.1
_ANSWERS_S: Final = 1.0
"""From one question whether systemd answers again to the next."""

_NO_ANSWER: Final = "timed out"
"""What systemctl says when it has given systemd up, which it does after 25 s amid another's reload."""
_SET: Final = "1"


class TimedOutError(NodeError):
    """A command has not ended in time. What it has asked systemd for may happen all the same."""


class Machine:
    """What is not a file: programs, sockets, time."""

    def run(self, command: Sequence[str], timeout_s: float) -> tuple[int, str]:
        """Exit status, and output with errors, in English.

        Raises NodeError when it cannot be run, and TimedOutError when it takes longer.
        """
        # In a session of its own: what a terminal's Ctrl-C ends is us, and we undo what the command began.
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "LC_ALL": "C.UTF-8"},
                timeout=timeout_s,
                check=False,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired as error:
            raise TimedOutError(f"{' '.join(command)} has not ended within {timeout_s:.0f} s") from error
        except OSError as error:
            raise NodeError(f"{command[0]}: {error.strerror or error}: is this a node with systemd?") from error
        return done.returncode, done.stdout.decode(errors="replace")

    def version(self, socket: str) -> str:
        """What the runtime behind a socket calls itself. Raises NodeError when it does not answer."""
        import asyncio

        from criproxy.clients.link import version_at

        try:
            info = asyncio.run(version_at(Path(socket), _VERSION_S))
        except OSError as error:  # a ConnectionError, too
            raise NodeError(f"{socket}: {error}") from error
        return f"{info.name} {info.version}"

    def get(self, host: str, port: int, path: str) -> str:
        """The body of a 200 answer. Raises NodeError for any other, and for none."""
        import http.client

        connection = http.client.HTTPConnection(host, port, timeout=_HTTP_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise NodeError(f"http://{host}:{port}{path} does not answer ({error})") from error
        finally:
            connection.close()
        if answer.status != 200:
            raise NodeError(f"http://{host}:{port}{path} answers {answer.status}: {body.strip()[:200]}")
        return body

    def ask(self, socket: str, question: str) -> str:
        """What the criproxy of that status socket answers. Raises NodeError when it does not."""
        from criproxy.observe import client

        try:
            return client.ask(Path(socket), question, _HTTP_S)
        except client.AskError as error:
            raise NodeError(str(error)) from error

    def now_s(self) -> float:
        """Monotonic."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class UnitState(Struct, frozen=True):
    """What systemd says of a unit. `pid` 0: its main process does not run.

    `files` are the unit file and its drop-ins, in systemd's order; `environment` is quoted as for a shell;
    `environment_files` may be patterns.
    """

    name: str
    loaded: bool
    active: str
    sub: str
    pid: int
    restarts: int
    files: tuple[str, ...]
    environment: str
    environment_files: tuple[str, ...]


class Host(Struct):
    """The host below `root`. OSErrors of its files become NodeErrors."""

    machine: Machine
    root: Path = Path("/")
    _oom_groups: list[Path] = []

    def at(self, path: str) -> Path:
        """Where a path of the host lies for us."""
        return self.root / path.lstrip("/")

    # --- files ------------------------------------------------------------------------------------------------------

    def read(self, path: str) -> bytes | None:
        try:
            return self.at(path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise NodeError(f"{path}: {error.strerror or error}: run this as root, and check the file") from error

    def matching(self, pattern: str) -> list[str]:
        """The paths that a shell pattern matches, sorted."""
        found = glob.glob(glob.escape(str(self.root)) + "/" + pattern.lstrip("/"))
        return sorted("/" + os.path.relpath(path, self.root) for path in found)

    def text(self, path: str) -> str:
        """A file's content; "" when there is none."""
        return (self.read(path) or b"").decode(errors="surrogateescape")

    def apply(self, edit: Edit) -> None:
        """Make the file what it shall be, at once or not at all; owner and mode stay. A link keeps pointing there.

        Raises NodeError, also when the file is not what the edit was made from.
        """
        if self.read(edit.path) != edit.before:
            raise NodeError(f"{edit.path} was changed by somebody else just now: look at it, then try again")
        try:
            path = Path(os.path.realpath(self.at(edit.path)))
            if edit.after is None:
                _beside(path).unlink(missing_ok=True)
                path.unlink()
                self._prune(path.parent)
            else:
                _replace(path, edit.after)
        except OSError as error:
            raise NodeError(f"{edit.path}: {error.strerror or error}: run this as root, on a disk with room") from error

    def _prune(self, directory: Path) -> None:
        """A directory of drop-ins that has become empty was ours too."""
        if directory.name.endswith(".service.d"):
            with contextlib.suppress(OSError):
                directory.rmdir()

    # --- our own state ----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """One attach or detach at a time. Raises NodeError when another one runs."""
        directory = self.at(STATE).parent
        try:
            directory.mkdir(parents=True, exist_ok=True)
            file = os.open(directory, os.O_RDONLY)
        except OSError as error:
            raise NodeError(f"{directory}: {error.strerror}: run this as root") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError as error:
            raise NodeError("another `criproxy attach` or `detach` runs: wait for it") from error
        finally:
            os.close(file)

    def load(self) -> AttachRecord | None:
        """The record of the attachment; None when there is none, or none that can be read."""
        content = self.read(STATE)
        try:
            return None if content is None else from_json(content)
        except ValueError:
            return None

    def save(self, record: AttachRecord | None) -> None:
        """Raises NodeError."""
        edit = Edit(STATE, self.read(STATE), None if record is None else to_json(record))
        if edit.before != edit.after:
            self.apply(edit)

    # --- systemd and kubelet ----------------------------------------------------------------------------------------

    def unit(self, name: str) -> UnitState:
        text = self._systemctl("show", name, "--no-pager", *(f"--property={key}" for key in _PROPERTIES))
        lines = [line.partition("=")[::2] for line in text.splitlines()]
        found = dict(lines)
        files = [found.get("FragmentPath", ""), *found.get("DropInPaths", "").split()]
        return UnitState(
            name=name,
            loaded=found.get("LoadState") == "loaded",
            active=found.get("ActiveState", ""),
            sub=found.get("SubState", ""),
            pid=int(found.get("MainPID") or 0),
            restarts=int(found.get("NRestarts") or 0),
            files=tuple(file for file in files if file),
            environment=found.get("Environment", ""),
            environment_files=tuple(
                value.partition(" (ignore_errors=")[0] for key, value in lines if key in _ENVIRONMENT_FILES
            ),
        )

    def kubelet_unit(self) -> UnitState:
        """The unit that runs kubelet; of several that are there, one that is up, else one that has failed.

        A node may have the kubelet.service of an earlier set-up beside the unit of k3s. Not loaded: there is none.
        """
        units = []
        for name in (UNIT, *EMBEDDING):
            unit = self.unit(name)
            if unit.loaded and unit.files:
                if unit.active not in ("inactive", "failed"):
                    return unit
                units.append(unit)
        units.sort(key=lambda unit: unit.active != "failed")
        return units[0] if units else self.unit(UNIT)

    def reload(self) -> None:
        """Have systemd read its units; what that takes from running containers is put back.

        Systemd goes on with a reload that its client no longer waits for, so that one that takes longer is waited for
        anew. Raises NodeError when systemd refuses, and TimedOutError when it is still not done then.
        """
        self._oom_groups = set_below(self.at(_CGROUPS))
        try:
            self._systemctl("daemon-reload", timeout_s=_LONG_S)
        except TimedOutError:
            if not self._has_read_its_units():
                raise
        finally:
            self._put_back()

    def _has_read_its_units(self) -> bool:
        """Wait until systemd answers, as it does not amid a reload. Where it never heard of that, it is asked again."""
        question = ("show", "--no-pager", "--property=NeedDaemonReload", UNIT, *EMBEDDING)
        give_up_s = self.machine.now_s() + _LONG_S
        while self.machine.now_s() < give_up_s:
            with contextlib.suppress(NodeError):
                if "yes" in self._systemctl(*question):
                    self._systemctl("daemon-reload", timeout_s=_LONG_S)
                return True
            self.machine.sleep(_ANSWERS_S)
        return False

    def restart(self, name: str) -> None:
        """Begin anew, whatever it is at. Raises NodeError when systemd cannot start it."""
        self.machine.run(("systemctl", "reset-failed", name), _QUICK_S)  # fails when there is nothing to reset
        try:
            self._systemctl("restart", name, timeout_s=_LONG_S)
        finally:
            self._put_back()

    def _put_back(self) -> None:
        """Systemd takes it away before it answers, or a moment later, when it next starts a unit."""
        until_s = self.machine.now_s() + _RESETS_S
        put_back(self._oom_groups)
        while self._oom_groups and self.machine.now_s() < until_s:
            self.machine.sleep(_AGAIN_S)
            put_back(self._oom_groups)

    def _systemctl(self, *arguments: str, timeout_s: float = _QUICK_S) -> str:
        status, output = self.machine.run(("systemctl", *arguments), timeout_s)
        if status != 0:
            kind = TimedOutError if _NO_ANSWER in output else NodeError
            raise kind(f"systemctl {' '.join(arguments[:2])}: {output.strip() or f'exit status {status}'}")
        return output

    def log_tail(self, name: str) -> str:
        """The end of a unit's log, to be added to a message; "" when there is no such log."""
        command = ("journalctl", "--unit", name, "--lines", "5", "--no-pager", "--output", "cat")
        with contextlib.suppress(NodeError):
            if tail := self.machine.run(command, _QUICK_S)[1].strip():
                return f"; the end of its log:\n{tail}"
        return ""

    def help_text(self, program: str) -> list[str]:
        """The lines of what a kubelet's --help says; none when it does not run."""
        if not program or not os.access(self.at(program), os.X_OK):
            return []
        with contextlib.suppress(NodeError):
            status, output = self.machine.run((program, "--help"), _QUICK_S)
            return output.splitlines() if status == 0 else []
        return []

    def rootless(self, path: str) -> str:
        """The uid_map of a process, by its directory in /proc, when it is rootless; "" when not."""
        uid_map = self.read(f"{path}/uid_map")  # a kernel without user namespaces has no such file
        text = "" if uid_map is None else uid_map.decode()
        return rootless.in_words(text) if uid_map is not None and rootless.is_rootless(text) else ""

    def rootless_kubelet(self) -> str:
        """Which process is a rootless kubelet, with its uid_map; "": there is none. Pods' processes are left aside."""
        of_unit = ["/" + os.path.relpath(process, self.root) for process in processes_of_unit(self.root)]
        named = [path for name, path in self._named() if name.startswith(("kubelet", "k3s", "k0s", "rke2"))]
        for path in of_unit or named:
            cgroup = self.text(f"{path}/cgroup")
            if "kubepods" not in cgroup and (uid_map := self.rootless(path)):
                return f"pid {posixpath.basename(path)} with the uid_map {uid_map}"
        return ""

    def processes(self) -> Iterator[tuple[str, list[str], str]]:
        """(name, arguments, cgroup) of each process."""
        for name, path in self._named():
            yield name, self.text(f"{path}/cmdline").split("\0"), self.text(f"{path}/cgroup")

    def _named(self) -> Iterator[tuple[str, str]]:
        """The names of the processes that may be kubelet, and their directories in /proc."""
        for path in self.matching("/proc/[0-9]*/comm"):
            name = self.text(path).strip()
            if "kube" in name or name.startswith(("k3s", "k0s", "rke2")):
                yield name, posixpath.dirname(path)


# --- memory.oom.group -------------------------------------------------------------------------------------------------
# Kubelet has runc write it into each container's scope, so that all processes of a container end together when its
# memory ends. Systemd does not know of that: from version 262 on, each reload, whoever asks for it, writes what the
# scope's OOMPolicy= means.


def set_below(mount: Path) -> list[Path]:
    """The files of the cgroups below `mount` that have it set; none on cgroup v1, which does not know it."""
    found = []
    for directory, _, names in os.walk(mount):
        with contextlib.suppress(OSError):  # it may have just gone
            file = Path(directory) / _OOM_GROUP
            if _OOM_GROUP in names and file.read_text().strip() == _SET:
                found.append(file)
    return found


def put_back(files: Collection[Path]) -> None:
    """Set it where it is not, in the cgroups that are there still."""
    for file in files:
        with contextlib.suppress(OSError):
            if file.read_text().strip() != _SET:
                file.write_text(_SET)


# --- files ------------------------------------------------------------------------------------------------------------


def _beside(path: Path) -> Path:
    """Where a new content waits; neither systemd nor kubelet reads a file of such a name."""
    return path.with_name(f".{path.name}.criproxy~")


def _replace(path: Path, content: bytes) -> None:
    """Through a file beside it, so that whoever reads sees the old or the new one, also after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = _beside(path)
    new.unlink(missing_ok=True)
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(file, "wb") as out:
            out.write(content)
            try:
                old = path.stat()
                os.fchown(out.fileno(), old.st_uid, old.st_gid)
                os.fchmod(out.fileno(), stat.S_IMODE(old.st_mode))
            except FileNotFoundError:
                os.fchmod(out.fileno(), 0o644)
            out.flush()
            os.fsync(out.fileno())
        new.rename(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
