"""What the package's removal does to the box: the script itself, between a node of shell and plain directories."""

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from criproxy.cgroup.naming import child_of, directory_of, parse_box
from criproxy.cgroup.resctrl import GROUP
from criproxy.cgroup.systemd.anchor import ANCHOR
from criproxy.daemon.bypass import Bypass

PRERM = Path(__file__).resolve().parents[2] / "packaging" / "deb" / "debian" / "criproxy.prerm"
UID = "0f3c_11"
LIMITS = {
    2: ("cpu.max", "memory.high", "memory.max", "memory.swap.max"),
    1: ("cpu/cpu.cfs_quota_us", "memory/memory.limit_in_bytes", "memory/memory.memsw.limit_in_bytes"),
}
"""What criproxy bounds a box by; on v1, in which hierarchy."""

CRIPROXY = """#!/bin/sh
[ "$1" = status ] || echo "$*" >>{0}/called
[ "$1" != status ] || cat {0}/status 2>/dev/null
[ "$1" != sentry ] || [ ! -e {0}/stays ]
"""
SYSTEMCTL = """#!/bin/sh
cd {0}
case $1 in
list-units) cat units 2>/dev/null ;;
stop) shift; echo "$*" >>stopped ;;
*) echo "$*" >>log ;;
esac
"""


@dataclass(frozen=True)
class Node:
    """A node in a directory of its own: cgroups are plain directories, and systemd notes what it is told."""

    directory: Path
    version: int

    def __post_init__(self) -> None:
        for made in ("bin", "systemd/system", "systemd/system.control", "cgroup"):
            (self.directory / made).mkdir(parents=True)
        for name, text in (("criproxy", CRIPROXY), ("systemctl", SYSTEMCTL), ("deb-systemd-invoke", "#!/bin/sh\n")):
            (self.directory / "bin" / name).write_text(text.format(self.directory))
            (self.directory / "bin" / name).chmod(0o755)
        script = PRERM.read_text()
        for name, place in (
            ("cgroups=/sys/fs/cgroup", "cgroup"),
            ("systemd=/run/systemd", "systemd"),
            ("blocks=/sys/block", "block"),
            ("run=/run/criproxy", "run"),
            ("resctrl=/sys/fs/resctrl", "resctrl"),
        ):
            assert script.count(f"{name}\n") == 1
            script = script.replace(f"{name}\n", f"{name.partition('=')[0]}={self.directory / place}\n")
        (self.directory / "prerm").write_text(script)
        if self.version == 2:
            (self.directory / "cgroup" / "cgroup.controllers").touch()

    def cgroups(self, name: str) -> list[Path]:
        root, path = self.directory / "cgroup", directory_of(name).lstrip("/")
        return [root / path] if self.version == 2 else [root / one / path for one in ("cpu", "memory")]

    def add(self, *names: str, pids: str = "") -> None:
        """Cgroups; of slices systemd knows, and each has a property at run time."""
        for name in names:
            for cgroup in self.cgroups(name):
                cgroup.mkdir(parents=True, exist_ok=True)
                if pids:
                    (cgroup / "cgroup.procs").write_text(pids)
            if not name.startswith("/"):
                with (self.directory / "units").open("a") as units:
                    units.write(f"{name} loaded active active Slice\n")
                self.drop_in(name)

    def drop_in(self, name: str) -> None:
        directory = self.directory / "systemd" / "system.control" / f"{name}.d"
        directory.mkdir()
        (directory / "50-MemoryMax.conf").touch()

    def bound(self, box: str) -> list[Path]:
        """Give the box the files of its limits; returned in the order of LIMITS."""
        root, path = self.directory / "cgroup", directory_of(box).lstrip("/")
        files = [root / Path(limit).parent / path / Path(limit).name for limit in LIMITS[self.version]]
        for file in files:
            file.write_text("7\n")
        return files

    def answer(self, box: str | None) -> None:
        """Have criproxy say where the box is."""
        path = "null" if box is None else f'"{box}"'
        (self.directory / "status").write_text(f'{{"problems":[],"box":{{"path":{path},"drift":0}}}}\n')

    def environment(self) -> Mapping[str, str]:
        return {**os.environ, "PATH": f"{self.directory / 'bin'}:{os.environ['PATH']}"}

    def remove(self) -> str:
        """Run the script as dpkg does; what it says."""
        command = ["sh", str(self.directory / "prerm"), "remove"]
        done = subprocess.run(command, env=self.environment(), capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def told(self, said: str, what: str) -> str:
        """Do what the script advised to do; the line."""
        line = re.search(rf"{what}[^:]*: (.*)", said)
        assert line is not None, said
        subprocess.run(["sh", "-ec", line[1]], env=self.environment(), capture_output=True, timeout=60, check=True)
        return line[1]

    @property
    def stopped(self) -> set[str]:
        file = self.directory / "stopped"
        return set(file.read_text().split()) if file.exists() else set()

    @property
    def drop_ins(self) -> set[str]:
        return {entry.name.removesuffix(".d") for entry in (self.directory / "systemd" / "system.control").iterdir()}


@pytest.fixture(params=[2, 1], ids=["v2", "v1"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Node:
    return Node(tmp_path, request.param)


def slices_of(box: str) -> tuple[str, set[str], set[str]]:
    """Of the box: a pod, kubelet's slices beside it, and the anchors in those."""
    kubelets = parse_box(box).online_parents
    return parse_box(box).pod(f"pod{UID}"), set(kubelets), {child_of(parent, ANCHOR) for parent in kubelets}


def test_kubelet_has_its_runtime_back_and_the_sentry_is_off_before_criproxy_stops(node: Node) -> None:
    """Without criproxy, a sentry would refuse offline pods for good."""
    node.remove()
    assert (node.directory / "called").read_text().splitlines()[:2] == ["detach", "sentry off"]


def test_package_stays_where_the_sentry_can_not_be_switched_off(node: Node) -> None:
    (node.directory / "stays").touch()
    with pytest.raises(AssertionError):
        node.remove()
    assert (node.directory / "called").read_text().splitlines() == ["detach", "sentry off"]


BOXES = pytest.mark.parametrize("box", ["offline.slice", "kubelet-offline.slice", "a-b-offline.slice"])
ANSWERS = pytest.mark.parametrize("answered", [True, False], ids=["answered", "no-answer"])


@BOXES
@ANSWERS
def test_removal_takes_an_empty_box_its_pods_and_the_anchors_alone(node: Node, box: str, answered: bool) -> None:
    pod, kubelets, anchors = slices_of(box)
    node.add(box, pod, *kubelets, *anchors, child_of(min(kubelets), f"pod{UID}"))
    if answered:
        node.answer(box)
    others = node.drop_ins - {box, pod, *anchors}
    assert "clean up" not in node.remove()
    assert node.stopped - {"offline.slice"} == {box, pod, *anchors} - {"offline.slice"}
    assert node.drop_ins == others
    assert [cgroup for cgroup in node.cgroups(box) if cgroup.exists()] == []


@BOXES
@ANSWERS
def test_removal_leaves_a_box_with_pods_as_it_is(node: Node, box: str, answered: bool) -> None:
    pod, kubelets, anchors = slices_of(box)
    empty = parse_box(box).pod("pod77")
    node.add(box, empty, *kubelets, *anchors)
    node.add(pod, pids="4711\n")
    if answered:
        node.answer(box)
    before = node.drop_ins
    assert f"still run in the box, {box}." in node.remove()
    assert node.stopped <= {"offline.slice"} - {box}  # the default box, which is empty where it is not the box
    assert node.drop_ins == before
    assert all(cgroup.exists() for cgroup in node.cgroups(empty))


@pytest.mark.parametrize(
    "stranger",
    [
        "render-offline.slice",
        "myoffline.slice",
        "foo-offline-bar.slice",
        "render-offline-pod1.slice",
        "offline-batch.slice",
        "offline-pod1-nested.slice",
        "criproxy.slice",
        "kubepods-pod1-criproxy.slice",
        "mykubepods-criproxy.slice",
    ],
)
@pytest.mark.parametrize("pids", ["", "4711\n"], ids=["empty", "populated"])
def test_removal_leaves_slices_of_others(node: Node, stranger: str, pids: str) -> None:
    _, kubelets, _ = slices_of("offline.slice")
    node.add("offline.slice", *kubelets, "mykubepods.slice")
    node.add(stranger, pids=pids)
    node.remove()
    assert stranger not in node.stopped
    assert stranger in node.drop_ins


@BOXES
def test_removal_takes_drop_ins_of_slices_that_systemd_has_forgotten(node: Node, box: str) -> None:
    pod, kubelets, anchors = slices_of(box)
    node.add(*kubelets)
    for forgotten in (box, pod, *anchors):
        node.drop_in(forgotten)
    node.remove()
    assert node.drop_ins == kubelets


def test_removal_checks_each_slice_right_before_its_stop(node: Node) -> None:
    pod, *_ = slices_of("offline.slice")
    node.add("offline.slice", pod)
    systemctl = node.directory / "bin" / "systemctl"
    late = f'[ "$*" != {pod} ] || echo 4711 >{node.cgroups("offline.slice")[0]}/cgroup.procs\n'
    systemctl.write_text(systemctl.read_text() + late)
    assert "still run" in node.remove()
    assert node.stopped == {pod}


@pytest.mark.parametrize("answer", ["/offline", "/kubelet/offline", None])
def test_removal_takes_an_empty_path_and_no_other_of_that_name(node: Node, answer: str | None) -> None:
    node.answer(answer)
    box = answer or "/offline"
    node.add(f"{box}/pod{UID}", f"/else{box}")
    node.remove()
    assert [cgroup for cgroup in node.cgroups(box) if cgroup.exists()] == []
    assert all(cgroup.exists() for cgroup in node.cgroups(f"/else{box}"))


@pytest.mark.parametrize("box", ["/offline", "/kubelet/offline"])
def test_removal_tells_how_to_lift_a_path_and_how_to_clean_up(node: Node, box: str) -> None:
    node.answer(box)
    node.add(f"{box}/pod{UID}", pids="4711\n")
    files = node.bound(box)
    said = node.remove()
    line = node.told(said, "to lift them")
    assert {file.read_text() for file in files} == {"max\n" if node.version == 2 else "-1\n"}
    assert node.version == 2 or line.index("memory.memsw.limit_in_bytes") < line.index("memory.limit_in_bytes")
    for file in [*files, *(cgroup / "cgroup.procs" for cgroup in node.cgroups(f"{box}/pod{UID}"))]:
        file.unlink()  # as in a real cgroup, where files are in nobody's way
    node.told(said, "to clean up")
    assert [cgroup for cgroup in node.cgroups(box) if cgroup.exists()] == []


@BOXES
def test_removal_tells_how_to_lift_a_slice_and_how_to_clean_up(node: Node, box: str) -> None:
    pod, kubelets, anchors = slices_of(box)
    node.answer(box)
    node.add(box, *kubelets, *anchors)
    node.add(pod, pids="4711\n")
    files = node.bound(box)
    said = node.remove()
    line = node.told(said, "to lift them")
    lifts = "CPUQuota= MemoryHigh=infinity MemoryMax=infinity MemorySwapMax=infinity"
    assert (node.directory / "log").read_text() == f"set-property --runtime {box} {lifts}\n"
    if node.version == 1:  # systemd does not know of it, and the kernel wants it lifted first
        assert [file.read_text() for file in files] == ["7\n", "7\n", "-1\n"]
        assert line.index("memory.memsw.limit_in_bytes") < line.index("systemctl")
    node.told(said, "to clean up")
    assert node.stopped == {box, *anchors}


def test_removal_takes_the_box_s_group_of_resctrl_away(node: Node) -> None:
    others = node.directory / "resctrl" / "other"
    others.mkdir(parents=True)
    (group := node.directory / "resctrl" / GROUP).mkdir()

    node.remove()

    assert (group.exists(), others.exists()) == (False, True)


@pytest.mark.parametrize("box", ["/offline", "offline.slice"])
@pytest.mark.parametrize("ways", [["to lift them"], ["to clean up"], ["to lift them", "to clean up"]])
def test_removal_leaves_a_box_with_pods_its_group_of_resctrl_and_tells_how_it_goes(
    tmp_path: Path, box: str, ways: list[str]
) -> None:
    node = Node(tmp_path, 2)
    node.answer(box)
    node.add(pod := parse_box(box).pod(f"pod{UID}"), pids="4711\n")
    node.bound(box)
    (group := node.directory / "resctrl" / GROUP).mkdir(parents=True)

    said = node.remove()

    assert group.exists()
    (cgroup,) = node.cgroups(pod)
    (cgroup / "cgroup.procs").unlink()
    for way in ways:
        if way == "to clean up":
            for name in LIMITS[2]:
                next(iter(node.cgroups(box))).joinpath(name).unlink()
        node.told(said, way)
    assert not group.exists()


@pytest.mark.parametrize("box", ["/offline", "offline.slice"])
def test_removal_tells_how_to_lift_what_bounds_a_disk(tmp_path: Path, box: str) -> None:
    node = Node(tmp_path, 2)
    node.answer(box)
    node.add(box)
    node.add(parse_box(box).pod(f"pod{UID}"), pids="4711\n")
    node.bound(box)
    (limits,) = (cgroup / "io.max" for cgroup in node.cgroups(box))
    limits.write_text("8:0 rbps=max wbps=1048576 riops=max wiops=max\n")

    node.told(node.remove(), "to lift them")

    assert limits.read_text() == "8:0 rbps=max wbps=max riops=max wiops=max\n"


def test_removal_tells_how_to_lift_what_bounds_a_disk_of_a_file_whose_size_is_told_as_0(tmp_path: Path) -> None:
    """As that of any file of the kernel's."""
    node = Node(tmp_path, 2)
    node.answer("/offline")
    node.add(parse_box("/offline").pod(f"pod{UID}"), pids="4711\n")
    (limits,) = (cgroup / "io.max" for cgroup in node.cgroups("/offline"))
    limits.symlink_to("/proc/version")

    assert f">{limits}" in node.remove()


@pytest.mark.parametrize(
    ("record", "listen"),
    [
        pytest.param("run/criproxy.disks", None, id="default"),
        pytest.param("run/criproxy.disks", "run/criproxy.sock", id="told"),
        pytest.param("run/run/crio/crio.disks", "run/run/crio/crio.sock", id="cri-o"),
        pytest.param("else where/proxy.disks", "else where/proxy.sock", id="elsewhere"),
    ],
)
def test_removal_puts_back_what_criproxy_has_changed_of_disks(node: Node, record: str, listen: str | None) -> None:
    qos, scheduler = node.directory / "cgroup" / "io.cost.qos", node.directory / "block" / "sda" / "queue" / "scheduler"
    scheduler.parent.mkdir(parents=True)
    scheduler.write_text("bfq")
    qos.write_text("8:0 enable=1")
    changed = node.directory / record
    changed.parent.mkdir(parents=True)
    if listen is not None:
        (node.directory / "run").mkdir(exist_ok=True)
        Bypass((node.directory / "run",), node.directory / listen, Path("/run/r.sock"), None).tell()
    changed.write_text("io.cost 8:0 enable=0\nbfq sda mq-deadline\nbfq gone none\nnonsense\n")

    node.remove()

    assert (qos.read_text(), scheduler.read_text()) == ("8:0 enable=0\n", "mq-deadline\n")
    assert not changed.exists()
