"""What each engine adds to a call and to a pod's start and end, in time and CPU, between a floor and a rival.

The rival is a proxy in Go that only carries messages (`go_proxy`), the floor a program in C that only carries bytes
(`pipe`). Direct and proxied calls take turns, in rounds. A round in which others took CPU time is void.

Needs root, for the box of the hooked calls, Debian's Go for the rival, and a C compiler for the floor.
`python -m benchmarks.proxy [--beside CHECKOUT] [CASE …]`: with another checkout's relay in the same rounds, "beside".
"""

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.node import (
    ENGINES,
    NodeCriproxy,
    backend,
    container_of,
    cpu_seconds,
    create_request,
    labs,
    run_request,
)
from benchmarks.table import table
from benchmarks.wire import Client
from criproxy.fronts.cri import messages as cri
from integration.lab.cgroups import Tree
from integration.lab.criproxy import CHECKOUT
from integration.lab.directory import cgroup_root, socket_path
from integration.lab.process import LabError, Process

_DIRECT: Final = "direct"
_FLOOR: Final = "pipe"
RIVAL: Final = "go"
_OWN: Final = "relay"
_BESIDE: Final = "beside"
_RUNTIME: Final = "/runtime.v1.RuntimeService/"
_ROUNDS: Final = 10
_MOST_ROUNDS: Final = 15
"""With those that are void."""
_SETTLE_S: Final = 5.0
"""What a process that has just begun does beside its calls is over by then."""
_REST_S: Final = 0.3
"""After pods have ended, as criproxy removes their cgroups a moment later."""
_OTHERS_RATIO: Final = 0.05
"""A round is void in which others, virtual machines beside this one included, took more of all CPUs than this."""
_LATER_S: Final = 7.0
"""What criproxy does on account of a pod's start or end, it has done by then; the runtime is listed after 5 s."""
_LATER_ROUNDS: Final = 3

_UIDS: Final = itertools.count()

Step = tuple[str, Callable[[str, str], bytes]]
"""A method, and what makes its request for a node whose cgroups begin with a prefix and a pod with a uid."""


def _named(kind: str, key: str, *, container: bool) -> Callable[[str, str], bytes]:
    """Makes a request with an id alone."""
    return lambda _, uid: getattr(cri, kind)(
        **{key: (container_of(uid) if container else uid).encode()}
    ).SerializeToString()


def _start(*, offline: bool) -> tuple[Step, ...]:
    return (
        ("RunPodSandbox", lambda prefix, uid: run_request(prefix, uid, offline=offline)),
        ("CreateContainer", lambda prefix, uid: create_request(prefix, uid, offline=offline)),
        ("StartContainer", _named("StartContainerRequest", "container_id", container=True)),
    )


_END: Final[tuple[Step, ...]] = (
    ("StopContainer", _named("StopContainerRequest", "container_id", container=True)),
    ("StopPodSandbox", _named("StopPodSandboxRequest", "pod_sandbox_id", container=False)),
    ("RemoveContainer", _named("RemoveContainerRequest", "container_id", container=True)),
    ("RemovePodSandbox", _named("RemovePodSandboxRequest", "pod_sandbox_id", container=False)),
)


@dataclass(frozen=True, slots=True)
class Case:
    """Calls that follow each other, and how often they are made on each side in each of the rounds.

    `at_once`: by so many pods at a time, half of them on each of two connections. What is done `before` them and
    `behind` them, to the same pods, does not count.
    """

    name: str
    steps: Sequence[Step]
    times: int
    at_once: int = 1
    before: Sequence[Step] = ()
    behind: Sequence[Step] = ()
    offline: bool = False


_RUN: Final = {kind: _start(offline=offline)[:1] for kind, offline in (("online", False), ("offline", True))}
_CREATE: Final = {kind: _start(offline=offline)[1:2] for kind, offline in (("online", False), ("offline", True))}
_ALL: Final = {kind: _start(offline=offline) for kind, offline in (("online", False), ("offline", True))}

CASES: Final = (
    Case("small call (Version)", (("Version", lambda *_: b""),), 400),
    Case("small call, 16 at once", (("Version", lambda *_: b""),), 640, at_once=16),
    Case("200 KB list", (("ListContainerStats", lambda *_: b""),), 100),
    *(
        case
        for kind, offline in (("online", False), ("offline", True))
        for case in (
            Case(f"RunPodSandbox, {kind}", _RUN[kind], 48, behind=_END, offline=offline),
            Case(f"CreateContainer, {kind}", _CREATE[kind], 48, before=_RUN[kind], behind=_END, offline=offline),
            Case(f"a pod's start, {kind}", _ALL[kind], 48, behind=_END, offline=offline),
            Case(f"a pod's start, {kind}, 16 at once", _ALL[kind], 48, at_once=16, behind=_END, offline=offline),
            Case(f"a pod's end, {kind}", _END, 48, before=_ALL[kind], offline=offline),
        )
    ),
)
"""A start is RunPodSandbox, CreateContainer and StartContainer; an end is StopContainer, StopPodSandbox,
RemoveContainer and RemovePodSandbox. A small call is one that passes.
"""


@dataclass(frozen=True, slots=True)
class Figure:
    """A case through an engine, in microseconds per time that its calls are made; medians over the rounds.

    `direct`: of the p50 without a proxy. `added`: of what the proxy adds to that. `cpu`: CPU time of the proxy's
    process meanwhile, also as ratio to the rival's in the same round. `low` and `high` are the second lowest and second
    highest of the rounds. `void`: how many rounds were left out; `others_percent`: what others took of all CPUs in the
    worst of those that count, with a ! where that is more than makes a round void.
    """

    name: str
    engine: str
    direct_us: float
    added_us: float
    added_low_us: float
    added_high_us: float
    cpu_us: float
    cpu_to_go: float
    cpu_to_go_low: float
    cpu_to_go_high: float
    rounds: int
    void: int
    others_percent: str


@dataclass(frozen=True, slots=True)
class Ratio:
    """The relay's CPU time, as ratio to that of the other checkout's relay in the same round: the median of the rounds,
    the second lowest and the second highest.
    """

    name: str
    cpu: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Later:
    """CPU time per pod, in microseconds, within the seconds after the last answer, above what goes on without pods.

    The median of the rounds, the lowest and the highest.
    """

    what: str
    engine: str
    cpu_us: float
    low_us: float
    high_us: float


@dataclass(frozen=True, slots=True)
class Side:
    """A way to the backend, on two connections. `pid`: of the proxy in it, 0: there is none. `prefix`: where its
    cgroups begin.
    """

    name: str
    clients: tuple[Client, Client]
    pid: int
    prefix: str

    def run(self, case: Case) -> tuple[float, float]:
        """The p50 and the proxy's CPU time, in s."""
        for client in self.clients:
            client.answer_pings()
        uids = [f"{self.name}{next(_UIDS)}" for _ in range(case.times)]
        with self._kubelets(uids if case.offline else ()):
            self._do(case.before, uids, case.at_once)
            requests = self._requests(case.steps, uids, case.at_once)
            before_s = self.cpu_s()
            taken = [self._take(together) for together in requests]
            used_s = self.cpu_s() - before_s
            self._do(case.behind, uids, case.at_once)
        return statistics.median(taken), used_s / len(uids)

    @contextmanager
    def _kubelets(self, uids: Sequence[str]) -> Iterator[None]:
        """Kubelet's own cgroups of these pods, where there is a proxy that looks at them."""
        trees = [Tree(f"{self.prefix}/kubepods/besteffort/pod{uid}") for uid in uids if self.prefix]
        for tree in trees:
            tree.make()
        try:
            yield
        finally:
            for tree in trees:
                tree.remove()

    def cpu_s(self) -> float:
        return cpu_seconds(self.pid) if self.pid else 0.0

    def start(self, uids: Sequence[str]) -> None:
        """Offline pods."""
        with self._kubelets(uids):
            self._do(_ALL["offline"], uids, 1)

    def end(self, uids: Sequence[str]) -> None:
        self._do(_END, uids, 1)

    def _do(self, steps: Sequence[Step], uids: Sequence[str], at_once: int) -> None:
        for together in self._requests(steps, uids, at_once):
            self._take(together)

    def _requests(
        self, steps: Sequence[Step], uids: Sequence[str], at_once: int
    ) -> list[list[tuple[Client, list[bytes]]]]:
        """For each lot of pods, what goes to which client, step by step; made in the order in which it is sent."""
        found = []
        for begin in range(0, len(uids), at_once) if steps else ():
            lot = uids[begin : begin + at_once]
            shares = [(client, lot[number::2]) for number, client in enumerate(self.clients) if lot[number::2]]
            found.append(
                [
                    (client, client.requests(f"{_RUNTIME}{method}", [request(self.prefix, uid) for uid in share]))
                    for method, request in steps
                    for client, share in shares
                ]
            )
        return found

    def _take(self, together: Sequence[tuple[Client, list[bytes]]]) -> float:
        """In s: the steps of a lot, each on all of its clients at once, and the next when all are answered."""
        sides = len({id(client) for client, _ in together})
        taken_s = 0.0
        for number in range(0, len(together), sides):
            step = together[number : number + sides]
            began_s = time.perf_counter()
            for client, requests in step:
                client.send(b"".join(requests))
            answers = [(client, client.answers(len(requests))) for client, requests in step]
            taken_s += time.perf_counter() - began_s
            for client, blocks in answers:
                client.check(blocks)
        return taken_s


@dataclass(frozen=True, slots=True)
class Machine:
    """All CPUs, and the processes of this benchmark."""

    pids: Collection[int]
    cpus: int = field(default_factory=lambda: os.cpu_count() or 1)

    def busy_s(self) -> float:
        """CPU time that others have taken by now. Source: proc(5), /proc/stat; cpu_seconds."""
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        user, nice, system, _, _, irq, soft_irq, steal = map(int, fields[:8])
        all_s = (user + nice + system + irq + soft_irq + steal) / os.sysconf("SC_CLK_TCK")
        return all_s - sum(map(cpu_seconds, self.pids))


@dataclass(frozen=True, slots=True)
class Round:
    """By side: p50 and CPU time, in s. `others_ratio`: of all CPUs' time, what others took."""

    sides: Mapping[str, tuple[float, float]]
    others_ratio: float


def measure(case: Case, sides: Sequence[Side], machine: Machine) -> tuple[list[Round], int]:
    """Rounds of calls on all sides in turn, beginning with another in each, after a warm-up of all; and how many are
    void. When these are too many, the least disturbed of them count.
    """
    for side in sides:
        side.run(case)
    rounds: list[Round] = []
    while len(rounds) < _MOST_ROUNDS and sum(one.others_ratio <= _OTHERS_RATIO for one in rounds) < _ROUNDS:
        rounds.append(_round(case, sides, len(rounds), machine))
    counted = sorted(rounds, key=lambda one: one.others_ratio)[:_ROUNDS]
    return counted, len(rounds) - len(counted)


def _round(case: Case, sides: Sequence[Side], number: int, machine: Machine) -> Round:
    first, taken = number % len(sides), {}
    began_s, before_s = time.perf_counter(), machine.busy_s()
    for side in [*sides[first:], *sides[:first]]:
        taken[side.name] = side.run(case)
        if case.before or case.behind:
            time.sleep(_REST_S)
    by_others_s, lasted_s = machine.busy_s() - before_s, time.perf_counter() - began_s
    return Round(taken, max(0.0, by_others_s) / (lasted_s * machine.cpus))


def _figure(case: Case, engine: str, rounds: Sequence[Round], void: int) -> Figure:
    added = sorted(1e6 * (one.sides[engine][0] - one.sides[_DIRECT][0]) for one in rounds)
    to_go = sorted(one.sides[engine][1] / one.sides[RIVAL][1] for one in rounds)
    worst = max(one.others_ratio for one in rounds)
    return Figure(
        name=case.name,
        engine=engine,
        direct_us=1e6 * statistics.median(one.sides[_DIRECT][0] for one in rounds),
        added_us=statistics.median(added),
        added_low_us=added[1],
        added_high_us=added[-2],
        cpu_us=1e6 * statistics.median(one.sides[engine][1] for one in rounds),
        cpu_to_go=statistics.median(to_go),
        cpu_to_go_low=to_go[1],
        cpu_to_go_high=to_go[-2],
        rounds=len(rounds),
        void=void,
        others_percent=f"{100 * worst:.1f}{'!' if worst > _OTHERS_RATIO else ''}",
    )


def later(sides: Sequence[Side], pods: int = 48) -> list[Later]:
    """What criproxy does once offline pods have been started, or removed, and the calls for that are answered."""
    taken: dict[tuple[str, str], list[float]] = {}
    for _ in range(_LATER_ROUNDS):
        uids = {side.name: [f"{side.name}{next(_UIDS)}" for _ in range(pods)] for side in sides}
        idle_s = _after(sides, lambda _: None)
        started_s = _after(sides, lambda side, uids=uids: side.start(uids[side.name]))  # type: ignore[misc]
        ended_s = _after(sides, lambda side, uids=uids: side.end(uids[side.name]))  # type: ignore[misc]
        for side in sides:
            for what, used_s in (("a pod's start", started_s), ("a pod's end", ended_s)):
                one_us = 1e6 * (used_s[side.name] - idle_s[side.name]) / pods
                taken.setdefault((f"after {what}, offline", side.name), []).append(one_us)
    return [
        Later(what, engine, statistics.median(found), min(found), max(found)) for (what, engine), found in taken.items()
    ]


def _after(sides: Sequence[Side], do: Callable[[Side], None]) -> dict[str, float]:
    """By side, the CPU time of the seconds after `do`, in s."""
    due: list[tuple[float, Side, float]] = []
    for side in sides:
        do(side)
        due.append((time.monotonic() + _LATER_S, side, side.cpu_s()))
    used_s = {}
    for at_s, side, before_s in due:
        time.sleep(max(0.0, at_s - time.monotonic()))
        used_s[side.name] = side.cpu_s() - before_s
    return used_s


def _ratio(case: Case, rounds: Sequence[Round]) -> Ratio:
    ratios = sorted(one.sides[_OWN][1] / one.sides[_BESIDE][1] for one in rounds)
    return Ratio(case.name, statistics.median(ratios), ratios[1], ratios[-2])


@contextmanager
def built(name: str, script: str, directory: Path, runtime: Path) -> Iterator[Side]:
    """A proxy that a script here builds. Raises LabError when it can't."""
    built = subprocess.run((CHECKOUT / "benchmarks" / script,), check=False, stdout=subprocess.PIPE, text=True)
    if built.returncode:
        raise LabError(f"{script} failed: see above")
    socket = socket_path(directory, f"{name}.sock")
    process = Process(name, [built.stdout.strip(), str(socket), str(runtime)], directory / f"{name}.log", {})
    try:
        process.wait_until(socket.exists, 30, "its socket")
        with ExitStack() as ends:
            yield Side(name, connected(socket, ends), process.pid, "")
    finally:
        process.stop()


def connected(socket: Path, ends: ExitStack) -> tuple[Client, Client]:
    return ends.enter_context(Client(socket)), ends.enter_context(Client(socket))


def run(
    directories: Mapping[str, Path], cases: Sequence[Case], beside: Path | None = None
) -> tuple[list[Figure], list[Later], list[Ratio]]:
    """`directories`: a lab's for each engine. `beside`: another checkout, whose relay is an engine, too."""
    with ExitStack() as ends:
        first = next(iter(directories.values()))
        runtime = ends.enter_context(backend(first))
        socket = runtime.socket
        sides = [
            Side(_DIRECT, connected(socket, ends), 0, ""),
            ends.enter_context(built(_FLOOR, "pipe/build", first, socket)),
            ends.enter_context(built(RIVAL, "go_proxy/build", first, socket)),
        ]
        for name, directory in directories.items():
            checkout = beside if beside is not None and name == _BESIDE else CHECKOUT
            proxy = NodeCriproxy(directory, socket, _OWN if name == _BESIDE else name, checkout=checkout)
            proxy.start()
            ends.callback(proxy.stop)
            sides.append(Side(name, connected(proxy.socket, ends), proxy.pid, cgroup_root(directory)))
        machine = Machine([os.getpid(), runtime.pid, *(side.pid for side in sides if side.pid)])
        time.sleep(_SETTLE_S)
        figures, ratios = [], []
        for case in cases:
            print(f"measuring {case.name} …", file=sys.stderr)
            rounds, void = measure(case, sides, machine)
            figures += [_figure(case, side.name, rounds, void) for side in sides if side.pid]
            ratios += [_ratio(case, rounds)] if beside else []
        print("measuring what is done after the answer …", file=sys.stderr)
        return figures, later([side for side in sides if side.name in (_OWN, _BESIDE)]), ratios


def report(
    cases: Sequence[Case] = CASES, engines: Sequence[str] = tuple(ENGINES), beside: Path | None = None
) -> dict[str, Any]:
    """Measure and print; returns the figures. Raises LabError when the lab or the rival can't be had."""
    if os.geteuid() != 0:
        raise LabError("the proxy's benchmark needs root, for the box of its hooked calls")
    with labs((*engines, *([_BESIDE] if beside else []))) as directories:
        found = run(directories, cases, beside)
    for rows in found:
        print(table(rows) if rows else "")
    return dict(zip(("calls", "later", "beside"), ([asdict(row) for row in rows] for rows in found), strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.proxy", description="What the relay adds, see above.")
    parser.add_argument("cases", metavar="CASE", nargs="*", help="a part of the name of those to measure (all)")
    parser.add_argument("--beside", metavar="CHECKOUT", type=Path, help="measure this checkout's relay, too")
    options = parser.parse_args()
    chosen = [case for case in CASES if not options.cases or any(part in case.name for part in options.cases)]
    report(chosen, (_OWN,), options.beside)
    return 0


if __name__ == "__main__":
    sys.exit(main())
