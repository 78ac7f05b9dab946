"""Looks where the processes of pods really are: found as the shims' descendants, wherever their cgroups lie."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from integration.lab.cgroups import of_process
from integration.lab.process import all_pids, argv_of

INTERVAL_S = 0.05
PF_EXITING = 0x4
"""Source: include/linux/sched.h; proc_pid_stat(5), flags."""


@dataclass(frozen=True, slots=True)
class _Stat:
    comm: str
    parent: int
    exiting: bool
    started: str


class Lookout(threading.Thread):
    """Looks 20 times a second until `end`. `wrong` says which process was seen outside its place, each once.

    `place(uid)` is the cgroup that all processes of this pod must be below, in every hierarchy. `program` is the name
    of the file that pods run: before it runs, a process is runc's, on its way into its cgroup. `seen` are those that
    were looked at, `looks` how often.
    """

    def __init__(
        self,
        directory: Path,
        socket: Path,
        place: Callable[[str], str],
        program: str = "busybox",
        *,
        sandboxes: bool = True,
    ) -> None:
        """`directory` is the lab's, `socket` its containerd's. `sandboxes`: whether pods' pause processes count."""
        super().__init__(name="lookout", daemon=True)
        self.wrong: list[str] = []
        self.seen: set[tuple[str, int, str]] = set()
        self.looks = 0
        self._bundles = directory.absolute() / "state" / "io.containerd.runtime.v2.task" / "k8s.io"
        self._socket = str(socket)
        self._place = place
        self._program = program
        self._sandboxes = sandboxes
        self._uids: dict[str, str] = {}
        self._ended = threading.Event()

    def end(self) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            try:
                found = self.look()
            except Exception as error:  # it would end the thread, and the lookout be none
                found = [repr(error)]
            self.wrong += [one for one in found if one not in self.wrong]

    def look(self) -> list[str]:
        """What is wrong now."""
        found = []
        for pid, started, sandbox in self._contained():
            wrong = self._judge(pid, started, sandbox)
            if wrong:
                found.append(wrong)
        self.looks += 1
        return found

    def _judge(self, pid: int, started: str, sandbox: str) -> str:
        try:
            # In this order: a process that runs the pod's program has been put into its cgroup before.
            if os.path.basename(os.readlink(f"/proc/{pid}/exe")) != self._program:
                return ""
            uid = self._uid(sandbox)
            cgroups = of_process(pid)
            if _stat(pid).exiting:  # the kernel tells "/" of those, on cgroup v1
                return ""
        except (FileNotFoundError, ProcessLookupError):
            return ""
        if not self._sandboxes and {os.path.basename(path) for path in cgroups.values()} == {sandbox}:
            return ""
        self.seen.add((uid, pid, started))
        place = f"{self._place(uid)}/"
        outside = {controller: path for controller, path in cgroups.items() if not path.startswith(place)}
        return f"process {pid} of pod {uid} is not below {place} but in {outside}" if outside else ""

    def _contained(self) -> Iterator[tuple[int, str, str]]:
        """Every descendant of the lab's shims: pid, start time, and the id of its shim's sandbox."""
        stats: dict[int, _Stat] = {}
        for pid in all_pids():
            try:
                stats[pid] = _stat(pid)
            except (FileNotFoundError, ProcessLookupError):
                continue
        children: dict[int, list[int]] = {}
        for pid, stat in stats.items():
            children.setdefault(stat.parent, []).append(pid)
        for shim in [pid for pid, stat in stats.items() if stat.comm.startswith("containerd-shim")]:
            argv = argv_of(shim)
            if self._socket not in argv or "-id" not in argv:
                continue
            sandbox = argv[argv.index("-id") + 1]
            pending = list(children.get(shim, ()))
            while pending:
                pid = pending.pop()
                pending += children.get(pid, ())
                yield pid, stats[pid].started, sandbox

    def _uid(self, sandbox: str) -> str:
        """The uid of a sandbox's pod, as the runtime wrote it into the bundle. Raises FileNotFoundError."""
        if sandbox not in self._uids:
            spec = json.loads((self._bundles / sandbox / "config.json").read_text())
            self._uids[sandbox] = spec["annotations"]["io.kubernetes.cri.sandbox-uid"]
        return self._uids[sandbox]


def _stat(pid: int) -> _Stat:
    """Raises FileNotFoundError or ProcessLookupError. Source: proc_pid_stat(5)."""
    text = Path(f"/proc/{pid}/stat").read_text()
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return _Stat(head.partition("(")[2], int(fields[1]), bool(int(fields[6]) & PF_EXITING), fields[19])
