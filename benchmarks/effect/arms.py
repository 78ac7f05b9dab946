"""The arms: every way to place and bound offline work that is compared."""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from benchmarks.stage import PERIOD_US
from criproxy.cgroup.files import CFS_PERIOD_US
from integration.lab.cgroups import hierarchies, version
from integration.lab.criproxy import Config
from integration.lab.process import LabError
from integration.lab.usage import Cgroup

Place = Literal["nowhere", "box", "besteffort", "burstable"]


@dataclass(frozen=True, slots=True)
class Arm:
    """`place`: where offline work runs. `config`: criproxy's, for the box. `idle` False: the kernel has no cpu.idle,
    as far as criproxy can tell. `koordlet`: besteffort is bounded by that law, and not otherwise. `by_evidence`: the
    load waits until evidence bounds the box. `idle_by_hand`: the pod has cpu.idle, where kubelet placed it, as a script
    could do without criproxy. `period_us`: of criproxy's quota. `pinned_by_hand`: offline's pods stay on a CPU each, by
    taskset. `awake`: on each CPU a loop keeps it from going idle, and gives way to everybody else. `loaded`: online is.
    """

    name: str
    place: Place
    config: Config = field(default_factory=dict)
    idle: bool = True
    koordlet: bool = False
    by_evidence: bool = False
    idle_by_hand: bool = False
    period_us: int = CFS_PERIOD_US
    pinned_by_hand: bool = False
    awake: bool = False
    loaded: bool = True


ALONE = "alone"
AGAIN = "alone again"
"""Online alone, first and last in each round; how far the two differ is what this machine can't tell apart."""

OFFLINE = "offline alone"
"""In each round, too: offline's rate is told as a ratio to this one."""

DEFAULT = "criproxy, evidence"


def arms(cores: int) -> dict[str, Arm]:
    """All of them, by name."""

    def box(name: str, watermark_ratio: float, *, guard: bool = True, idle: bool = True) -> Arm:
        cpu = {"bound": "prediction", "watermark_ratio": watermark_ratio}
        config: Config = {"cpu": cpu, "guard": {"enabled": guard}}
        return Arm(name, "box", config, idle)

    def quota(
        name: str, *, min_cores: float = 0.1, max_raise_ratio: float = 0.1, period_us: int = CFS_PERIOD_US
    ) -> Arm:
        """As box, with the quota alone, for which floor, stride and period are there."""
        config: Config = {
            "cpu": {"bound": "prediction", "min_cores": min_cores},
            "control": {"max_raise_ratio": max_raise_ratio},
        }
        return Arm(f"criproxy 0.9, no cpu.idle, {name}", "box", config, idle=False, period_us=period_us)

    def evidence(name: str, *, guard: bool = True, pins: bool = True) -> Arm:
        config: Config = {
            "cpu": {"bound": "evidence"},
            "guard": {"enabled": guard},
            "cpuset": {"pin_pods": pins},
        }
        return Arm(name, "box", config, by_evidence=True)

    whole: Config = {
        "control": {"policy": "static"},
        "cpu": {"static_cores": float(cores)},
        "memory": {"static_bytes": 8 * 2**30},
        "guard": {"enabled": False},
    }
    known = (
        Arm(ALONE, "nowhere"),
        Arm(AGAIN, "nowhere"),
        Arm(OFFLINE, "besteffort", loaded=False),
        Arm("alone, CPUs kept awake", "nowhere", awake=True),
        Arm("besteffort, unbounded", "besteffort"),
        Arm("besteffort, cpu.idle by hand", "besteffort", idle_by_hand=True),
        Arm("burstable, unbounded", "burstable"),
        Arm("koordlet's law (65 %, 1 s)", "besteffort", koordlet=True),
        box("criproxy 0.9", 0.9),
        box("criproxy 0.9, no guard", 0.9, guard=False),
        box("criproxy 0.9, no cpu.idle", 0.9, idle=False),
        quota("floor 0.5 cores", min_cores=0.5),
        quota("raised at once", max_raise_ratio=1.0),
        quota("period 20 ms", period_us=20_000),
        box("criproxy 1.0", 1.0),
        box("criproxy 1.0, no guard", 1.0, guard=False),
        evidence(DEFAULT),
        evidence("criproxy, evidence, no guard", guard=False),
        evidence("criproxy, evidence, not pinned", pins=False),
        Arm("besteffort, pinned by hand", "besteffort", pinned_by_hand=True),
        Arm("criproxy, box open", "box", whole),
        Arm("criproxy, box open, no cpu.idle", "box", whole, idle=False),
    )
    return {arm.name: arm for arm in known}


QUICK = (
    "besteffort, unbounded",
    "koordlet's law (65 %, 1 s)",
    "criproxy 0.9",
    DEFAULT,
    "criproxy, evidence, not pinned",
)
"""The arms of a quick run, beside those that each round has."""


class Koordlet:
    """Koordinator's cpusuppress: once a second, besteffort gets 65 % of the node less what everybody else used.

    It grows by at most a tenth of the node per second, and never falls below a tenth of a core.
    Source: koordinator, pkg/koordlet/qosmanager/plugins/cpusuppress (threshold 65 %, policy cfsQuota).
    """

    def __init__(self, node: str, besteffort: str, cores: int) -> None:
        self._node, self._besteffort, self._cores = node, besteffort, cores
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Koordlet":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        set_quota(self._besteffort, None)

    def _run(self) -> None:
        before, granted = self._read(), 0.1 * self._cores
        while not self._stop.wait(1.0):
            now = self._read()
            passed_s = now[0] - before[0]
            other = (now[1] - before[1] - (now[2] - before[2])) / passed_s
            granted = max(0.1, min(0.65 * self._cores - other, granted + 0.1 * self._cores))
            set_quota(self._besteffort, granted)
            before = now

    def _read(self) -> tuple[float, float, float]:
        return time.monotonic(), Cgroup(self._node).cpu_s(), Cgroup(self._besteffort).cpu_s()


def set_quota(path: str, cores: float | None) -> None:
    """A cgroup's CPU quota; None: none."""
    file = "cpu.cfs_quota_us" if version() == 1 else "cpu.max"
    quota = None if cores is None else max(1000, int(cores * PERIOD_US))
    text = str(quota or -1) if version() == 1 else f"{quota or 'max'} {PERIOD_US}"
    _cpu(path, file).write_text(text)


_REALTIME_US = 900_000
"""Of each second; all cgroups together may have 950,000 by default."""


def allow_realtime(path: str) -> None:
    """Let processes of a cgroup run under SCHED_FIFO. Raises LabError.

    Source: kernel, scheduler/sched-rt-group (cgroup v1 alone).
    """
    if version() != 1:
        return
    above = [one for one in reversed(PurePosixPath(path).parents) if one.name]
    for one in (*above, PurePosixPath(path)):
        file = _cpu(str(one), "cpu.rt_runtime_us")
        try:
            file.write_text(str(_REALTIME_US))
        except OSError as error:
            why = "other cgroups may have what there is of real time: end what uses it, and remove their cgroups"
            raise LabError(f"can't write {_REALTIME_US} to {file}: {error.strerror}; {why}") from error


def set_idle(path: str, *, idle: bool) -> None:
    """A cgroup's cpu.idle, where there is such a cgroup."""
    with contextlib.suppress(FileNotFoundError):
        _cpu(path, "cpu.idle").write_text(str(int(idle)))


def _cpu(path: str, file: str) -> Path:
    found: Callable[..., bool] = lambda one: "cpu" in one.controllers if version() == 1 else "" in one.controllers  # noqa: E731
    return next(one.directory(path) / file for one in hierarchies() if found(one))
