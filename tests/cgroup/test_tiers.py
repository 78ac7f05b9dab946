"""Two tiers by weights: a mid pod goes before a low one, and each tier keeps its proportions."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.cgroup.box import Box, BoxSettings
from criproxy.cgroup.driver import PodLimits
from criproxy.cgroup.kernel_files import weight_of
from criproxy.cgroup.naming import parse_kubelet_parent
from criproxy.cgroup.tiers import tiered
from criproxy.model import UNLIMITED
from tests.fakes.clock import FakeClock
from tests.fakes.driver import FakeDriver

VERSIONS = st.sampled_from([1, 2])
FLOOR = {"cpu": 0.1, "memory": 64 << 20}
A, B = parse_kubelet_parent("/kubepods/besteffort/poda"), parse_kubelet_parent("/kubepods/burstable/podb")


@pytest.mark.parametrize(
    ("version", "weight", "mid", "low"),
    [
        pytest.param(1, None, 1024, 2, id="v1-asks-for-nothing"),
        pytest.param(1, 2, 1024, 2, id="v1-best-effort"),
        pytest.param(1, 1024, 8192, 128, id="v1-a-cpu"),
        pytest.param(1, 262144, 262144, 32768, id="v1-most"),
        pytest.param(2, None, 100, 1, id="v2-asks-for-nothing"),
        pytest.param(2, 39, 312, 4, id="v2-a-cpu"),
        pytest.param(2, 10000, 10000, 1250, id="v2-most"),
    ],
)
def test_weight_of_each_tier(version: int, weight: int | None, mid: int, low: int) -> None:
    assert (tiered(weight, True, version), tiered(weight, False, version)) == (mid, low)


@given(VERSIONS, st.integers(2, 32 * 1024))
def test_of_two_that_ask_for_as_much_mid_has_many_times_the_weight(version: int, shares: int) -> None:
    weight = weight_of(shares, version)

    assert tiered(weight, True, version) >= 64 * tiered(weight, False, version)


@given(VERSIONS, st.booleans(), st.integers(2, 10000), st.integers(2, 10000))
def test_order_within_a_tier_stays(version: int, mid: bool, one: int, other: int) -> None:
    low, high = sorted((one, other))
    assert tiered(low, mid, version) <= tiered(high, mid, version)


# --- in the box ------------------------------------------------------------------------------------------------------


def run(*steps: Callable[[], Awaitable[object]]) -> None:
    async def all_steps() -> None:
        for step in steps:
            await step()

    asyncio.run(all_steps())


def box_of(driver: FakeDriver, *, tiers: bool) -> Box:
    return Box(driver, BoxSettings(FLOOR, tiers=tiers), lambda: UNLIMITED, FakeClock())


def test_pods_have_the_weight_and_the_protection_of_their_tier_from_the_start_on() -> None:
    driver = FakeDriver()
    driver.kubelets["/kubepods/burstable/podb"] = PodLimits(cpu_weight=39)
    box = box_of(driver, tiers=True)

    run(lambda: box.pods.admit(A, 0, 1024, mid=True), lambda: box.pods.admit(B, 0))

    pods = driver.pods_in["/offline"]
    assert pods["poda"] == PodLimits(cpu_weight=312, protected=True)
    assert pods["podb"] == PodLimits(cpu_weight=4)


def test_tiers_come_and_go_with_the_setting() -> None:
    driver = FakeDriver()
    for path in ("/kubepods/besteffort/poda", "/kubepods/burstable/podb"):
        driver.kubelets[path] = PodLimits(cpu_weight=39)
    box = box_of(driver, tiers=False)
    held: list[tuple[int | None, bool]] = []

    async def carried() -> None:
        await box.pods.carry((A, B))
        held.extend((one.cpu_weight, one.protected) for _, one in sorted(driver.pods_in["/offline"].items()))

    run(lambda: box.pods.admit(A, 0, mid=True), lambda: box.pods.admit(B, 0), carried)
    for tiers in (True, False):
        box.configure(BoxSettings(FLOOR, tiers=tiers))
        run(carried)

    as_now = [(39, False), (39, False)]
    assert held == [*as_now, (312, True), (4, False), *as_now]


def test_protection_that_kubelet_has_given_is_not_carried_into_the_box() -> None:
    """It would hold against other offline pods, which was nobody's wish."""
    driver = FakeDriver()
    driver.kubelets["/kubepods/burstable/podb"] = PodLimits(cpu_weight=39, protected=True)
    box = box_of(driver, tiers=False)

    run(lambda: box.pods.admit(B, 0))

    assert driver.pods_in["/offline"]["podb"] == PodLimits(cpu_weight=39)


def test_tier_is_known_again_after_a_restart() -> None:
    driver = FakeDriver()
    driver.kubelets["/kubepods/besteffort/poda"] = PodLimits(cpu_weight=1)
    first = box_of(driver, tiers=True)
    run(lambda: first.pods.admit(A, 0, mid=True))
    second = box_of(driver, tiers=True)
    second.pods.know_asked({"poda": 0}, ["poda"])

    run(lambda: second.adopt(A.box), lambda: second.pods.carry((A,)))

    assert driver.pods_in["/offline"]["poda"] == PodLimits(cpu_weight=100, protected=True)
