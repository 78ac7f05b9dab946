"""What hostPath volumes lead to, in scripted mounts and in a folder of links."""

import asyncio
import errno
import os
import posixpath
import selectors
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from criproxy.hooks.hardening import Hardening
from criproxy.model import AdmissionError, HostMount
from criproxy.pods.host_paths import HostPaths, MountPoint, MountTable, NodePaths, names_of, parse_mount_table
from criproxy.vocabulary.unboundable import WRITABLE_HOST_PATHS
from tests.fakes.waiting import LONG_S, POLL_S, until

KUBELET = "/var/lib/kubelet"
OWN = f"{KUBELET}/pods/u1"
SUBPATHS = f"{OWN}/volume-subpaths/v/main"
MOUNTS = f"""\
20 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
21 20 0:20 / /sys rw - sysfs sysfs rw
22 21 0:21 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw
23 20 0:22 / /proc rw - proc proc rw
24 20 0:23 / /run rw - tmpfs tmpfs rw
26 21 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw
27 24 0:29 / /run/user/0 rw - tmpfs tmpfs rw
28 20 0:40 / {OWN}/volumes/kubernetes.io~empty-dir/m rw - tmpfs tmpfs rw
48 20 0:28 / {SUBPATHS}/8 rw - tmpfs tmpfs rw
49 20 0:29 /x {SUBPATHS}/9 rw - tmpfs tmpfs rw
52 20 0:40 /x {SUBPATHS}/10 rw - tmpfs tmpfs rw
71 20 8:1 /etc/cron.d {SUBPATHS}/11 rw - ext4 /dev/sda1 rw
72 20 8:1 /srv/jobs {SUBPATHS}/12 rw - ext4 /dev/sda1 rw
25 20 0:5 / /dev rw - devtmpfs udev rw
30 20 8:17 / /data rw - ext4 /dev/sdb1 rw
31 30 0:20 / /data/chroot/sys rw - sysfs sysfs rw
32 20 0:23 /containerd /mnt/runtime rw - tmpfs tmpfs rw
33 20 8:1 / /mnt/root rw - ext4 /dev/sda1 rw
34 20 0:90 / {OWN}/volumes/kubernetes.io~csi/v/mount rw - fuse csi rw
40 20 0:21 /kubepods {SUBPATHS}/0 rw - cgroup2 cgroup2 rw
41 20 0:23 /containerd {SUBPATHS}/1 rw - tmpfs tmpfs rw
42 20 8:1 {OWN}/volumes/kubernetes.io~empty-dir/v/sub {SUBPATHS}/2 rw - ext4 /dev/sda1 rw
43 20 8:1 /var/lib/containerd {SUBPATHS}/3 rw - ext4 /dev/sda1 rw
44 20 8:1 {KUBELET}/pods/u2/volumes {SUBPATHS}/4 rw - ext4 /dev/sda1 rw
45 20 0:90 /sub {SUBPATHS}/5 rw - fuse csi rw
46 20 8:17 /jobs {SUBPATHS}/6 rw - ext4 /dev/sdb1 rw
47 20 8:1 / {SUBPATHS}/7 rw - ext4 /dev/sda1 rw
73 20 8:65 / /boot rw - ext4 /dev/sde1 rw
74 73 8:66 / /boot/efi rw - vfat /dev/sde2 rw
75 20 0:91 / /etc/keys rw - tmpfs tmpfs rw
76 20 0:91 /a /mnt/keys rw - tmpfs tmpfs rw
77 20 0:92 / /mnt/nas rw - nfs4 10.0.0.9:/data rw
78 20 8:1 /usr/share /srv/tools/share rw - ext4 /dev/sda1 rw
79 20 8:33 / /mnt/disk rw - ext4 /dev/sdc1 rw
80 79 8:1 / /mnt/disk/snapshot/rootfs rw - ext4 /dev/sda1 rw
81 79 0:23 / /mnt/disk/host/run rw - tmpfs tmpfs rw
82 20 0:93 / /var/log/jobs/merged rw - overlay overlay rw
83 20 8:17 /archive /var/log/jobs/archive rw - ext4 /dev/sdb1 rw
84 20 8:1 /srv/archive /var/log/jobs/more rw - ext4 /dev/sda1 rw
85 20 7:1 / /usr/share/fonts ro,relatime shared:2 - squashfs /dev/loop1 ro
86 20 8:33 /ca.pem /etc/ssl/ca.pem ro - ext4 /dev/sdc1 rw
87 20 8:1 /usr/share /mnt/fixed/share ro - ext4 /dev/sda1 rw
88 20 0:23 / /mnt/fixed2/run ro - tmpfs tmpfs rw
89 20 0:60 / /run/containerd/io.containerd.runtime.v2.task/k8s.io/c1/rootfs rw - overlay overlay rw
90 20 0:61 / {KUBELET}/pods/u2/volumes/kubernetes.io~csi/w/mount rw - fuse csi rw
91 20 0:62 / {KUBELET}/pods/u2/volumes/kubernetes.io~empty-dir/m rw - tmpfs tmpfs rw
92 20 8:1 /opt/pv {OWN}/volumes/kubernetes.io~local-volume/pv rw - ext4 /dev/sda1 rw
93 20 0:63 / {OWN}/volumes/kubernetes.io~nfs/shared rw - nfs4 10.0.0.9:/shared rw
94 20 0:63 / {KUBELET}/pods/u2/volumes/kubernetes.io~nfs/shared rw - nfs4 10.0.0.9:/shared rw
95 20 0:64 / /home/nas rw - nfs4 10.0.0.8:/ rw
96 20 8:17 /postgres /var/lib/postgresql rw - ext4 /dev/sdb1 rw
97 20 8:81 / /run/kata/shared/0 rw - ext4 /dev/sdf1 rw
98 20 8:81 / /mnt/shared rw - ext4 /dev/sdf1 rw
101 20 8:66 / {SUBPATHS}/20 rw - vfat /dev/sde2 rw
102 20 0:60 / {SUBPATHS}/21 rw - overlay overlay rw
103 20 0:61 / {SUBPATHS}/22 rw - fuse csi rw
104 20 0:62 / {SUBPATHS}/23 rw - tmpfs tmpfs rw
105 20 8:1 {OWN}/volumes/kubernetes.io~empty-dir {SUBPATHS}/24 rw - ext4 /dev/sda1 rw
106 20 8:1 {OWN}/containers {SUBPATHS}/25 rw - ext4 /dev/sda1 rw
107 20 8:1 {OWN}/volumes/kubernetes.io~csi/v {SUBPATHS}/26 rw - ext4 /dev/sda1 rw
108 20 8:1 /opt/pv/sub {SUBPATHS}/27 rw - ext4 /dev/sda1 rw
109 20 0:63 / {SUBPATHS}/28 rw - nfs4 10.0.0.9:/shared rw
110 20 0:92 / {SUBPATHS}/29 rw - nfs4 10.0.0.9:/data rw
111 20 0:64 / {SUBPATHS}/30 rw - nfs4 10.0.0.8:/ rw
112 20 8:17 /postgres/x {SUBPATHS}/31 rw - ext4 /dev/sdb1 rw
113 20 8:1 {OWN}/volumes/kubernetes.io~configmap/c/..data {SUBPATHS}/32 rw - ext4 /dev/sda1 rw
114 20 8:1 /usr/local/vgpu/containers/u2_main {SUBPATHS}/33 rw - ext4 /dev/sda1 rw
115 20 8:1 {OWN}/volumes/kubernetes.io~csi/d/mount/x {SUBPATHS}/34 rw - ext4 /dev/sda1 rw
50 20 8:33 / /mnt/a\\040b rw - ext4 /dev/sdc1 rw
51 50 0:22 / /mnt/a\\040b/p rw - proc proc rw
no line of any form
"""
LINKS = {
    "/mnt/link": "/sys/fs/cgroup",
    "/var/run": "/run",
    "/data/fine": "/data/jobs",
    "/bin": "/usr/bin",
    "/home": "/var/home",
    "/opt/cni": "/srv/cni",
    "/mnt/cron": "/etc/cron.d",
    "/data/logs": "/var/log",
    "/mnt/localtime": "/usr/share/zoneinfo/UTC",
}


LENT = Hardening(writable_host_paths=(*WRITABLE_HOST_PATHS, "/srv"))
ALL_LENT = Hardening(writable_host_paths=("/",))


def node_of(mounts: Sequence[MountPoint], link_at: Callable[[str], str] = lambda path: "") -> NodePaths:
    return NodePaths(MountTable(mounts), link_at, lambda folder: (), OWN, LENT)


def refusal(path: str, *, readonly: bool = False, recursive_read_only: bool = False) -> str:
    node = node_of(parse_mount_table(MOUNTS), lambda one: LINKS.get(one, ""))
    return node.refusal(HostMount(path, readonly, recursive_read_only))


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/sys/fs/cgroup", id="by-name"),
        pytest.param("/", id="the-root"),
        pytest.param("/var", id="above"),
        pytest.param("/mnt/link", id="a-link"),
        pytest.param("/data", id="the-kernel-s-file-system-below"),
        pytest.param("/data/chroot", id="the-kernel-s-file-system-nearer-below"),
        pytest.param("/mnt/runtime", id="a-bind-mount-of-a-part"),
        pytest.param("/mnt/root", id="a-bind-mount-of-the-root"),
        pytest.param("/mnt/root/var/lib/containerd/x", id="in-a-bind-mount"),
        pytest.param("/mnt/a b", id="a-name-with-a-blank"),
        pytest.param(f"{KUBELET}/pods/u2/volumes/x", id="another-pod-s"),
        pytest.param("/mnt/disk/snapshot", id="a-bind-mount-of-the-root-below"),
        pytest.param("/mnt/disk/host", id="a-bind-mount-of-memory-below"),
        pytest.param("/mnt/fixed2", id="a-read-only-bind-mount-below"),
        pytest.param(f"{KUBELET}/device-plugins", id="kubelet-s"),
        *(pytest.param(f"{SUBPATHS}/{number}", id=f"sub-path-{number}") for number in (0, 1, 3, 4, 7, 8, 9)),
        pytest.param(f"{SUBPATHS}/21", id="an-online-container-s-root-by-a-sub-path"),
        pytest.param(f"{SUBPATHS}/22", id="another-pod-s-volume-by-a-sub-path"),
        pytest.param(f"{SUBPATHS}/23", id="another-pod-s-memory-by-a-sub-path"),
        pytest.param(f"{SUBPATHS}/24", id="the-folder-of-the-pod-s-own-volumes-by-a-sub-path"),
        pytest.param(f"{SUBPATHS}/25", id="the-pod-s-own-logs-by-a-sub-path"),
        pytest.param(f"{SUBPATHS}/26", id="beside-what-a-driver-mounts-by-a-sub-path"),
        pytest.param("/var/lib/etcd", id="etcd"),
        pytest.param("/var/lib/docker/volumes/x", id="docker"),
        pytest.param("/etc/kubernetes/pki", id="the-cluster-s-keys"),
        pytest.param("/etc", id="above-the-cluster-s-keys"),
    ],
)
def test_path_that_leads_to_what_is_refused_is_refused_by_its_name(path: str) -> None:
    assert f"a hostPath volume of {path}" in refusal(path)
    assert f"a hostPath volume of {path}" in refusal(path, readonly=True, recursive_read_only=True)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        *((path, path) for path in ("/etc/foo/data", "/boot", "/usr/bin", "/var/home/me", "/root/.ssh")),
        *((path, path) for path in ("/efi", "/tmp", "/var/log", "/var/log/jobs", "/opt/app", "/opt/azure")),
        ("/var/lib/postgresql", "/var/lib/postgresql"),
        *((path, path) for path in ("/var/lib/overlay/1/etc", "/var/system/overlays", "/usr/local/vgpu/containers")),
        pytest.param("/mnt/cron", "/etc/cron.d", id="a-link"),
        pytest.param("/data/logs/pods", "/var/log/pods", id="in-a-link"),
        pytest.param("/mnt/localtime", "/usr/share/zoneinfo/UTC", id="a-link-to-a-file"),
        pytest.param("/srv/tools/share", "/usr/share", id="a-bind-mount"),
        pytest.param("/srv/tools", "/usr/share", id="above-a-bind-mount"),
        pytest.param("/srv/archive", "/var/log/jobs/more", id="mounted-elsewhere"),
        pytest.param("/data/postgres", "/var/lib/postgresql", id="mounted-from-a-disk-of-its-own"),
        pytest.param("/mnt/keys", "/etc/keys/a", id="memory-mounted-elsewhere"),
        pytest.param(f"{SUBPATHS}/11", "/etc/cron.d", id="a-sub-path"),
        pytest.param(f"{SUBPATHS}/20", "/boot/efi", id="a-sub-path-of-a-mount"),
        pytest.param(f"{SUBPATHS}/30", "/home/nas", id="a-sub-path-of-a-server"),
        pytest.param(f"{SUBPATHS}/31", "/var/lib/postgresql/x", id="a-sub-path-of-what-is-mounted-elsewhere"),
        pytest.param(f"{SUBPATHS}/33", "/usr/local/vgpu/containers/u2_main", id="another-pod-s-of-a-device-plugin"),
    ],
)
def test_path_with_a_name_that_is_not_lent_is_refused_where_it_is_writable(path: str, found: str) -> None:
    leads = "" if path == found else f", which leads to {found}"
    assert refusal(path).startswith(f"an offline pod may not have a writable hostPath volume of {path}{leads}, as")
    assert "hardening.writable_host_paths" in refusal(path)
    assert refusal(path, recursive_read_only=True), "which says nothing by itself"
    assert refusal(path, readonly=True, recursive_read_only=True) == ""


@pytest.mark.parametrize(
    ("path", "writable"),
    [("/boot", "/boot/efi"), ("/srv/tools", "/srv/tools/share"), ("/var/log/jobs", "/var/log/jobs/archive")],
)
def test_what_is_mounted_in_a_read_only_path_stays_writable_unless_it_is_recursively_so(
    path: str, writable: str
) -> None:
    assert refusal(path).startswith(f"an offline pod may not have a writable hostPath volume of {path}")
    why = refusal(path, readonly=True)
    assert why.startswith(
        f"an offline pod may not have a hostPath volume of {path}, in which {writable} stays writable"
    )
    assert "recursiveReadOnly: Enabled" in why
    assert refusal(path, readonly=True, recursive_read_only=True) == ""


@pytest.mark.parametrize(
    "path",
    [
        *("/etc/localtime", "/etc/ssl", "/etc/ssl/certs", "/etc/hosts", "/usr", "/usr/share/zoneinfo", "/bin"),
        *("/mnt/localtime", "/opt/cni", "/home/me", "/boot/efi", "/usr/share/fonts", "/mnt/fixed", "/var/lib/dpkg"),
        f"{SUBPATHS}/11",
    ],
)
def test_other_folders_of_the_node_may_be_read(path: str) -> None:
    assert refusal(path, readonly=True) == ""


@pytest.mark.parametrize(
    "path",
    [
        *("/data/jobs", "/data/fine", "/mnt/nas", "/mnt/nas/jobs", "/srv/jobs", "/mnt/fixed", "/mnt/shared/x"),
        "/opt/local-path-provisioner/pvc-1",
        *(f"{SUBPATHS}/{number}" for number in (2, 5, 6, 10, 12)),
        pytest.param(f"{SUBPATHS}/27", id="a-local-volume-by-a-sub-path"),
        pytest.param(f"{SUBPATHS}/28", id="a-shared-volume-of-a-server-by-a-sub-path"),
        pytest.param(f"{SUBPATHS}/29", id="a-lent-folder-of-a-server-by-a-sub-path"),
        pytest.param(f"{SUBPATHS}/32", id="a-config-map-by-a-sub-path"),
        pytest.param(f"{SUBPATHS}/34", id="a-volume-of-a-driver-that-mounts-nothing-by-a-sub-path"),
    ],
)
def test_path_whose_names_are_lent_or_in_the_pod_s_own_volumes_may_be_written(path: str) -> None:
    assert refusal(path) == ""


SYSTEMS = {
    "coreos": """\
20 1 8:4 /ostree/deploy/c/deploy/1.0 / rw - xfs /dev/sda4 rw
21 20 8:4 / /sysroot ro - xfs /dev/sda4 rw
22 20 8:4 /ostree/deploy/c/var /var rw - xfs /dev/sda4 rw
23 20 8:4 / /mnt/whole rw - xfs /dev/sda4 rw
""",
    "coreos-composefs": """\
20 1 0:30 / / ro - overlay composefs rw
21 20 8:4 / /sysroot ro - xfs /dev/sda4 rw
22 20 8:4 /ostree/deploy/c/var /var rw - xfs /dev/sda4 rw
23 20 8:4 /ostree/deploy/c/deploy/1.0/etc /etc rw - xfs /dev/sda4 rw
24 20 8:4 / /mnt/whole rw - xfs /dev/sda4 rw
""",
    "microos": """\
20 1 0:30 /@/.snapshots/1/snapshot / ro - btrfs /dev/sda3 rw
21 20 0:30 /@/.snapshots /.snapshots rw - btrfs /dev/sda3 rw
22 20 0:30 /@/var /var rw - btrfs /dev/sda3 rw
23 20 0:30 /@/srv /srv rw - btrfs /dev/sda3 rw
24 20 0:41 / /etc rw - overlay overlay rw
25 20 0:30 / /data/whole rw - btrfs /dev/sda3 rw
""",
    "bound": """\
20 1 8:1 / / rw - ext4 /dev/sda1 rw
21 20 8:1 / /data/snapshot rw - ext4 /dev/sda1 rw
22 20 8:17 / /mnt/k8s-disks/0 rw - xfs /dev/nvme1n1 rw
23 20 8:17 /kubelet /var/lib/kubelet rw - xfs /dev/nvme1n1 rw
24 20 8:17 /pods /var/log/pods rw - xfs /dev/nvme1n1 rw
25 20 8:17 /kubelet/pods/u1/volumes/kubernetes.io~empty-dir/v/s {sub} rw - xfs /dev/nvme1n1 rw
""".replace("{sub}", f"{SUBPATHS}/0"),
}
COREOS = {"/mnt": "var/mnt", "/srv": "var/srv", "/opt": "var/opt", "/media": "run/media"}
LINKS_OF = {"coreos": COREOS | {"/mnt/whole": ""}, "coreos-composefs": COREOS}


@pytest.mark.parametrize(
    ("system", "path", "found"),
    [
        ("coreos", "/mnt/jobs", None),
        ("coreos", "/srv/jobs", None),
        ("coreos", "/var/mnt/jobs", None),
        ("coreos", "/opt/app", "/var/opt/app"),
        ("coreos", "/sysroot/ostree/repo", "/sysroot/ostree/repo"),
        ("coreos-composefs", "/mnt/jobs", None),
        ("coreos-composefs", "/etc/cron.d", "/etc/cron.d"),
        ("microos", "/srv/jobs", None),
        ("microos", "/var/lib/overlay/1/etc", "/var/lib/overlay/1/etc"),
        ("microos", "/data/whole/@/var/lib/overlay/1/etc", "/var/lib/overlay/1/etc"),
        ("microos", "/data/whole/@/.snapshots/1/snapshot/usr", "/usr"),
        ("bound", "/data/jobs", None),
        ("bound", "/data/snapshot/srv/jobs", None),
        ("bound", "/data/snapshot/etc/cron.d", "/etc/cron.d"),
        ("bound", "/mnt/k8s-disks/0/pods", "/var/log/pods"),
        ("bound", "/mnt/k8s-disks/0/jobs", None),
        ("bound", f"{SUBPATHS}/0", None),
    ],
)
def test_what_shows_all_of_the_system_s_disk_gives_no_name_and_hides_none(
    system: str, path: str, found: str | None
) -> None:
    links = LINKS_OF.get(system, {})
    why = node_of(parse_mount_table(SYSTEMS[system]), lambda one: links.get(one, "")).refusal(HostMount(path))
    leads = "" if path == found else f", which leads to {found}"
    assert why.startswith(
        f"an offline pod may not have a writable hostPath volume of {path}{leads}, as" if found else ""
    )
    assert bool(why) is (found is not None)


@pytest.mark.parametrize(("system", "path"), [("microos", "/data/whole"), ("bound", "/mnt/k8s-disks/0")])
def test_disk_that_has_a_refused_folder_in_it_is_refused(system: str, path: str) -> None:
    node = node_of(parse_mount_table(SYSTEMS[system]))
    assert f"may not have a hostPath volume of {path}, which leads to" in node.refusal(HostMount(path, readonly=True))


def test_path_that_only_the_mount_of_all_of_the_disk_shows_goes_by_its_names_there() -> None:
    mounts = "20 1 8:4 /deploy/1 / rw - xfs d rw\n21 20 8:4 / /sysroot rw - xfs d rw\n22 20 8:4 / /mnt rw - xfs d rw\n"
    assert "which leads to /sysroot/repo" in node_of(parse_mount_table(mounts)).refusal(HostMount("/mnt/repo"))


@pytest.mark.parametrize("kind", ["ext4", "nfs4"])
def test_homes_on_a_file_system_of_their_own_are_found_and_what_else_their_server_has_is_not(kind: str) -> None:
    """NFS shows each of its mounts as the root of what it is on."""
    asked = list[str]()
    homes = "".join(f"{id} 20 0:9 / {point} rw - {kind} h rw\n" for id, point in ((21, "/home"), (22, "/mnt/h")))
    mounts = parse_mount_table(f"20 1 8:1 / / rw - ext4 /dev/sda1 rw\n{homes}")
    none = cache(lambda path: asked.append(path) or "")  # type: ignore[func-returns-value]
    hardening = Hardening(refuse_host_paths=("/home/*/.*",), writable_host_paths=("/",))
    node = NodePaths(MountTable(mounts), none, lambda folder: asked.append(folder) or (), OWN, hardening)  # type: ignore[func-returns-value]
    assert "which leads to /home/*/.*" in node.refusal(HostMount("/home/me"))
    assert node.refusal(HostMount("/home/me/data")) == ""
    assert ("which leads to /home/*/.*" in node.refusal(HostMount("/mnt/h/me"))) is (kind == "ext4")
    assert ("which leads to /home" in node.refusal(HostMount("/mnt/h"))) is (kind == "ext4")
    asked_there = [one for one in asked if one.startswith("/home")]
    assert asked_there == ["/home", "/home/me", "/home/me/data"], "by these paths alone: its server may be gone"


class Counted(list[MountPoint]):
    """Mounts, and how often somebody has gone through all of them."""

    passes = 0

    def __iter__(self) -> Iterator[MountPoint]:
        self.passes += 1
        return super().__iter__()


def test_mount_of_a_path_is_found_from_that_of_the_folder_above(monkeypatch: pytest.MonkeyPatch) -> None:
    table, steps = MountTable(parse_mount_table(MOUNTS)), list[str]()
    dirname = posixpath.dirname
    monkeypatch.setattr(posixpath, "dirname", lambda path: steps.append(path) or dirname(path))  # type: ignore[func-returns-value]
    paths = [f"/data{'/a' * number}" for number in range(2000)]
    assert {table.of(path).point for path in paths} == {"/data"}
    assert len(steps) <= 2000
    assert table.of("/x/y").point == "/"
    assert MountTable([]).of("/x/y").point == ""


def test_paths_of_thousands_of_parts_are_refused_after_a_bounded_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[str]()

    def readlink(path: str) -> str:
        read.append(path)
        raise OSError(errno.ENOENT, "", path)

    monkeypatch.setattr(os, "readlink", readlink)
    (tmp_path / "mountinfo").write_text("20 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
    paths = [f"/data{number}{'/a' * 2045}" for number in range(4)]
    assert check(KUBELET, paths[:1], Hardening(), tmp_path) == ""
    assert len(read) < 3000
    read.clear()
    assert "more than 8192 parts in all" in check(KUBELET, paths, Hardening(), tmp_path)
    assert len(read) <= 8192


def test_thousands_of_paths_and_mounts_are_looked_at_once_each() -> None:
    mounts, looked_at = Counted(parse_mount_table(MOUNTS)), list[str]()
    node = node_of(mounts, cache(lambda path: looked_at.append(path) or ""))  # type: ignore[func-returns-value]
    paths = [f"/data/jobs/{number}" for number in range(1000)]
    node.refusal(HostMount("/data/jobs", readonly=True))
    passes, before = mounts.passes, len(looked_at)
    assert [node.refusal(HostMount(path, readonly=path.endswith("0"))) for path in paths] == [""] * 1000
    assert (mounts.passes, looked_at[before:]) == (passes, paths)


def test_path_that_is_mounted_a_thousand_times_is_one() -> None:
    node = HostPaths(KUBELET, Path("/no/such/file"))
    mounts = [HostMount("/data"), HostMount("/data", readonly=True), HostMount("/x/../data")]
    assert node.suspects("u1", mounts * 1000) == (HostMount("/data"), HostMount("/data", readonly=True))
    node.close()


def test_path_that_no_kernel_takes_is_refused_without_a_look() -> None:
    def link_at(path: str) -> str:
        assert not path.startswith("/a")
        return ""

    node = node_of(parse_mount_table(MOUNTS), link_at)
    why = node.refusal(HostMount("/a" * 32768))
    assert "more than 4096 characters" in why
    assert len(why) < 500


def check(root_dir: Path | str, paths: list[str], hardening: Hardening, process: Path = Path("/proc/self")) -> str:
    """Why they are refused on this machine; "": they are not."""

    async def ask() -> None:
        await node.check("u1", [HostMount(path) for path in paths], hardening)

    node = HostPaths(str(root_dir), process)
    try:
        asyncio.run(ask())
    except AdmissionError as error:
        return str(error)
    finally:
        node.close()
    return ""


def test_kubelet_s_own_files_for_the_pod_need_no_look_at_the_node() -> None:
    node = HostPaths(KUBELET, Path("/no/such/file"))
    own = [f"{OWN}/etc-hosts", f"{OWN}/containers/main/1f", f"{OWN}/volumes/kubernetes.io~projected/token"]
    own += [one.replace(KUBELET, "/var/lib/k0s/kubelet") for one in own]
    own += ["/usr/local/vgpu/containers/u1_main"]
    assert node.suspects("u1", [HostMount(path) for path in own]) == ()
    beside = [f"{KUBELET}/pods/u2/etc-hosts", f"{SUBPATHS}/0", "/var/lib/k0s/kubelet/pods/u1/volume-subpaths/v/m/0"]
    beside += ["/data", "/pods/u12/x", "/usr/local/vgpu/containers/u2_main", "/usr/local/vgpu/containers/u12_main"]
    found = [one.path for one in node.suspects("u1", [HostMount(one) for one in (f"{OWN}/../u2/etc-hosts", *beside)])]
    assert found == beside
    node.close()


def test_link_of_this_machine_is_followed(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("/proc/self")
    (tmp_path / "data").mkdir()
    (tmp_path / "etc").symlink_to("/etc")
    hardening = Hardening(refuse_host_paths=("/proc",), writable_host_paths=(str(tmp_path),))
    why = check(tmp_path / "kubelet", [f"{tmp_path}/etc/cron.d"], hardening)
    assert "which leads to /etc/cron.d" in why
    assert "a device plugin asks for the mount" in why, "whose author looks for it in the spec in vain"
    assert "which leads to /proc" in check(tmp_path / "kubelet", [str(tmp_path / "a")], hardening)
    assert check(tmp_path / "kubelet", [str(tmp_path / "data")], hardening) == ""


def test_links_are_those_below_the_root_of_process_1_where_it_may_be_looked_at(tmp_path: Path) -> None:
    """As a pod, criproxy has its image's root."""
    (tmp_path / "mountinfo").write_text("20 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
    assert check(KUBELET, ["/srv/criproxy/x"], LENT, tmp_path) == ""
    (tmp_path / "root/var/etc").mkdir(parents=True)
    (tmp_path / "root/etc").symlink_to("var/etc")
    (tmp_path / "root/srv").symlink_to("/etc")
    (tmp_path / "root/data1").symlink_to("/big")
    assert "which leads to /var/etc/x" in check(
        KUBELET, ["/srv/x"], Hardening(writable_host_paths=("/data*",)), tmp_path
    )
    assert check(KUBELET, ["/data1/x", "/big/x"], Hardening(), tmp_path) == ""


LISTED = ("etc", "opt/cni", "opt/linked/bin", "usr", "home/*/.*", "rancher/*/agent")


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A folder as of a node whose listed folders are in part elsewhere, by links."""
    for name in ("data/homes/alice/.ssh", "data/k3s/agent", "home", "rancher", "etc", "opt/cni", "usr", "mnt"):
        (tmp_path / name).mkdir(parents=True)
    for link, target in {
        "etc/kubernetes": "data/kubernetes",
        "opt/cni/bin": "data/cnibin",
        "opt/linked": "data/linked",
        "usr/local": "data/local",
        "home/alice": "data/homes/alice",
        "rancher/k3s": "data/k3s",
        "mnt/etc": "etc",
    }.items():
        (tmp_path / link).symlink_to(tmp_path / target)
    return tmp_path


def refused_in(folder: Path, path: str) -> str:
    hardening = replace(ALL_LENT, refuse_host_paths=tuple(f"{folder}/{one}" for one in LISTED))
    return check(folder / "kubelet", [f"{folder}/{path}"], hardening)


@pytest.mark.parametrize(
    ("path", "listed"),
    [
        ("etc/kubernetes/manifests", "etc"),
        ("etc/kubernetes", "etc"),
        ("mnt/etc/kubernetes/manifests", "etc"),
        ("opt/cni/bin", "opt/cni"),
        ("opt/linked/bin/x", "opt/linked/bin"),
        ("usr/local/bin", "usr"),
        ("home/alice", "home/*/.*"),
        ("home/alice/.ssh", "home/*/.*"),
        ("rancher/k3s", "rancher/*/agent"),
        ("rancher/k3s/agent/images", "rancher/*/agent"),
        ("data/homes/alice", "home/*/.*"),
        ("data/homes/alice/.ssh", "home/*/.*"),
        ("data/k3s/agent", "rancher/*/agent"),
    ],
)
def test_listed_folder_is_known_by_each_name_that_links_give_it(linked: Path, path: str, listed: str) -> None:
    assert f"which leads to {linked}/{listed}" in refused_in(linked, path)


def test_folder_that_has_the_link_to_a_listed_one_in_it_is_refused(linked: Path) -> None:
    (linked / "apps").mkdir()
    (linked / "apps/bin").symlink_to(linked / "data/bin")
    hardening = replace(ALL_LENT, refuse_host_paths=(f"{linked}/apps/bin",))
    for path in ("apps", "data/bin/x"):
        assert f"which leads to {linked}/apps/bin" in check(linked / "kubelet", [f"{linked}/{path}"], hardening)


@pytest.mark.parametrize("path", ["home/alice/data", "data/homes/alice/data", "rancher/k3s/storage", "data/jobs"])
def test_data_beside_what_links_lead_to_may_be_written(linked: Path, path: str) -> None:
    assert refused_in(linked, path) == ""


def test_lent_folder_is_known_where_links_to_it_lead_and_links_in_it_lend_nothing(linked: Path) -> None:
    (linked / "mnt/disk").symlink_to("../data/disk")
    (linked / "data/lent").mkdir()
    (linked / "data/lent/made").symlink_to(linked / "usr")
    (linked / "opt/out").symlink_to(linked / "data/lent/made")
    lent = tuple(f"{linked}/{one}" for one in ("mnt/disk", "data/lent", "opt/out", "rancher/*/agent"))
    hardening = Hardening(writable_host_paths=lent, refuse_host_paths=())
    for path in ("mnt/disk/x", "data/disk/x", "data/lent/x", "rancher/k3s/agent/x", "data/k3s/agent"):
        assert check(linked / "kubelet", [f"{linked}/{path}"], hardening) == ""
    for path, found in (("opt/out/x", "usr/x"), ("usr/x", "usr/x"), ("data/lent/made", "usr"), ("data", "data")):
        why = check(linked / "kubelet", [f"{linked}/{path}"], hardening)
        assert f"{linked}/{found}, as" in why


@pytest.mark.parametrize(
    ("path", "listed"),
    [
        ("/data", "/var/lib/rancher/*/agent"),
        ("/data/k3s", "/var/lib/rancher/*/agent"),
        ("/data/k3s/agent", "/var/lib/rancher/*/agent"),
        ("/data/k3s/storage", ""),
        ("/data/jobs", ""),
        ("/mnt/alice", "/home/*/.*"),
        ("/mnt/alice/.ssh", "/home/*/.*"),
        ("/mnt/alice/data", ""),
        ("/mnt/memory/x", "/var/lib/rancher/*/agent"),
        ("/mnt/disk", ""),
        ("/mnt/nas", ""),
    ],
)
def test_mounts_in_a_folder_of_any_name_are_found_by_their_device(tmp_path: Path, path: str, listed: str) -> None:
    (tmp_path / "mountinfo").write_text("""\
20 1 8:1 / / rw - ext4 /dev/sda1 rw
21 20 8:17 / /data rw - ext4 /dev/sdb1 rw
22 20 8:17 /k3s /var/lib/rancher/k3s rw - ext4 /dev/sdb1 rw
23 20 8:33 / /home/alice rw - ext4 /dev/sdc1 rw
24 20 8:33 / /mnt/alice rw - ext4 /dev/sdc1 rw
25 20 0:9 / /home/bob rw - nfs4 10.0.0.9:/homes/bob rw
26 20 0:9 / /mnt/nas rw - nfs4 10.0.0.9:/data rw
27 20 0:50 / /var/lib/rancher/k3s/agent/etc rw - tmpfs tmpfs rw
28 20 0:50 / /mnt/memory rw - tmpfs tmpfs rw
29 20 8:49 / /var/lib/rancher/k3s/agent/disk rw - ext4 /dev/sdd1 rw
30 20 8:49 / /mnt/disk rw - ext4 /dev/sdd1 rw
""")
    hardening = replace(ALL_LENT, refuse_host_paths=("/home/*/.*", "/var/lib/rancher/*/agent"))
    why = check(KUBELET, [path], hardening, tmp_path)
    assert f"which leads to {listed}, as" in why if listed else why == ""


def test_path_whose_link_leads_past_the_longest_name_is_refused(tmp_path: Path) -> None:
    """The kernel follows the link's parts one by one, and gets to where no name of this length can be looked at."""
    folder, names = os.open(tmp_path, os.O_PATH), [*["d" * 250] * 16, "e" * 70]
    for name in names:
        os.mkdir(name, dir_fd=folder)
        above, folder = folder, os.open(name, os.O_PATH, dir_fd=folder)
        os.close(above)
    os.symlink("/sys", "k", dir_fd=folder)
    os.close(folder)
    (tmp_path / "a").symlink_to("/".join([*names, "k"]))
    path = f"{tmp_path}/a/kernel"
    assert os.path.samefile(path, "/sys/kernel")
    why = check(tmp_path / "kubelet", [path], ALL_LENT)
    assert "not known what its hostPath volumes lead to" in why
    assert "File name too long" in why
    assert len(why) < 500


@pytest.mark.parametrize(
    ("links", "why"),
    [
        pytest.param(40, "which leads to /sys", id="as-many-as-the-kernel-follows"),
        pytest.param(41, "more than 40 symbolic links", id="as-only-a-runtime-follows"),
    ],
)
def test_chain_of_links_is_followed_to_its_end_or_refused(tmp_path: Path, links: int, why: str) -> None:
    for number in range(1, links):
        (tmp_path / str(number)).symlink_to(str(number + 1))
    (tmp_path / str(links)).symlink_to("/sys/kernel")
    assert why in check(tmp_path / "kubelet", [f"{tmp_path}/1"], ALL_LENT)


def test_link_in_a_circle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert "more than 40 symbolic links" in check(tmp_path / "kubelet", [f"{tmp_path}/loop/x"], ALL_LENT)


def test_file_that_a_path_goes_through_is_no_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert check(tmp_path / "kubelet", [f"{tmp_path}/file/x"], ALL_LENT) == ""


def test_node_that_does_not_tell_lets_no_such_pod_in() -> None:
    node = HostPaths(KUBELET, Path("/no/such/file"))
    with pytest.raises(AdmissionError, match="not known what its hostPath volumes lead to"):
        asyncio.run(node.check("u1", [HostMount("/data")], Hardening()))
    node.close()


@pytest.mark.parametrize(("device", "kind"), [("0:9", "nfs4"), ("0:9", "autofs"), ("0:9", "fuse.sshfs")])
def test_folders_of_a_server_that_may_be_gone_are_not_looked_at_for_the_list(device: str, kind: str) -> None:
    """Not /home itself, nor where links of others lead."""
    mounts = parse_mount_table(f"""\
20 1 0:20 / / rw - overlay overlay rw
21 20 {device} / /home rw - {kind} h rw
22 20 {device} / /srv/nas rw - {kind} h rw
23 20 8:33 / /opt rw - ext4 /dev/sdc1 rw
""")
    asked, links = list[str](), {"/opt/cni": "/srv/nas/cni", "/opt/nri": "/data/nri", "/usr": "/opt/usr"}
    listed = ("/home/*/.*", "/opt/cni", "/opt/nri", "/usr", "/var/lib/rancher/*/agent")
    asked_inside = list[str]()

    def link_at(path: str) -> str:
        asked.append(path)
        return links.get(path, "")

    hardening = Hardening(refuse_host_paths=listed)
    NodePaths(MountTable(mounts), link_at, lambda folder: asked_inside.append(folder) or (), OWN, hardening)  # type: ignore[func-returns-value]
    assert not [one for one in asked if one.startswith(("/home", "/srv/nas"))]
    assert "/home" not in asked_inside
    assert "/var/lib/rancher" in asked_inside
    assert {"/opt/nri", "/data/nri", "/opt/usr"} <= {*asked}, "what is on the node's own disks is"


class DeadServer:
    """A node whose mount /mnt/dead does not answer, until it is back. /var is a mount, and /var/link leads there.

    A scenario's time passes only while all threads wait for that mount: what a machine that is busy with something else
    makes slow is on time.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.back = threading.Event()
        self.entered = 0
        self.links = {f"/var/link{number}": f"../mnt/dead/{number}" for number in range(100)} | {
            "/var/link": "/mnt/dead"
        }
        self.folder = folder
        self.mount("60")
        monkeypatch.setattr(os, "readlink", self._readlink)
        self.node = HostPaths(KUBELET, self.folder, timeout_s=0.2)

    def mount(self, id: str) -> None:
        (self.folder / "mountinfo").write_text(
            f"{MOUNTS}59 20 8:49 / /var rw - ext4 /dev/sdd1 rw\n{id} 20 0:99 / /mnt/dead rw - nfs4 10.0.0.9:/ rw\n"
        )

    def _readlink(self, path: str) -> str:
        if path.startswith("/mnt/dead"):
            self.entered += 1
            self.back.wait()
        if path in self.links:
            return self.links[path]
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)

    async def refusal(self, uid: str, path: str) -> str:
        """Why it is refused; "": it is not."""
        try:
            await self.node.check(uid, [HostMount(path)], ALL_LENT)
        except AdmissionError as error:
            return str(error)
        return ""

    def works(self) -> bool:
        """Whether a thread is at work, and not at the mount."""
        readers = self.node._readers
        looking = sum(one.looking is not None or one.worker.stuck for one in readers)
        return looking > (0 if self.back.is_set() else self.entered)

    def run(self, scenario: Callable[[], Coroutine[None, None, None]]) -> None:
        with asyncio.Runner(loop_factory=lambda: _Loop(self.works)) as runner:
            runner.run(scenario())


class _Jumping(selectors.DefaultSelector):
    """Its time jumps to the next timer once nothing can be done and nobody works."""

    def __init__(self, works: Callable[[], bool]) -> None:
        super().__init__()
        self.now_s = 1000.0
        self._works = works

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        works = self._works()  # what has been done since is found below
        ready = super().select(POLL_S if timeout is None else min(timeout, POLL_S))
        if not ready and timeout and not works:
            self.now_s += timeout
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, works: Callable[[], bool]) -> None:
        self._jumping = _Jumping(works)
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeadServer]:
    server = DeadServer(tmp_path, monkeypatch)
    yield server
    server.back.set()
    server.node.close()
    for one in threading.enumerate():  # they would go on at the next test's mount
        if one.name == "host-paths":
            one.join(LONG_S)


SAID = "/mnt/dead does not answer: no offline pod is let in that mounts a path of it"


@pytest.mark.parametrize("first", ["/mnt/dead/1", "/var/link", "/var/link/x", "/var/link7"])
def test_server_that_is_gone_keeps_out_the_pods_that_mount_something_of_it_and_no_others(
    server: DeadServer, first: str
) -> None:
    async def scenario() -> None:
        assert "no answer from the kernel within 0.2 s" in await server.refusal("a", first)
        threads = threading.active_count()
        for number in range(100):
            for path in (f"/mnt/dead/{number}", f"/var/link/{number}", f"/var/link{number}"):
                assert "/mnt/dead has not answered an earlier pod yet" in await server.refusal(f"b{number}", path)
            for path in (f"/data/{number}", f"/var/jobs/{number}"):
                assert await server.refusal(f"c{number}", path) == ""
        assert list(server.node.problems()) == [SAID]
        assert threading.active_count() <= threads + 1
        server.back.set()
        await until(lambda: not list(server.node.problems()))
        assert await server.refusal("d", "/mnt/dead/1") == ""
        await until(lambda: threading.active_count() < threads + 1)

    server.run(scenario)


def test_pods_that_come_while_a_look_hangs_do_not_wait_for_it(server: DeadServer) -> None:
    async def scenario() -> None:
        others = (server.refusal(f"b{number}", "/data/1") for number in range(100))
        first, *refusals = await asyncio.gather(server.refusal("a", "/mnt/dead/1"), *others)
        assert first
        assert not any(refusals)

    server.run(scenario)


def test_pods_that_come_together_have_few_threads_hang_at_a_server_that_is_gone(server: DeadServer) -> None:
    server.node.close()
    server.node = HostPaths(KUBELET, server.folder, timeout_s=2.0)

    async def scenario() -> None:
        refusals = await asyncio.gather(*(server.refusal(f"a{number}", f"/mnt/dead/{number}") for number in range(16)))
        assert "no answer from the kernel within 2 s" in refusals[0]
        assert all(refusals)
        assert server.entered <= 2
        assert await server.refusal("b", "/data/1") == ""

    server.run(scenario)


def test_pods_that_come_together_wait_for_a_server_that_is_slow(server: DeadServer) -> None:
    server.node.close()
    server.node = HostPaths(KUBELET, server.folder, timeout_s=10.0)

    async def scenario() -> None:
        asked = asyncio.gather(*(server.refusal(f"a{number}", f"/mnt/dead/{number}") for number in range(16)))
        await until(lambda: server.entered)
        assert await server.refusal("b", "/data/1") == ""
        assert server.entered <= 2
        server.back.set()
        assert await asked == [""] * 16

    server.run(scenario)


def test_look_that_its_caller_has_left_keeps_out_no_pod_that_mounts_something_else(server: DeadServer) -> None:
    async def scenario() -> None:
        left = asyncio.create_task(server.refusal("a", "/mnt/dead/1"))
        await until(lambda: server.entered)
        left.cancel()
        assert await server.refusal("b", "/data/1") == ""
        (hanging,) = HostPaths.GAUGES
        await until(lambda: hanging.read(server.node.now()) == 1)
        assert list(server.node.problems()) == [SAID]

    server.run(scenario)


def test_mount_that_was_replaced_answers(server: DeadServer) -> None:
    async def scenario() -> None:
        assert await server.refusal("a", "/mnt/dead/1")
        server.mount("61")
        assert await server.refusal("b", "/data/1") == ""
        assert list(server.node.problems()) == []
        server.links["/mnt/dead/1"] = "/data"  # as the new one says; `back` is the old one's
        assert "no answer" in await server.refusal("c", "/mnt/dead/1"), "it is asked, not known to be dead"

    server.run(scenario)


def test_threads_are_bounded_however_many_mounts_hang(server: DeadServer) -> None:
    async def scenario() -> None:
        before = threading.active_count()
        for number in range(20):
            server.mount(f"{100 + number}")
            assert await server.refusal("a", "/mnt/dead/1")
        assert threading.active_count() <= before + 16
        server.back.set()
        (hanging,) = HostPaths.GAUGES
        await until(lambda: not hanging.read(server.node.now()))
        assert await server.refusal("b", "/data/1") == ""
        await until(lambda: threading.active_count() <= before)

    server.run(scenario)


@pytest.mark.parametrize(
    ("path", "end"),
    [
        ("/a/b/../c", "/a/c"),
        ("/l/x", "/t/x"),
        ("/l/../y", "/y"),
        ("/r/x", "/a/t/x"),
        ("//a/./b/", "/a/b"),
        ("/../a", "/a"),
        ("/", "/"),
    ],
)
def test_path_is_resolved_as_the_kernel_does(path: str, end: str) -> None:
    links, looked_at = {"/l": "/t", "/r": "a/./t"}, list[str]()

    def link_at(at: str) -> str:
        looked_at.append(at)
        return links.get(at, "")

    assert names_of(path, link_at)[-1] == end
    assert len(looked_at) <= 50


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/a", ["/a"]),
        ("/l/x", ["/l/x", "/t/x"]),
        ("/two/x/y", ["/two/x/y", "/l/x/y", "/t/x/y"]),
        ("/up/x", ["/up/x", "/l/x", "/t/x"]),
        ("/long/x", ["/long/x", "/x"]),
    ],
)
def test_path_has_a_name_for_each_link_on_its_way(path: str, names: list[str]) -> None:
    links = {"/l": "/t", "/two": "/l", "/up": "/l/y/..", "/long": "/l/" + "../" * 4096}
    assert names_of(path, lambda at: links.get(at, "")) == names
