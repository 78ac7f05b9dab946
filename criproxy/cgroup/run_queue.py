"""Samples how long online's threads wait on run queues, where the kernel reports no pressure of cgroups.

How it works
------------
There may be ten thousand threads, and most of them sleep. So each reading looks at `MOST_THREADS` at most, of which

- half, at most, are those of the reading before that wanted most CPU, in turn of each cgroup: whoever suffers is among
  these, and no cgroup with many threads takes the place of another;
- the rest are fresh: a few of each cgroup, cgroup by cgroup, round and round, so that every cgroup has its turn.

A thread that is read twice in a row says by how much its times have grown. A fresh one is read for the first time, so
it says something in the next reading only. The cgroups below kubepods are listed anew at each round's beginning.

What is read is /proc/TID/schedstat, for which the kernel waits for no lock that a starved process could hold. A
thread's id is enough, although `ls /proc` shows processes only (measured: the same values as in /proc/PID/task/TID).
The file stays open for as long as the thread is looked at: to open it costs five times what reading it does, and one
that is open is never of another thread that has got the id meanwhile.
"""

import errno
from typing import Final

from criproxy.cgroup import files
from criproxy.cgroup.access import FileAccess
from criproxy.cgroup.driver import CgroupError
from criproxy.cgroup.tree import GONE, Tree
from criproxy.concurrency.clock import Clock
from criproxy.model.signals import Missing, RunQueue, ThreadTimes

MOST_THREADS: Final = 64
"""The most threads that one reading looks at."""

KEPT_THREADS: Final = 32
"""The most of them that the next reading looks at again."""

THREADS_OF_A_CGROUP: Final = 8
"""The most fresh threads that a reading takes from one cgroup."""

CGROUPS_A_READING: Final = 16
"""The most cgroups that a reading goes through for fresh threads. Four containers have enough of them, but cgroups of
sandboxes have one thread each, and those of pods have none.
"""

MOST_CGROUPS: Final = 4096
"""The most cgroups that a round goes through."""

_LIST_BYTES: Final = 1 << 16
"""How much of a cgroup's list of threads is read, which is about 9,000 of them."""

NO_THREADS: Final = (*GONE, errno.EOPNOTSUPP)
"""EOPNOTSUPP is the answer of a cgroup that may hold no threads itself. Source: cgroup-v2.rst, Threads."""

ENDED: Final = (*GONE, errno.ESRCH)


class RunQueueSampler:
    """Of the threads below one cgroup, from a thread of its own; every failure is a `Missing` or one thread less."""

    def __init__(self, access: FileAccess, tree: Tree, clock: Clock, proc: str) -> None:
        self._access = access
        self._tree = tree
        self._proc = proc
        self._clock = clock
        self._watched: dict[int, str] = {}
        """By thread id, the cgroup that the thread was found in."""
        self._opened: dict[int, int] = {}
        """By thread id, the descriptor of its times."""
        self._last: dict[int, ThreadTimes] = {}
        self._cgroups: list[str] = []
        self._next = self._round = 0
        self._counts = False

    def read(self, online: str) -> RunQueue | Missing:
        """`online` is kubepods' directory below the hierarchy's root. Raises CgroupError."""
        if why := self._why_not():
            self.forget()
            return Missing(why)
        again = self._times(self._watched)
        wanted_s = {tid: _grown_s(times, self._last.get(tid)) for tid, times in again.items()}
        wanting = [tid for tid in again if wanted_s[tid] > 0.0]
        kept = _in_turn(sorted(wanting, key=lambda tid: wanted_s[tid], reverse=True), again)[:KEPT_THREADS]
        self._watched = {tid: again[tid].cgroup for tid in kept}
        found = self._found(online, MOST_THREADS - KEPT_THREADS)
        known = {tid: again[tid] for tid, cgroup in found.items() if tid in again and again[tid].cgroup == cgroup}
        fresh = known | self._times({tid: cgroup for tid, cgroup in found.items() if tid not in known})
        self._last = {tid: again[tid] for tid in kept} | fresh
        self._watched = {tid: times.cgroup for tid, times in self._last.items()}
        self._close_others()
        return RunQueue(self._clock.monotonic_s(), again | fresh)

    def forget(self) -> None:
        """Begin anew: nothing is looked at meanwhile."""
        self._watched, self._last, self._cgroups, self._next = {}, {}, [], 0
        self._close_others()

    def _close_others(self) -> None:
        """Close the files of all that is not looked at any more."""
        for tid in self._opened.keys() - self._watched.keys():
            self._tree.close(self._opened.pop(tid))

    def _why_not(self) -> str:
        """Our own times tell: whoever reads has run. What was counted once is not looked at again."""
        if self._counts:
            return ""
        file = f"{self._proc}/self/schedstat"
        try:
            self._counts = files.parse_schedstat(self._tree.read(file)) is not None
        except CgroupError as error:
            if error.errno not in GONE:
                raise
            return f"{file} does not exist: this kernel does not count how long threads wait (CONFIG_SCHED_INFO)"
        return (
            ""
            if self._counts
            else f"{file} says 0: this kernel does not count how long threads wait (boot with delayacct)"
        )

    def _times(self, threads: dict[int, str]) -> dict[int, ThreadTimes]:
        """Of those that are still there."""
        found = {}
        for tid, cgroup in threads.items():
            try:
                times = files.parse_schedstat(self._schedstat(tid))
            except CgroupError as error:
                if error.errno not in ENDED:
                    raise
                if tid in self._opened:  # the id may be another thread's already
                    self._tree.close(self._opened.pop(tid))
                continue
            found[tid] = ThreadTimes(cgroup, *(times or (0.0, 0.0)))
        return found

    def _schedstat(self, tid: int) -> str:
        file, fd = f"{self._proc}/{tid}/schedstat", self._opened.get(tid)
        if fd is None:
            fd = self._opened[tid] = self._tree.open(file)
        return self._tree.read_open(fd, file)

    def _found(self, online: str, most: int) -> dict[int, str]:
        """The next fresh threads, and their cgroups; a reading begins one round at most."""
        fresh: dict[int, str] = {}
        begun = False
        for _ in range(CGROUPS_A_READING):
            if self._next >= len(self._cgroups):
                if not begun:
                    self._begin_round(online)
                if begun or not self._cgroups:
                    break
                begun = True
            cgroup = self._cgroups[self._next]
            self._next += 1
            unknown = [tid for tid in self._of(cgroup) if tid not in self._watched]
            fresh |= dict.fromkeys(unknown[: most - len(fresh)], cgroup)
            if len(fresh) >= most:
                break
        return fresh

    def _begin_round(self, online: str) -> None:
        """In the order of names, so that pods' own cgroups, which have no thread, do not come all at once."""
        root = self._access.directory("cpu", "")
        directories, _ = self._tree.first_below(root + online, MOST_CGROUPS)
        self._cgroups = sorted(directory.removeprefix(root) for directory in directories)
        self._next = 0
        self._round += 1

    def _of(self, cgroup: str) -> list[int]:
        """A few threads of a cgroup, others in each round."""
        threads = threads_in(self._access, self._access.directory("cpu", cgroup), _LIST_BYTES)
        stride = -(-len(threads) // THREADS_OF_A_CGROUP) or 1
        return threads[self._round % stride :: stride]


def threads_in(files: FileAccess, directory: str, most_bytes: int) -> list[int]:
    """Those of a cgroup that the beginning of its list names; none where it has gone, or may hold none."""
    file = f"{directory}/{'tasks' if files.version == 1 else 'cgroup.threads'}"
    try:
        return [int(line) for line in files.tree.head(file, most_bytes).split()]
    except CgroupError as error:
        if error.errno in NO_THREADS:
            return []
        raise


def _in_turn(ordered: list[int], times: dict[int, ThreadTimes]) -> list[int]:
    """The first of each cgroup, then the second of each, and so on."""
    turns: dict[str, int] = {}
    turn = {}
    for tid in ordered:
        turn[tid] = turns[times[tid].cgroup] = turns.get(times[tid].cgroup, 0) + 1
    return sorted(ordered, key=lambda tid: turn[tid])


def _grown_s(times: ThreadTimes, last: ThreadTimes | None) -> float:
    """For how long the thread has wanted CPU since the last reading."""
    return 0.0 if last is None else times.ran_s + times.waited_s - last.ran_s - last.waited_s
