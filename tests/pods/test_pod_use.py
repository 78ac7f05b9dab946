"""What offline pods use and ask for, as the status has it; and those that lie about it."""

import asyncio
from typing import Any

import pytest

from criproxy.cgroup import kernel_files
from criproxy.cgroup.box import Box, BoxSettings
from criproxy.cgroup.driver import CgroupError, PodLimits
from criproxy.cgroup.naming import BoxPath, parse_placement
from criproxy.cgroup.pod_use import PodAsks, pod_asks
from criproxy.model import UNLIMITED, Asked, PodRef, Sandbox
from criproxy.pods.pod_use import ASKS_EVERY_S, AT_ONCE, CPU_SHARE, PodUseWatch
from tests.fakes.bench import PartBench
from tests.fakes.driver import FakeDriver
from tests.fakes.part import round_of
from tests.fakes.pods import FakeInventory

BOX = "/offline"
LOOK_S = 5.0
MIB = 1 << 20


class Bench(PartBench):
    def __init__(self, version: int = 2, *, tiers: bool = False) -> None:
        super().__init__()
        self.driver = FakeDriver()
        self.driver.version = version
        settings = BoxSettings({"cpu": 0.1, "memory": MIB}, tiers=tiers)
        self.box = Box(self.driver, settings, lambda: UNLIMITED, self.clock)
        self.inventory = FakeInventory()
        self.part = PodUseWatch(self.shared(inventory=self.inventory), self.box)
        self.round = round_of(self.part, self.log, self.clock)

    def runs(self, uid: str, kubelets: PodLimits | None = None, **fields: Any) -> Sandbox:
        sandbox = Sandbox(uid, PodRef(uid, "batch", uid), f"{BOX}/pod{uid}", **fields)
        self.inventory.placed = (*self.inventory.placed, sandbox)
        if kubelets is not None:
            self.driver.kubelets[f"/kubepods/burstable/pod{uid}"] = kubelets
        return sandbox

    def looks(self, number: int = 2, waits: dict[str, float] | None = None, **cores: float) -> None:
        """Between two looks, pods used so many cores, and waited for so much of the time."""

        async def looks() -> None:
            if self.box.path is None:
                await self.box.adopt(BoxPath(BOX))
            for _ in range(number):
                self.clock.advance(LOOK_S)
                for uid, used in cores.items():
                    path = f"{BOX}/pod{uid}"
                    self.driver.used_s[path] = self.driver.used_s.get(path, 0.0) + LOOK_S * used
                    self.driver.memory_bytes[path] = 7 * MIB
                for uid, ratio in (waits or {}).items():
                    path = f"{BOX}/pod{uid}"
                    self.driver.waited_s[path] = self.driver.waited_s.get(path, 0.0) + LOOK_S * ratio
                await self.round.look(self.part)
                assert not self.part.failure

        asyncio.run(looks())

    def told(self) -> list[str]:
        return [name for name in self.log.names() if name.startswith("pod_asks")]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_status_says_of_each_pod_what_it_uses(bench: Bench) -> None:
    job = bench.runs("a", PodLimits(cpu_weight=79, memory_bytes=64 * MIB), notice_s=30)
    bench.inventory.created = {"a": bench.clock.wall - 3600.0}
    bench.looks(waits={"a": 0.25}, a=1.5)

    shown = dict(bench.part.of_pod(job))
    assert shown.pop("cpu_asked_cores") == pytest.approx(2.0, abs=0.03)
    assert shown == {
        "cpu_cores": pytest.approx(1.5),
        "cpu_waiting_ratio": pytest.approx(0.25),
        "memory_bytes": 7 * MIB,
        "memory_asked_bytes": 64 * MIB,
        "age_s": 3600.0 + 2 * LOOK_S,
        "tier": "",
        "notice_s": 30,
    }


def test_time_that_the_machine_was_suspended_counts_for_no_size(bench: Bench) -> None:
    bench.runs("a", PodLimits(cpu_weight=39))
    bench.looks(120, a=6.0)
    bench.clock.suspend(7200.0)
    bench.looks(120, a=6.0)
    assert (bench.part.of_pod(bench.inventory.placed[0])["cpu_cores"], bench.told()) == (pytest.approx(6.0), [])


def test_use_is_not_known_before_the_second_look(bench: Bench) -> None:
    job = bench.runs("a")
    assert set(bench.part.of_pod(job).values()) == {None, "", 0}
    bench.looks(1, a=1.0)
    shown = bench.part.of_pod(job)
    assert (shown["cpu_cores"], shown["cpu_waiting_ratio"], shown["memory_bytes"]) == (None, None, 7 * MIB)


def test_age_counts_from_the_first_look_until_the_runtime_says_when_the_pod_began(bench: Bench) -> None:
    job = bench.runs("a")
    bench.looks(3, a=1.0)
    assert bench.part.of_pod(job)["age_s"] == 2 * LOOK_S


@pytest.mark.parametrize(
    ("kubelets", "fields", "asks"),
    [
        pytest.param(PodLimits(cpu_weight=1), {}, PodAsks(), id="nothing"),
        pytest.param(None, {}, PodAsks(), id="kubelet-has-no-cgroup"),
        pytest.param(
            PodLimits(cpu_weight=1),
            {"cpu_shares": 3072, "containers": {"main": Asked(3072, 5 * MIB)}},
            PodAsks(3.0, 5 * MIB),
            id="annotations",
        ),
        pytest.param(PodLimits(cpu_weight=1), {"cpu_shares": 2}, PodAsks(), id="nothing-in-annotations"),
    ],
)
def test_what_a_pod_asks_for(bench: Bench, kubelets: PodLimits | None, fields: dict[str, Any], asks: PodAsks) -> None:
    job = bench.runs("a", kubelets, **fields)
    bench.looks(1)
    shown = bench.part.of_pod(job)
    assert PodAsks(shown["cpu_asked_cores"], shown["memory_asked_bytes"]) == asks


@pytest.mark.parametrize(
    ("version", "weight", "cores"),
    [(1, 512, 0.5), (1, 2, None), (2, 1, None), (2, 39, 1.0), (2, 313, 8.0), (2, None, None)],
)
def test_request_is_read_of_the_weight_that_kubelet_made_of_it(
    version: int, weight: int | None, cores: float | None
) -> None:
    driver, place = FakeDriver(), parse_placement(f"{BOX}/poda")
    driver.version = version
    driver.kubelets["/kubepods/burstable/poda"] = PodLimits(cpu_weight=weight)
    found = pod_asks(driver, [place])[place.in_box].cores
    assert found is None if cores is None else found == pytest.approx(cores, abs=0.03)


def test_resized_pod_asks_for_what_kubelet_has_set_since(bench: Bench) -> None:
    job = bench.runs("a", PodLimits(cpu_weight=39))
    bench.looks(1)
    bench.driver.kubelets["/kubepods/burstable/poda"] = PodLimits(cpu_weight=79)
    bench.looks(round(ASKS_EVERY_S / LOOK_S))
    assert bench.part.of_pod(job)["cpu_asked_cores"] == pytest.approx(2.0, abs=0.03)


def test_tier_is_shown_where_there_are_tiers() -> None:
    bench = Bench(tiers=True)
    mid, low = bench.runs("a", mid=True), bench.runs("b")
    bench.looks(1)
    assert (bench.part.of_pod(mid)["tier"], bench.part.of_pod(low)["tier"]) == ("mid", "low")


# --- lies ------------------------------------------------------------------------------------------------------------


def test_pod_that_uses_more_than_it_asks_for_is_told_of_once(bench: Bench) -> None:
    bench.runs("a", cpu_shares=1024)
    bench.runs("b", cpu_shares=1024)
    bench.looks(800, a=3.5, b=1.0)
    assert bench.told() == ["pod_asks_for_too_little"]
    assert list(bench.part.rows()) == [
        (
            "sizes",
            "1 offline pods have not used what they ask for, for an hour",
            "batch/a: of CPU, it uses more than 3 x what it asked for: 3.50 cores of 1.00 cores",
        )
    ]
    assert bench.part.count() == {"too_small": 1, "too_large": 0}
    assert [one.name for one in bench.part.section()["missized"]] == ["a"]

    bench.looks(70, a=1.0, b=1.0)
    assert list(bench.part.rows()) == []
    bench.looks(800, a=3.5, b=1.0)
    assert bench.told() == ["pod_asks_for_too_little"]


def test_each_direction_is_told_of(bench: Bench) -> None:
    bench.runs("a", cpu_shares=1024)
    bench.looks(800, a=3.5)
    bench.looks(800, a=0.1)
    assert bench.told() == ["pod_asks_for_too_little", "pod_asks_for_too_much"]
    assert bench.part.count() == {"too_small": 0, "too_large": 1}


def test_pod_that_has_gone_lies_no_more(bench: Bench) -> None:
    bench.runs("a", cpu_shares=1024)
    bench.looks(800, a=3.5)
    bench.inventory.ended = {"a"}
    bench.looks(1)
    assert (bench.part.lies, bench.part.uses) == ((), {})


# --- what it costs ---------------------------------------------------------------------------------------------------


def test_pods_are_read_in_pieces_and_the_next_pass_waits_as_long_as_this_one_cost(bench: Bench) -> None:
    for number in range(2 * AT_ONCE + 1):
        bench.runs(f"p{number}")
    jobs: list[str] = []
    files, reads = bench.driver.files, bench.box.reads
    read = files.read

    def counted(row: Any, path: str) -> Any:
        bench.clock.cpu_s += 0.01 * (row is kernel_files.MEMORY_USAGE)
        return read(row, path)

    async def seen(what: str, job: Any) -> Any:
        jobs.append(what)
        return await reads(what, job)

    files.read = counted
    bench.box.reads = seen  # type: ignore[method-assign]
    bench.looks(1)
    assert len(jobs) == 2 * 3
    assert bench.part.pause_s == pytest.approx(0.01 * (2 * AT_ONCE + 1) / CPU_SHARE)


def test_without_pods_nothing_is_read(bench: Bench) -> None:
    bench.looks(1)
    bench.driver.files.read = None
    bench.looks(3)
    assert bench.part.pause_s == LOOK_S


def test_kernel_that_does_not_answer_is_a_failure_of_the_look(bench: Bench) -> None:
    bench.runs("a")
    bench.looks(1)

    def fails(row: Any, path: str) -> Any:
        raise CgroupError("cannot read cpu.stat: EIO")

    bench.driver.files.read = fails
    asyncio.run(bench.round.look(bench.part))
    assert bench.part.failure == "cannot read cpu.stat: EIO"
