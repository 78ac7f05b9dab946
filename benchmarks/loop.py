"""What criproxy costs while nothing is called: control loop, guard and upkeep, by the number of offline pods."""

import os
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.proxy import connect, cpu_seconds, rss_mib, run_request, running
from benchmarks.table import table
from integration.lab.clean import clean
from integration.lab.directory import cgroup_root, claimed
from integration.lab.process import LabError

_PODS = (0, 110)
_SETTLE_S = 8.0
_WATCH_S = 30.0


@dataclass(frozen=True, slots=True)
class Cost:
    """With the default settings: a tick each second, a look of the guard each 50 ms."""

    offline_pods: int
    percent_of_a_core: float
    rss_mib: float


def measure(pods: int) -> Cost:
    with claimed() as directory:
        try:
            with running(directory) as (_, proxy):
                proxy.start()
                try:
                    _start(cgroup_root(directory), pods, proxy)
                    time.sleep(_SETTLE_S)
                    before_s = cpu_seconds(proxy.pid)
                    time.sleep(_WATCH_S)
                    return Cost(pods, (cpu_seconds(proxy.pid) - before_s) / _WATCH_S * 100, rss_mib(proxy.pid))
                finally:
                    proxy.stop()
        finally:
            clean(directory)


def _start(prefix: str, pods: int, proxy: Any) -> None:
    with connect(proxy.socket) as channel:
        run = channel.unary_unary("/runtime.v1.RuntimeService/RunPodSandbox")
        for number in range(pods):
            run(run_request(prefix, f"p{number}", offline=True))
    if (placed := len(proxy.status()["pods"])) != pods:
        raise LabError(f"{placed} pods are in the box, not {pods}")


def report() -> list[dict[str, Any]]:
    """Measure and print; returns the figures. Raises LabError when the lab can't be had."""
    if os.geteuid() != 0:
        raise LabError("the loop's benchmark needs root, for the box")
    costs = []
    for pods in _PODS:
        print(f"measuring {pods} pods for {_WATCH_S:g} s …", file=sys.stderr)
        costs.append(measure(pods))
    print(table(costs))
    return [asdict(cost) for cost in costs]
