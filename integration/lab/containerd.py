"""A private containerd: own root, state, socket and configuration, and everything it leaves can be cleaned up."""

import contextlib
import functools
import json
import os
import re
import subprocess
from pathlib import Path

from integration.lab import images
from integration.lab.cgroups import Tree, mounts
from integration.lab.client import CriClient
from integration.lab.directory import socket_path
from integration.lab.naming import Driver, driver, told_of_spec
from integration.lab.process import LabError, Process, Service, all_pids, argv_of, descendants, kill_all
from integration.lab.throwaway import is_throwaway
from integration.programs import build

FIRST_VALIDATOR = (2, 2)
"""The first version that makes no container without the plugin that its pod requires."""
FIRST_OOM_SCORE_ADJ = (1, 7, 27)
"""The first version in which a plugin of NRI can set it."""

START_S = 180
"""Enough for an emulated node that others keep busy, too."""
CAP_SYS_RESOURCE = 24
OVERLAYFS = "overlay"

CONFIG = """\
version = 2
root = "{root}"
state = "{state}"
disabled_plugins = [
  "io.containerd.internal.v1.opt",
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]

[grpc]
  address = "{socket}"

[plugins."io.containerd.nri.v1.nri"]
  disable = false
  socket_path = "{nri}"
  plugin_path = "{plugins}"
  plugin_request_timeout = "{nri_timeout}"
  [plugins."io.containerd.nri.v1.nri".default_validator]
    enable = true

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = {restrict_oom_score_adj}
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{cni}"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{registries}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      Root = "{runc}"
      SystemdCgroup = {systemd}
"""

REGISTRY = "127.0.0.1:5000"
"""Where an enclosed containerd pulls from, whatever registry an image's name names: integration.lab.registry."""
HOSTS = f"""\
[host."http://{REGISTRY}"]
  capabilities = ["pull", "resolve"]
"""
SUBNET = "10.213.78.0/24"
ENCLOSE = ("unshare", "--net", "--ipc", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")


def programs() -> Path | None:
    """Where containerd and its shim are, for tests that Debian's may be too old for: those that are built, of the
    version that $CONTAINERD names. None: the machine's own, on a throwaway node, which has one.

    Raises LabError when they are not built.
    """
    return None if is_throwaway() else build.find("containerd").parent


@functools.cache
def containerd_version() -> tuple[int, ...]:
    """That of `programs`, as (1, 7, 24)."""
    directory = programs()
    program = directory / "containerd" if directory else Path("containerd")
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\bv?(\d+)\.(\d+)\.(\d+)", said)
    assert found, said
    return tuple(map(int, found.groups()))


class Containerd(Service):
    """A containerd in `directory`, with the lab's images and the node's cgroup driver.

    Pods must use the host's network: there is no CNI network. `log` is its log, `socket` its CRI socket. Of containerd
    2, `nri` is its NRI socket, and `plugins` the directory of the NRI plugins that it starts itself.

    `enclosed`: it has a network and an IPC namespace of its own, which its pods take for the host's and which end with
    it and its pods. Pods have a CNI network there, and images come from `REGISTRY` there. `inside` is the command
    that runs others in it. Once restarted, it is in new ones.
    """

    def __init__(
        self, directory: Path, *, programs: Path | None = None, enclosed: bool = False, nri_timeout: str = "1m"
    ) -> None:
        """`programs` is the directory of containerd, its shim and ctr; None: those of the machine. `nri_timeout`: how
        long it waits for a plugin of NRI, by default longer than a busy machine needs. Its validator is on.

        Raises LabError when the directory's name is too long for sockets.
        """
        self.directory = directory.absolute()
        super().__init__("containerd", self.directory / "containerd.log")
        self.socket = _socket(directory)
        self.nri = socket_path(directory, "nri.sock")
        self.plugins = self.directory / "nri-plugins"
        self._environment = {"PATH": f"{programs}:{os.environ['PATH']}"} if programs else {}
        self._enclosed = enclosed
        self._nri_timeout = nri_timeout
        self._config = self.directory / "containerd.toml"

    def start(self) -> None:
        """Start it and return once it answers and has the images; pods of an earlier start go on.

        Raises LabError when it ends or does not answer within a minute.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        self._config.write_text(self._configuration())
        if self._enclosed:
            self._give_network()
        command = [*(ENCLOSE if self._enclosed else ()), "containerd", "--config", self._config]
        self._process = Process("containerd", command, self.log, self._environment)
        with CriClient(self.socket) as client:
            self._process.wait_until(client.is_ready, START_S, "an answer to Version")
            if set(images.NAMES) - client.image_names():
                self._import_images()
                self._process.wait_until(
                    lambda: not set(images.NAMES) - client.image_names(), START_S, "the images to be listed"
                )

    @property
    def inside(self) -> list[str]:
        """Before a command: it runs in the namespaces of an enclosed containerd. Raises LabError before the start."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", f"--ipc=/proc/{self.pid}/ns/ipc", "--"]

    def _configuration(self) -> str:
        return CONFIG.format(
            root=self.directory / "root",
            state=self.directory / "state",
            runc=self.directory / "runc",
            cni=self.directory / "cni",
            nri=self.nri,
            plugins=self.plugins,
            nri_timeout=self._nri_timeout,
            registries=self.directory / "registries",
            socket=self.socket,
            pause=images.PAUSE,
            systemd=str(driver() is Driver.SYSTEMD).lower(),
            restrict_oom_score_adj=str(not _has_capability(CAP_SYS_RESOURCE)).lower(),
            # An overlay can't be the upper layer of another one (a live system, a container).
            snapshotter="native" if _filesystem(self.directory) == OVERLAYFS else "overlayfs",
        )

    def _give_network(self) -> None:
        """A bridge with ports of the host for those that ask, and the one registry for all names."""
        addresses = {"dataDir": str(self.directory / "addresses"), "ranges": [[{"subnet": SUBNET}]]}
        bridge = {"type": "bridge", "bridge": "lab", "isGateway": True, "ipam": {"type": "host-local", **addresses}}
        ports = {"type": "portmap", "capabilities": {"portMappings": True}}
        network = {"cniVersion": "0.4.0", "name": "lab", "plugins": [bridge, ports]}
        (cni := self.directory / "cni").mkdir(exist_ok=True)
        (cni / "10-lab.conflist").write_text(json.dumps(network))
        (hosts := self.directory / "registries" / "_default").mkdir(parents=True, exist_ok=True)
        (hosts / "hosts.toml").write_text(HOSTS)

    def _import_images(self) -> None:
        archive = self.directory / "images.tar"
        images.write_archive(archive)
        command = ["ctr", "--address", str(self.socket), "-n", "k8s.io", "images", "import", str(archive)]
        environment = {**os.environ, **self._environment}
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False, env=environment)
        if done.returncode != 0:
            raise LabError(f"{' '.join(command)}: {done.stderr.strip()}")
        archive.unlink()


def end(directory: Path) -> None:
    """End containerd, shims and containers of the instance in `directory`, whoever started it, and their cgroups.

    Raises LabError when something does not end.
    """

    def left() -> set[int]:
        own = _own_pids(directory)
        return own | descendants(own)

    kill_all(left)
    for tree in map(Tree, _cgroup_paths(_bundles(directory))):  # what was orphaned, and what somebody else moved
        tree.kill()
        tree.remove()
    for address in shim_sockets(directory):
        address.unlink(missing_ok=True)


def shim_sockets(directory: Path) -> list[Path]:
    """The sockets of the instance's shims; containerd has them outside its directory, for machine and lab alike."""
    found = set()
    for bundle in _bundles(directory):
        with contextlib.suppress(FileNotFoundError):  # it is just being removed
            found.add(Path((bundle / "address").read_text().removeprefix("unix://")))
    return sorted(found)


def _socket(directory: Path) -> Path:
    socket_path(directory, "containerd.sock.ttrpc")  # the longer of its two
    return socket_path(directory, "containerd.sock")


def _own_pids(directory: Path) -> set[int]:
    """The instance's containerd and shims, and the runcs whose shims have ended before, told by their arguments."""
    config, socket = str(directory.absolute() / "containerd.toml"), str(_socket(directory))
    runc = str(directory.absolute() / "runc" / "k8s.io")
    return {
        pid
        for pid in all_pids()
        if (argv := argv_of(pid))
        and (
            (Path(argv[0]).name == "containerd" and config in argv)
            or (Path(argv[0]).name.startswith("containerd-shim") and socket in argv)
            or (Path(argv[0]).name == "runc" and runc in argv)
        )
    }


def _bundles(directory: Path) -> list[Path]:
    return list((directory / "state" / "io.containerd.runtime.v2.task" / "k8s.io").glob("*/"))


def _cgroup_paths(bundles: list[Path]) -> list[str]:
    specs = [json.loads(file.read_text()) for bundle in bundles if (file := bundle / "config.json").exists()]
    return [told_of_spec(path) for spec in specs if (path := spec["linux"].get("cgroupsPath"))]


def _has_capability(number: int) -> bool:
    """Source: capabilities(7); /proc/[pid]/status, CapEff."""
    lines = Path("/proc/self/status").read_text().splitlines()
    effective = next(line.split()[1] for line in lines if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> number & 1)


def _filesystem(directory: Path) -> str:
    """The type of the file system that holds a directory."""
    device = directory.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    return next((mount.kind for mount in mounts() if mount.device == wanted), "")
