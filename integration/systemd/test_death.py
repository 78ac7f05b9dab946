"""What a node does to criproxy, under a steady load of calls: they go on, the box stays bounded, nothing piles up."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from integration.lab.client import Container, CriClient
from integration.lab.criproxy import Config
from integration.lab.process import wait_until
from integration.systemd import pods, service
from integration.systemd.calls import Load
from integration.systemd.service import FORWARDER, LISTEN, RUN, RUNTIME, systemctl

AFTER_S = 60
"""Python starts 20 times as slowly here, and a restart is not to open the bypass."""

CONFIG: Config = {**pods.STATIC, "proxy": {"bypass_after_s": AFTER_S}}
STATE = Path("/var/lib/criproxy")
SET_PROPERTIES = Path("/run/systemd/system.control/criproxy.service.d")
JOURNAL_CHARACTERS = 10_000
"""Of what criproxy logged, for whoever reads of a failure."""
MOST_FILES = 8
"""In /run/criproxy: the symlink and its socket, four of the bypass, and one of each that is just being replaced."""


@pytest.fixture(scope="module")
def pod() -> Iterator[Container]:
    """A busy offline pod, in a box that is bounded."""
    service.install(CONFIG)
    service.fresh()
    service.start()
    with CriClient(LISTEN) as client:
        yield pods.run_offline(client, "busy", busy=True)


@pytest.fixture
def load(pod: Container) -> Iterator[Load]:
    """Calls to a criproxy that is well; whatever the test did, it must be well again at the end."""
    (RUN / "bypass.crashes").unlink(missing_ok=True)
    if not service.is_active("criproxy.service"):
        service.start()
    try:
        with Load(LISTEN) as calls:
            calls.wait_for("criproxy", time.monotonic())
            yield calls
            service.drop_in("")
            if FORWARDER.exists() or not service.is_active("criproxy.service"):
                systemctl("restart", "criproxy.service")
            calls.wait_for("criproxy", time.monotonic())
            assert_well(pod)
    finally:
        print(service.journal()[-JOURNAL_CHARACTERS:])


def assert_well(pod: Container) -> None:
    """Limits are held, and put back; the pod goes on; nothing has piled up."""
    pods.wait_bounded()
    pods.lift_quota()
    pods.wait_bounded()
    with CriClient(RUNTIME) as client:
        assert pods.is_in_box(client, pod)
    pid = service.main_pid()
    assert len(list(Path(f"/proc/{pid}/fd").iterdir())) < 64
    procs = Path(
        f"/sys/fs/cgroup/{'systemd' if pods.V1 else ''}{service.show('criproxy.service', 'ControlGroup')}/cgroup.procs"
    )
    wait_until(lambda: procs.read_text().split() == [str(pid)], 60, "the service to be one process")
    names = sorted(entry.name for entry in RUN.iterdir())
    assert len(names) <= MOST_FILES, names
    assert not [name for name in names if name.endswith("~")]


def assert_killed_one_is_replaced(load: Load) -> None:
    """By another, which answers and puts the limits back."""
    pid, killed_s = service.main_pid(), time.monotonic()
    os.kill(pid, signal.SIGKILL)
    load.wait_for("criproxy", killed_s + 0.5)
    service.wait_restarted(pid)
    pods.lift_quota()
    pods.wait_bounded()


def assert_bounded_while(seconds: float) -> None:
    """The kernel's limits hold, whether criproxy is there or not."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        assert pods.is_bounded()
        time.sleep(0.2)


def test_kill_costs_a_restart(load: Load) -> None:
    for _ in range(3):
        pid, killed_s = service.main_pid(), time.monotonic()
        os.kill(pid, signal.SIGKILL)
        load.wait_for("criproxy", killed_s + 0.5)
        service.wait_restarted(pid)
        assert pods.is_bounded()
    assert {answer.by for answer in load.answers} <= {"criproxy", "nobody"}


def test_hang_is_ended_by_the_watchdog(load: Load) -> None:
    service.drop_in("WatchdogSec=8")
    systemctl("restart", "criproxy.service")
    load.wait_for("criproxy", time.monotonic())
    pid, hung_s = service.main_pid(), time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    assert_bounded_while(5)
    service.wait_restarted(pid)
    load.wait_for("criproxy", time.monotonic())
    assert time.monotonic() - hung_s < 40
    assert "watchdog" in service.journal("criproxy.service").lower()


@contextmanager
def small(directory: Path, options: str) -> Iterator[None]:
    """A file system of its own, of 64 KiB, at the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=755", "criproxy-test", directory], check=True)
    try:
        if options:
            subprocess.run(["mount", "-o", f"remount,{options}", directory], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


def fill(directory: Path) -> None:
    with pytest.raises(OSError, match="No space left"), (directory / "fill").open("ab") as file:
        while True:
            file.write(b"\0" * 4096)
            file.flush()


def test_full_disks_cost_no_call(load: Load) -> None:
    systemctl("stop", "criproxy.service")
    service.fresh()
    with small(STATE, ""), small(RUN, ""):
        fill(STATE)
        fill(RUN)
        service.start()
        pid, killed_s = service.main_pid(), time.monotonic()
        load.wait_for("criproxy", killed_s)
        os.kill(pid, signal.SIGKILL)
        load.wait_for("criproxy", killed_s + 0.5)
        pods.wait_bounded()
        systemctl("stop", "criproxy.service")
        load.wait_for("runtime", time.monotonic())
        systemctl("start", "criproxy.service")
        load.wait_for("criproxy", time.monotonic())
        systemctl("stop", "criproxy.service")
        service.fresh()


@contextmanager
def full_root() -> Iterator[None]:
    """The node's own disk, with /var and all, to the last block."""
    directory = Path("/var/criproxy-test")
    directory.mkdir()
    try:
        free = os.statvfs(directory)
        subprocess.run(["fallocate", "--length", str(free.f_bavail * free.f_frsize), directory / "fill"], check=False)
        fill(directory)
        yield
    finally:
        shutil.rmtree(directory)


@contextmanager
def read_only_var() -> Iterator[None]:
    """All that is opened from here on below /var, by whomever, is read only."""
    subprocess.run(["mount", "--bind", "/var", "/var"], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", "/var"], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", "/var"], check=True)


@pytest.mark.parametrize("taken", [full_root, read_only_var])
def test_disk_that_takes_nothing_costs_no_call(load: Load, taken: Callable[[], AbstractContextManager[None]]) -> None:
    with taken():
        with pytest.raises(OSError, match=r"No space left|Read-only file system"):
            (STATE / "test").write_bytes(bytes(4096))
        assert_killed_one_is_replaced(load)
        systemctl("restart", "criproxy.service")
        load.wait_for("criproxy", time.monotonic())


def test_read_only_state_costs_no_call(load: Load) -> None:
    systemctl("stop", "criproxy.service")
    with small(STATE, "ro"):
        began_s = time.monotonic()
        systemctl("start", "criproxy.service")
        load.wait_for("criproxy", began_s)
        pid, killed_s = service.main_pid(), time.monotonic()
        os.kill(pid, signal.SIGKILL)
        load.wait_for("criproxy", killed_s + 0.5)
        pods.wait_bounded()
        systemctl("stop", "criproxy.service")


@pytest.mark.parametrize("days", [pytest.param(1, id="forward"), pytest.param(-1, id="back")])
def test_clock_that_jumps_changes_nothing(load: Load, days: int) -> None:
    pid, began_s = service.main_pid(), time.monotonic()
    offset_s = time.time() - began_s
    time.clock_settime(time.CLOCK_REALTIME, offset_s + began_s + days * 86400)
    try:
        assert_bounded_while(5)
        pods.lift_quota()
        pods.wait_bounded()  # ticks go on
    finally:
        time.clock_settime(time.CLOCK_REALTIME, offset_s + time.monotonic())
    pods.wait_bounded()
    assert service.main_pid() == pid
    assert {answer.by for answer in load.between(began_s, time.monotonic())} == {"criproxy"}


@pytest.mark.skipif(pods.V1, reason="cgroup v1 refuses a limit below what is in use")
def test_memory_taken_from_a_running_criproxy_ends_in_the_bypass(load: Load) -> None:
    pid, taken_s = service.main_pid(), time.monotonic()
    limits = ("MemoryMin=0", "MemoryLow=0", "MemorySwapMax=0", "MemoryMax=8M")
    systemctl("set-property", "--runtime", "criproxy.service", *limits)
    try:
        wait_until(lambda: service.main_pid() != pid, 60, "the kernel to kill it")
        load.wait_for("runtime", taken_s)
        assert_bounded_while(5)
    finally:
        shutil.rmtree(SET_PROPERTIES)
        service.drop_in("")
    given_s = time.monotonic()
    systemctl("restart", "criproxy.service")
    load.wait_for("criproxy", given_s)


def test_no_memory_left_ends_in_the_bypass_and_not_in_a_storm(load: Load) -> None:
    service.drop_in("MemoryMin=0\nMemoryLow=0\nMemoryMax=16M\nMemorySwapMax=0")
    starved_s = time.monotonic()
    systemctl("restart", "--no-block", "criproxy.service")
    load.wait_for("runtime", starved_s)
    assert_bounded_while(10)
    restarts = int(service.show("criproxy.service", "NRestarts"))
    assert restarts <= 6, "the switch holds starts back in a crash loop"
    service.drop_in("")
    systemctl("restart", "criproxy.service")
    load.wait_for("criproxy", time.monotonic())


def test_runtime_that_goes_and_comes_back(load: Load) -> None:
    pid = service.main_pid()
    systemctl("stop", "containerd.service")
    try:
        assert_bounded_while(3)
    finally:
        systemctl("start", "containerd.service")
    with CriClient(LISTEN) as client:
        wait_until(client.is_ready, 60, "calls to pass again", poll_s=0.2)
    assert service.main_pid() == pid


def test_without_dbus_the_box_stays_bounded(load: Load) -> None:
    systemctl("stop", "dbus.socket", "dbus.service")
    try:
        assert not service.is_active("dbus.service")
        assert_killed_one_is_replaced(load)
    finally:
        systemctl("start", "dbus.socket", "dbus.service")
