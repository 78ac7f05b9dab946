"""A reload of systemd, as attach and detach do it, leaves memory.oom.group of running containers as runc has set it.

Offline pods' slices have it from criproxy, which puts it back whatever systemd makes of it.
"""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from criproxy.cgroup.driver import PodLimits
from criproxy.commands.attach.host import Host, Machine
from integration.lab.cgroups import version
from integration.lab.process import Process
from integration.systemd.slice_lab import BOX, Box, systemctl, text

pytestmark = pytest.mark.skipif(version() == 1, reason="cgroup v1 has no memory.oom.group")

SLICE = "kubepods-besteffort-podoomgroup.slice"
RESETS = 262
"""The first systemd that was seen to reset it."""


@pytest.fixture
def oom_group(tmp_path: Path) -> Iterator[Path]:
    """Of a scope as runc makes it, with the value that kubelet asks for."""
    scope = f"cri-containerd-{uuid.uuid4().hex[:12]}.scope"
    command = ["systemd-run", "--scope", f"--unit={scope}", f"--slice={SLICE}", "-p", "Delegate=yes", "sleep", "3600"]
    process = Process("container", command, tmp_path / "log")
    file = Path("/sys/fs/cgroup/kubepods.slice/kubepods-besteffort.slice", SLICE, scope, "memory.oom.group")
    process.wait_until(file.exists, 60, "the scope")
    file.write_text("1")
    yield file
    systemctl("stop", scope)


def test_reload_of_ours_leaves_it(oom_group: Path) -> None:
    node = Host(Machine())
    for _ in range(3):
        node.reload()
        assert oom_group.read_text() == "1\n"


def test_reload_of_anybody_else_resets_it_from_that_version_on(oom_group: Path, say: Callable[[str], object]) -> None:
    """Debian 12's 252 was seen to do so, too (2026-11-24)."""
    systemctl("daemon-reload")
    number = int(systemctl("--version").split()[1].partition("~")[0])
    left = oom_group.read_text()
    say(f"systemd {number} has left {left.strip()}")
    assert left == "0\n" or number < RESETS


def test_slice_of_an_offline_pod_has_it_and_the_box_has_not(say: Callable[[str], object]) -> None:
    box = Box()
    try:
        box.tick()
        pod = box.pod()
        seen = {"made": text(pod, "memory.oom.group")}
        box.run(pod)
        seen["entered"] = text(pod, "memory.oom.group")
        systemctl("daemon-reload")
        box.pod()  # systemd 257 resets what it knows at the next start of any unit
        seen["reloaded"] = text(pod, "memory.oom.group")
        box.driver.ensure_pod(pod, PodLimits())
        seen["looked at again"] = text(pod, "memory.oom.group")
        say(f"memory.oom.group of an offline pod's slice: {seen}")

        assert (seen["made"], seen["looked at again"]) == ("1", "1")
        assert text(BOX, "memory.oom.group") == "0"
    finally:
        box.close()
