"""The CPU time that a saturated box gets is its quota's, through fifty changes and all that makes systemd rewrite it.

The kernel gives a fresh period's quota with each write (kernel/sched/core.c, tg_set_cfs_bandwidth): hence changes every
few seconds, as a bound that moves, and not each tick.
"""

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from types import TracebackType
from typing import Self

import pytest

from integration.lab import cri_client_pb2 as cri
from integration.lab.client import CriClient
from integration.lab.criproxy import Criproxy, static
from integration.lab.process import wait_until
from integration.lab.throwaway import CONTAINERD_SOCKET, IMAGE
from integration.lab.usage import CPUS, Cgroup, busy_loops
from integration.systemd.slice_lab import BOX, V1, systemctl

pytestmark = [
    pytest.mark.skipif(V1, reason="the events are those at which systemd rewrites files of cgroup v2"),
    pytest.mark.timeout(900),
]

Say = Callable[[str], object]

LABELS = {"colocation.criproxy.io/class": "offline"}
KUBELETS = ("kubepods.slice", "kubepods-besteffort.slice", "kubepods-burstable.slice")
ROUND = [CPUS * share for share in (0.2, 0.1, 0.3, 0.15, 0.4, 0.1, 0.25, 0.35, 0.12, 0.3)]
"""In cores: changes up and down, from one to the next and from the last to the first."""
CHANGES, CHANGE_EACH_S = 50, 4.5
QUOTA = CPUS * 0.2
"""In cores, through the events."""
PERIOD_S = 0.1
TOLERANCE, ENOUGH = 0.03, 0.9
SATURATED = 0.4
"""An emulated node may not have the CPU that the quota grants: so much is used, and in so many periods used up."""
BEFORE_S, AFTER_S = 2.0, 4.0
POLL_S = 0.1
WAIT_S = 60.0


# --- measuring ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sample:
    """The box at one moment of CLOCK_MONOTONIC. `quota_cores` is infinite where there is none."""

    at_s: float
    quota_cores: float
    used_s: float
    throttled: int


@dataclass(frozen=True, slots=True)
class Span:
    """What the box used and was granted between two samples, in s of CPU.

    `spent` is the share of all periods in which the box used up its quota (nr_throttled).
    """

    seconds: float
    used_s: float
    granted_s: float
    spent: float

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Self:
        first, last = samples[0], samples[-1]
        used_s = last.used_s - first.used_s
        return cls(
            seconds=last.at_s - first.at_s,
            used_s=used_s,
            granted_s=sum((b.at_s - a.at_s) * (a.quota_cores + b.quota_cores) / 2 for a, b in pairwise(samples)),
            spent=(last.throttled - first.throttled) * PERIOD_S / (last.at_s - first.at_s),
        )

    @property
    def is_enough(self) -> bool:
        return self.used_s >= ENOUGH * self.granted_s

    @property
    def lacked_cpu(self) -> bool:
        """The loops never wait: with the quota used up in many periods, the node had no more in the others."""
        return min(self.spent, self.used_s / self.granted_s) >= SATURATED

    def __str__(self) -> str:
        return (
            f"{self.used_s / self.granted_s:.2%} of the quota's {self.granted_s:.2f} s of CPU in {self.seconds:.1f} s; "
            f"used up in {self.spent:.0%} of periods"
        )


class Meter:
    """Within this, the box is read `POLL_S` apart."""

    def __init__(self, box: Cgroup) -> None:
        self._box = box
        self._samples = [self._read()]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def quota_cores(self) -> float:
        """As it was last read."""
        return self._samples[-1].quota_cores

    def between(self, from_s: float, until_s: float) -> list[Sample]:
        """The samples of that time. Raises AssertionError when the box could not be read throughout."""
        assert self._thread.is_alive(), f"{self._box.path} could not be read: it went"
        return [sample for sample in tuple(self._samples) if from_s <= sample.at_s <= until_s]

    def _run(self) -> None:
        while not self._ended.wait(POLL_S):
            self._samples.append(self._read())

    def _read(self) -> Sample:
        quota, (_, throttled) = self._box.quota_cores(), self._box.periods()
        before_s, used_s, after_s = time.monotonic(), self._box.cpu_s(), time.monotonic()
        cores = float("inf") if quota is None else quota
        return Sample((before_s + after_s) / 2, cores, used_s, throttled)


def quotas(samples: Sequence[Sample]) -> list[float]:
    """One after the other, each as often as it came anew."""
    return [cores for cores, _ in groupby(sample.quota_cores for sample in samples)]


def assert_had_its_quota(found: Span, say: Say) -> None:
    if not found.is_enough:
        say(f"!!! LESS THAN {ENOUGH:.0%}: the node had not the CPU ({found.spent:.0%} of periods throttled)")
    assert found.is_enough or found.lacked_cpu, found


# --- the node -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Node:
    """criproxy, before this node's containerd."""

    criproxy: Criproxy
    client: CriClient
    meter: Meter

    def limit(self, cores: float) -> None:
        """Write a quota into the config file, and wait until the kernel has it."""
        self.criproxy.configure(static(cores))
        self.criproxy.reload()
        wait_until(lambda: self.meter.quota_cores == pytest.approx(cores, abs=1e-4), WAIT_S, f"{cores} cores")

    def pods(self) -> list[str]:
        return [sandbox.id for sandbox in self.client.list_pods()]

    def measure(self, during: Callable[[], object]) -> list[Sample]:
        """The box's samples from a moment before that to a moment after it."""
        time.sleep(BEFORE_S)
        began_s = time.monotonic() - BEFORE_S
        during()
        ended_s = time.monotonic() + AFTER_S
        time.sleep(AFTER_S)
        return self.meter.between(began_s, ended_s)


def create_pod(client: CriClient) -> Callable[[], None]:
    """A pod that is to use all CPUs, and what starts it."""
    uid = str(uuid.uuid4())
    parent = f"kubepods-besteffort-pod{uid.replace('-', '_')}.slice"
    resources = cri.LinuxContainerResources(cpu_period=100_000, cpu_shares=2, oom_score_adj=1000)
    pod = client.run_pod(uid[:8], uid=uid, labels=LABELS, cgroup_parent=parent, resources=resources)
    container = client.create_container(pod, "main", busy_loops(), image=IMAGE, resources=resources)
    return lambda: client.start(container)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    criproxy = Criproxy(tmp_path_factory.mktemp("criproxy"), CONTAINERD_SOCKET, static(QUOTA))
    criproxy.start()
    with CriClient(criproxy.socket) as client:
        wait_until(client.is_ready, WAIT_S, "the runtime through criproxy", criproxy.log)
        create_pod(client)()  # the box is made with it: only its parent tells whose node this is
        box = Cgroup("/offline")
        wait_until(lambda: box.quota_cores() == pytest.approx(QUOTA, abs=1e-4), WAIT_S, "its quota", criproxy.log)
        with Meter(box) as meter:
            yield Node(criproxy, client, meter)
        client.remove_all_pods()
    criproxy.stop()


@pytest.fixture
def saturated(node: Node) -> Node:
    """With one pod, and the events' quota."""
    if not node.pods():
        create_pod(node.client)()
    node.limit(QUOTA)
    return node


# --- tests ----------------------------------------------------------------------------------------------------------


def test_box_uses_its_quota_through_fifty_changes(saturated: Node, say: Say) -> None:
    wanted = [ROUND[number % len(ROUND)] for number in range(CHANGES)]
    saturated.limit(wanted[-1])
    time.sleep(1)
    began_s = next_s = time.monotonic()
    for cores in wanted:
        saturated.limit(cores)
        next_s += CHANGE_EACH_S
        time.sleep(max(next_s - time.monotonic(), CHANGE_EACH_S / 2))
    samples = saturated.meter.between(began_s, time.monotonic())
    found = Span.of(samples)
    say(f"{CHANGES} changes: {found}")

    assert quotas(samples) == pytest.approx([wanted[-1], *wanted], abs=1e-4)
    assert found.used_s <= (1 + TOLERANCE) * found.granted_s, found
    assert_had_its_quota(found, say)


def qos_update(_: Node) -> None:
    """What kubelet does to its slices each minute."""
    for slice_ in KUBELETS:
        systemctl("set-property", "--runtime", slice_, "CPUWeight=79", "MemoryMax=1G")


def restart_containerd(node: Node) -> None:
    systemctl("restart", "containerd")
    wait_until(node.client.is_ready, WAIT_S, "containerd to be back")


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(lambda _: None, id="nothing"),
        pytest.param(lambda _: systemctl("set-property", "--runtime", BOX, "TasksMax=4000"), id="other-property-set"),
        pytest.param(lambda _: systemctl("daemon-reload"), id="daemon-reload"),
        pytest.param(lambda _: systemctl("daemon-reexec"), id="daemon-reexec"),
        pytest.param(qos_update, id="kubelet-qos-update"),
        pytest.param(lambda node: create_pod(node.client)(), id="further-pod"),
        pytest.param(restart_containerd, id="containerd-restarted"),
    ],
)
def test_box_uses_its_quota_through(
    saturated: Node, event: Callable[[Node], object], request: pytest.FixtureRequest, say: Say
) -> None:
    samples = saturated.measure(lambda: event(saturated))
    found = Span.of(samples)
    say(f"{request.node.callspec.id}: {found}")

    assert quotas(samples) == pytest.approx([QUOTA], abs=1e-4)
    assert found.used_s <= (1 + TOLERANCE) * found.granted_s + PERIOD_S * QUOTA, found
    assert_had_its_quota(found, say)


def test_box_uses_its_quota_until_the_last_pod_leaves_and_from_the_first_one_on(saturated: Node, say: Say) -> None:
    def leave() -> None:
        for pod in saturated.pods():
            saturated.client.stop_and_remove(pod)

    leaving = saturated.measure(leave)
    start = create_pod(saturated.client)  # the pod is in the box with its sandbox
    entering = saturated.measure(start)
    before, after = Span.of(leaving), Span.of(entering)
    busy = Span.of([sample for sample in entering if sample.at_s >= entering[-1].at_s - AFTER_S])
    for words, found in (("last pod leaves", before), ("first pod enters", after), ("first pod, from then on", busy)):
        say(f"{words}: {found}")

    assert quotas([*leaving, *entering]) == pytest.approx([QUOTA], abs=1e-4)
    for found in (before, after, busy):
        assert found.used_s <= (1 + TOLERANCE) * found.granted_s + PERIOD_S * QUOTA, found
    assert_had_its_quota(busy, say)
