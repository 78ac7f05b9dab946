"""The box as a slice, on the systemd of this node: what is set holds, or is back after one tick, whatever happens."""

import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from criproxy.cgroup.driver import CgroupError, PodLimits
from criproxy.cgroup.kernel_driver import processes_in
from criproxy.cgroup.systemd.units import SystemdUnits
from criproxy.model import CPU, UNLIMITED
from integration.lab.process import wait_until
from integration.systemd.slice_lab import BOX, LIMITS, V1, Box, directory, held, new_driver, shown, systemctl, text

MIB = 1 << 20
KUBEPODS = "kubepods.slice"


@pytest.fixture
def box() -> Iterator[Box]:
    lab = Box()
    lab.tick()
    yield lab
    lab.close()


@pytest.fixture
def busy(box: Box) -> Box:
    """With one pod in it."""
    box.run(box.pod())
    box.tick()
    box.drift = 0
    return box


def test_box_is_bounded_and_lowest_before_its_first_pod(box: Box) -> None:
    if V1:
        expected = {"cpu.cfs_quota_us": "30000", "cpu.cfs_period_us": "100000", "cpu.idle": "1"}
        expected |= {"memory.limit_in_bytes": str(200 * MIB), "memory.memsw.limit_in_bytes": str(200 * MIB)}
    else:
        expected = {"cpu.max": "30000 100000", "cpu.idle": "1", "io.weight": "default 1", "memory.swap.max": "0"}
        expected |= {"memory.high": str(200 * MIB), "memory.max": str(200 * MIB)}
    assert held(BOX) == expected
    assert (shown(BOX, "ActiveState"), shown(BOX, "MemoryMax")) == ("active", str(200 * MIB))
    assert (shown(BOX, "CPUQuotaPerSecUSec"), shown(BOX, "IOWeight")) == ("300ms", "1")


def test_box_is_in_every_controller(box: Box) -> None:
    if V1:
        mounted = {path for path in Path("/sys/fs/cgroup").iterdir() if path.is_dir()}
        assert {path for path in mounted if not (path / BOX).is_dir()} == set()
        assert (Path("/sys/fs/cgroup/cpuset") / BOX / "cpuset.cpus").read_text().strip() != ""
    else:
        scope = box.run(box.pod())
        assert {"cpu", "cpuset", "io", "memory", "pids"} <= set(text(BOX, "cgroup.subtree_control").split())
        box.end(scope)


# --- events ----------------------------------------------------------------------------------------------------------


def first_pod_in(box: Box) -> None:
    box.run(box.pod())


def last_pod_out(box: Box) -> None:
    pod = box.pod()
    box.end(box.run(pod))
    assert box.driver.remove_pod(pod)


def qos_update(_: Box) -> None:
    """What kubelet does to its slices each minute."""
    systemctl("set-property", "--runtime", KUBEPODS, "CPUWeight=79", "MemoryMax=1G")


def reloaded(_: object) -> None:
    """With the start of a unit after it, as systemd 257 resets a slice only then."""
    systemctl("daemon-reload")
    subprocess.run(["systemd-run", "--quiet", "--wait", "true"], check=True, timeout=60)


def reexecuted(_: object) -> None:
    systemctl("daemon-reexec")
    subprocess.run(["systemd-run", "--quiet", "--wait", "true"], check=True, timeout=60)


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(first_pod_in, id="first-pod-in"),
        pytest.param(last_pod_out, id="last-pod-out"),
        pytest.param(reloaded, id="daemon-reload"),
        pytest.param(reexecuted, id="daemon-reexec"),
        pytest.param(qos_update, id="kubelet-qos-update"),
        pytest.param(lambda _: systemctl("restart", "containerd"), id="containerd-restarted"),
        pytest.param(lambda _: systemctl("set-property", "--runtime", BOX, "TasksMax=4000"), id="other-property-set"),
    ],
)
def test_limits_hold_through(box: Box, event: Callable[[Box], object]) -> None:
    box.limits = {"cpu": 0.25, "memory": 160 * MIB}
    box.tick()
    before = held(BOX)

    event(box)
    time.sleep(1)  # systemd applies some of it later
    if V1:  # it knows a first quota only there, and may have put that back
        box.tick()

    assert (held(BOX), box.tick()) == (before, 0)


@pytest.mark.parametrize("event", [reloaded, reexecuted])
def test_limits_hold_with_a_pod_through(busy: Box, event: Callable[[Box], object]) -> None:
    busy.limits = {"cpu": 0.2, "memory": 120 * MIB}
    busy.tick()
    before = held(BOX)

    event(busy)
    time.sleep(1)
    busy.tick()

    assert held(BOX) == before


@pytest.mark.parametrize(
    "properties",
    [
        pytest.param(("CPUQuota=150%",), id="quota"),
        pytest.param(("CPUQuota=",), id="no-quota"),
        pytest.param(("MemoryMax=1G", "MemoryHigh=1G"), id="memory-up"),
        pytest.param(("MemoryMax=100M",), id="memory-down"),
        pytest.param(("CPUQuota=90%", "MemoryMax=infinity", "CPUWeight=500"), id="all"),
    ],
)
def test_what_somebody_else_sets_is_put_back_by_one_tick_and_counted_once(
    busy: Box, properties: tuple[str, ...]
) -> None:
    before = held(BOX)

    systemctl("set-property", "--runtime", BOX, *properties)
    ticks = [busy.tick(), busy.tick()]
    after = held(BOX)
    systemctl("daemon-reload")
    busy.tick()

    assert (after, held(BOX)) == (before, before)
    # On v1 the kernel takes no memory limit above that with swap, which systemd does not know.
    assert ticks[0] > 0 or (V1 and "MemoryMax=1G" in properties)
    assert ticks[1] == 0


def test_what_somebody_else_sets_for_good_is_put_back_by_one_tick_after_each_reload(busy: Box) -> None:
    """Where the slice has a unit file, it lies in /etc, and each reload takes it rather than ours in /run."""
    before = held(BOX)
    systemctl("set-property", BOX, "CPUQuota=150%")
    try:
        for event in (lambda _: None, reloaded, reexecuted, reloaded):
            event(busy)
            busy.tick()
            assert held(BOX) == before
            assert busy.tick() == 0
    finally:
        shutil.rmtree(Path("/etc/systemd/system.control", f"{BOX}.d"), ignore_errors=True)
        reloaded(busy)


def test_slice_that_was_stopped_is_there_and_bounded_after_one_tick(box: Box) -> None:
    before = held(BOX)

    systemctl("stop", BOX)
    gone = not directory(BOX).exists()
    drift = box.tick()

    assert gone
    assert (held(BOX), drift > 0, box.tick()) == (before, True, 0)


def test_squeeze_is_at_once_and_lasts_from_the_next_tick_on(busy: Box) -> None:
    busy.driver.write_limit(BOX, CPU, 0.1)
    squeezed = held(BOX)
    busy.limits = {**LIMITS, "cpu": 0.1}

    assert busy.tick() == 0
    if not V1:  # there systemd is told one quota only
        systemctl("daemon-reload")
    assert held(BOX) == squeezed


def test_lifted_limits_are_lifted_in_systemd_too(busy: Box) -> None:
    busy.limits = {"cpu": UNLIMITED, "memory": UNLIMITED}
    busy.tick()
    systemctl("daemon-reload")
    busy.tick()

    assert busy.driver.read(BOX) == busy.limits
    assert (shown(BOX, "MemoryMax"), text(BOX, "cpu.idle", "cpu")) == ("infinity", "1")
    assert shown(BOX, "CPUQuotaPerSecUSec") == "infinity"


def test_fifty_changes_each_hold_in_the_files_and_in_systemd(busy: Box) -> None:
    for number in range(50):
        busy.limits = {"cpu": 0.1 + 0.01 * (number % 30), "memory": (100 + 10 * (number % 7)) * MIB}
        assert busy.tick() == 0
        assert busy.driver.read(BOX)["cpu"] == pytest.approx(busy.limits["cpu"], rel=0.001)
        assert busy.driver.read(BOX)["memory"] == busy.limits["memory"]
    assert shown(BOX, "MemoryMax") == str(busy.limits["memory"])


def test_change_over_the_bus_costs_less_than_systemctl(busy: Box, say: Callable[[str], object]) -> None:
    units = SystemdUnits(time.monotonic, time.sleep)
    quotas = iter(range(100, 1000))

    def over_the_bus() -> None:
        units.set(BOX, {"CPUQuotaPerSecUSec": next(quotas) * 1000, "MemoryMax": 200 * MIB})

    def in_the_file() -> None:
        busy.driver.write_limit(BOX, CPU, next(quotas) / 1000)

    def by_systemctl() -> None:
        systemctl("set-property", "--runtime", BOX, f"CPUQuota={next(quotas) // 10}%")

    costs = {way.__name__: median_ms(way) for way in (in_the_file, over_the_bus, by_systemctl, busy.tick)}
    say("one change, ms: " + ", ".join(f"{name} {cost:.1f}" for name, cost in costs.items()))

    assert costs["over_the_bus"] < costs["by_systemctl"]


def median_ms(change: Callable[[], object]) -> float:
    took_s = []
    change()
    for _ in range(15):
        started_s = time.perf_counter()
        change()
        took_s.append(time.perf_counter() - started_s)
    return statistics.median(took_s) * 1000


def test_node_without_the_bus_is_served_over_systemds_own_socket(box: Box) -> None:
    systemctl("stop", "dbus.socket", "dbus.service")
    try:
        driver = new_driver()
        driver.ensure(BOX)
        driver.write(BOX, {"cpu": 0.15, "memory": 100 * MIB})
    finally:
        systemctl("start", "dbus.socket")

    assert driver.read(BOX) == {"cpu": 0.15, "memory": 100 * MIB}
    assert shown(BOX, "MemoryMax") == str(100 * MIB)
    assert box.tick() > 0  # the first driver finds its bus again


def test_unit_of_the_package_is_taken_up(box: Box) -> None:
    systemctl("stop", BOX)
    unit = Path("/etc/systemd/system", BOX)
    unit.write_text((Path(__file__).parents[2] / "packaging" / BOX).read_text())
    systemctl("daemon-reload")
    try:
        box.tick()
        taken = shown(BOX, "FragmentPath"), shown(BOX, "ActiveState"), box.driver.read(BOX)
        systemctl("daemon-reload")
        again = box.tick()
    finally:
        systemctl("stop", BOX)
        unit.unlink()
        subprocess.run(["systemctl", "revert", BOX], check=False, capture_output=True)
        systemctl("daemon-reload")
    assert (taken, again) == ((str(unit), "active", LIMITS), 0)


# --- memory ----------------------------------------------------------------------------------------------------------

HOG = "import time; held = bytearray({size}); time.sleep(1000)"


def hog(box: Box, size: int) -> str:
    pod = box.pod()
    box.run(pod, "python3", "-c", HOG.format(size=size))
    current = "memory.usage_in_bytes" if V1 else "memory.current"
    wait_until(lambda: int(text(BOX, current)) > size, 60, "memory to be taken")
    return pod


def test_memory_below_the_usage_kills_nobody_and_systemd_is_told_what_holds(box: Box) -> None:
    box.limits = {"cpu": 1.0, "memory": 300 * MIB}
    box.tick()
    pod = hog(box, 120 * MIB)

    box.limits = {"cpu": 1.0, "memory": 64 * MIB}
    started_s = time.monotonic()
    for _ in range(3):
        box.tick()
        systemctl("daemon-reload")
    took_s = time.monotonic() - started_s

    assert processes_in(box.driver.files, pod)
    size = box.driver.read(BOX)["memory"]
    assert size is not UNLIMITED
    assert 120 * MIB < size < 180 * MIB
    assert int(shown(BOX, "MemoryMax")) >= size
    assert took_s < 60


# --- pods ------------------------------------------------------------------------------------------------------------


def test_pod_has_its_own_limit_and_the_lowest_weight_and_is_resized(box: Box) -> None:
    pod = box.pod(64 * MIB)
    box.run(pod)
    sizes = [box.driver.read(pod)["memory"]]
    for size in (96 * MIB, 48 * MIB):
        box.driver.ensure_pod(pod, PodLimits(memory_bytes=size))
        systemctl("daemon-reload")
        sizes.append(box.driver.read(pod)["memory"])

    assert sizes == [64 * MIB, 96 * MIB, 48 * MIB]
    assert text(pod, "cpu.shares", "cpu") == "2" if V1 else text(pod, "cpu.weight") == "1"


def test_pod_slice_in_use_is_not_removed_and_an_empty_one_leaves_nothing(box: Box) -> None:
    pod = box.pod(64 * MIB)
    scope = box.run(pod)
    box.driver.ensure_pod(pod, PodLimits(memory_bytes=80 * MIB))

    assert not box.driver.remove_pod(pod)
    assert processes_in(box.driver.files, pod)
    box.end(scope)

    assert box.driver.remove_pod(pod)
    assert box.driver.pods(BOX) == ()
    left = subprocess.run(["find", "/sys/fs/cgroup", "-name", f"{pod}*"], check=True, capture_output=True, text=True)
    wait_until(lambda: shown(pod, "LoadState") and not Path(f"/run/systemd/transient/{pod}").exists(), 60, "unit to go")
    assert [line for line in left.stdout.split() if "/sys/fs/cgroup" in line] == []


def test_pod_that_is_no_pod_of_the_box_is_refused(box: Box) -> None:
    for path in ("kubepods-poda.slice", "system.slice", "offline.slice", "offline-poda-b.slice"):
        with pytest.raises(CgroupError):
            box.driver.remove_pod(path)
