"""A real kubelet, with an API server or with static pods alone, confined so that the machine never notices.

Source: kubelet.config.k8s.io/v1beta1, KubeletConfiguration.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from integration.lab.cgroups import Tree, version
from integration.lab.directory import cgroup_root, lab_name
from integration.lab.images import BUSYBOX
from integration.lab.naming import driver
from integration.lab.ports import free_ports
from integration.lab.process import LabError, Process, Service, all_pids, argv_of, kill_all
from integration.programs import build

START_S = 180
STARTS = 3
MANAGES = "Starting Kubelet Plugin Manager"
"""What it logs once its cgroups are made."""
LACKS_CONTROLLERS = "has some missing controllers"
"""What it ends with where systemd takes a controller of its cgroups away again; on a node it is then started anew."""
POD_S = 300
"""Kubelet tries again 10 s and more after each failure, and a busy machine is slow."""
ANSWER_S = 60
"""These three are long, for an emulated node with a busy host."""
POLL_S = 0.2
"""Kubelet logs each question."""

# What kubelet sets on every node (pkg/kubelet/cm, setupKernelTunables): it gets files to play with instead.
SYSCTLS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
ROOT_MEMORY_V1 = Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")
EVICTION_SIGNALS = ("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available")
CONFINE = """\
set -e
sysctls=$1
shift
mount --make-rprivate /proc
for name in $(cd "$sysctls" && find . -type f); do mount --bind "$sysctls/$name" "/proc/sys/$name"; done
exec "$@"
"""
LOG_DIRECTORIES = (Path("/var/log/pods"), Path("/var/log/containers"))
"""Compiled into kubelet 1.20, and below: it removes what is there of pods that it does not know."""


@dataclass(frozen=True, slots=True)
class PodStatus:
    """A pod as kubelet reports it. `containers` are the CRI ids by name, of those that run."""

    name: str
    namespace: str
    uid: str
    phase: str
    containers: Mapping[str, str]
    restarts: int

    @property
    def is_running(self) -> bool:
        return self.phase == "Running" and bool(self.containers)


class Kubelet(Service):
    """A kubelet in `directory` (a lab's), whose pods run in `cgroup_root`, by default the lab's own.

    `log` is its log. Its node's name is the lab's, so a static pod `web` is called `web-<lab's name>`. `settings` are
    more keys of its configuration.
    """

    def __init__(
        self,
        directory: Path,
        runtime_endpoint: Path,
        root_cgroup: str | None = None,
        *,
        settings: Mapping[str, Any] | None = None,
        kubeconfig: Path | None = None,
    ) -> None:
        """`kubeconfig`: of the API server that it joins, as a node of its `node`'s name; None: it stands alone."""
        self.directory = directory.absolute() / "kubelet"
        super().__init__("kubelet", directory.absolute() / "kubelet.log")
        self.node = lab_name(directory)
        self.cgroup_root = root_cgroup or cgroup_root(directory)
        self.root_dir = self.directory / "root"
        self._endpoint = runtime_endpoint.absolute()
        self._settings = settings or {}
        self.kubeconfig = kubeconfig
        self._manifests = self.directory / "manifests"
        self._log_began = 0
        self._port = 0

    def start(self, until_ready: bool = True) -> None:
        """Start it and return once it is ready, unless told not to wait.

        Raises LabError when it is not built, ends (as it does when its runtime does not answer) or is not ready in
        three minutes, or when a kubelet that is no lab's runs.
        """
        _refuse_beside_foreign()
        program = find_kubelet()
        Tree(self.cgroup_root).make()
        for directory in (self._manifests, self.directory / "sysctls"):
            directory.mkdir(parents=True, exist_ok=True)
        _share(self.directory)
        for name in SYSCTLS:
            copy = self.directory / "sysctls" / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text((Path("/proc/sys") / name).read_text())
        config = self.directory / "config.json"
        config.write_text(json.dumps(self._configuration(program), indent=1))
        # A mount namespace of its own for the sysctls; volumes that it mounts still reach the runtime's.
        confine = ["unshare", "--mount", "--propagation", "unchanged", "sh", "-c", CONFINE, "kubelet"]
        command: list[str | Path] = [
            *confine,
            self.directory / "sysctls",
            program,
            *self._flags(program),
            f"--config={config}",
        ]
        self._process = self._launch(command)
        for starts_left in reversed(range(STARTS if until_ready else 0)):
            try:
                self._process.wait_until(self._manages, START_S, "it to manage pods", POLL_S)
                return
            except LabError:
                if not starts_left or self._process.is_alive() or LACKS_CONTROLLERS not in self._logged():
                    raise
                self._process = self._launch(command)

    def _launch(self, command: Sequence[str | Path]) -> Process:
        self._log_began = self.log.stat().st_size if self.log.exists() else 0
        return Process("kubelet", command, self.log)

    def _manages(self) -> bool:
        return self.is_ready() and MANAGES in self._logged()

    def _logged(self) -> str:
        """What it has logged since its last start."""
        return self.log.read_bytes()[self._log_began :].decode(errors="replace")

    def is_ready(self) -> bool:
        """Whether its read-only port answers."""
        with contextlib.suppress(OSError):
            return self._get("/healthz") == b"ok"
        return False

    # --- pods ---

    def add_pod(self, manifest: Mapping[str, Any]) -> None:
        """Have a static pod started; one of the same name is replaced."""
        file = self._manifests / f"{manifest['metadata']['name']}.json"
        unseen = self._manifests / f".{file.name}"  # kubelet would read half a file
        unseen.write_text(json.dumps(manifest))
        unseen.rename(file)

    def remove_pod(self, name: str) -> None:
        """Have a static pod ended, after its grace period."""
        (self._manifests / f"{name}.json").unlink()

    def run(self, manifest: Mapping[str, Any]) -> PodStatus:
        """`add_pod` and `wait_running`."""
        self.add_pod(manifest)
        return self.wait_running(manifest["metadata"]["name"])

    def end(self, pod: PodStatus) -> None:
        """`remove_pod` and `wait_gone`."""
        self.remove_pod(pod.name)
        self.wait_gone(pod)

    @contextlib.contextmanager
    def running(self, manifest: Mapping[str, Any]) -> Iterator[PodStatus]:
        """`run`, and `end` afterwards, unless it fails."""
        pod = self.run(manifest)
        yield pod
        self.end(pod)

    def pods(self) -> dict[str, PodStatus]:
        """All pods, by the names that their manifests give them. Raises OSError when kubelet does not answer."""
        answer = json.loads(self._get("/pods"))
        found = [_pod_status(item, f"-{self.node}") for item in answer["items"] or []]
        return {pod.name: pod for pod in found}

    def statuses(self) -> dict[str, Any]:
        """What /pods has as the status of each pod, by the names that their manifests give them. Raises OSError.

        Source: Kubernetes, v1, PodStatus.
        """
        suffix = f"-{self.node}"
        items = json.loads(self._get("/pods"))["items"] or []
        return {item["metadata"]["name"].removesuffix(suffix): item["status"] for item in items}

    def counted(self, name: str) -> float:
        """The sum of one of kubelet's own counters over its labels; 0 when it has none. Raises OSError."""
        text = self._get("/metrics").decode()
        return sum(float(value) for value in re.findall(rf"(?m)^{re.escape(name)}(?:\{{.*\}})? (\S+)$", text))

    def summary(self) -> Any:
        """What /stats/summary says, parsed. Raises OSError when kubelet does not answer.

        Source: kubelet, stats/v1alpha1, Summary.
        """
        return json.loads(self._get("/stats/summary"))

    def wait_running(self, name: str) -> PodStatus:
        """Wait until all containers of a pod run. Raises LabError after five minutes."""

        def running() -> PodStatus | None:
            pod = self.pods().get(name)
            return pod if pod and pod.is_running else None

        pod = self._running().wait_until(running, POD_S, f"pod {name} to run", POLL_S)
        assert pod is not None
        return pod

    def wait_gone(self, pod: PodStatus) -> None:
        """Wait until kubelet forgot a removed pod and its own cgroup is gone. Raises LabError after five minutes."""
        kubepods = f"{self.cgroup_root.rstrip('/')}/kubepods"
        own = [Tree(f"{kubepods}{qos}/pod{pod.uid}") for qos in ("", "/burstable", "/besteffort")]

        def gone() -> bool:
            # Beside v1, runc makes cgroups in v2 too, which kubelet does not know and leaves.
            return pod.name not in self.pods() and not any(tree.directories([version()]) for tree in own)

        self._running().wait_until(gone, POD_S, f"pod {pod.name} to go", POLL_S)

    # --- how it is run ---

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=ANSWER_S) as answer:
            content: bytes = answer.read()
            return content

    def _flags(self, program: Path) -> Sequence[str]:
        runtime = ["--container-runtime=remote"] if "--container-runtime string" in _help(program) else []
        return [
            *runtime,
            f"--container-runtime-endpoint=unix://{self._endpoint}",
            f"--hostname-override={self.node}",
            f"--root-dir={self.root_dir}",
            f"--cert-dir={self.directory / 'pki'}",
            *([f"--kubeconfig={self.kubeconfig}"] if self.kubeconfig else []),
            "--v=2",
        ]

    def _configuration(self, program: Path) -> dict[str, Any]:
        port, self._port, healthz = free_ports(3)
        known = _help(program)
        # Device plugins would empty the machine's /var/lib/kubelet/device-plugins; later kubelets can't leave them out.
        no_device_plugins = {"featureGates": {"DevicePlugins": False}} if "DevicePlugins=" in known else {}
        takes_v1 = {"failCgroupV1": False} if "--fail-cgroupv1" in known and version() == 1 else {}
        return {
            **no_device_plugins,
            **takes_v1,
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "staticPodPath": str(self._manifests),
            "fileCheckFrequency": "1s",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "address": "127.0.0.1",
            "port": port,
            "readOnlyPort": self._port,
            "healthzPort": healthz,
            "cgroupDriver": driver().value,
            "cgroupRoot": self.cgroup_root,
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "resolvConf": "",
            "volumePluginDir": str(self.directory / "plugins"),
            "makeIPTablesUtilChains": False,
            # A full disk of the machine is not the lab's matter: no image is collected, no pod evicted.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": dict.fromkeys(EVICTION_SIGNALS, "0%"),
            **self._settings,
        }


def static_pod(
    name: str,
    command: Sequence[str] = ("sleep", "2147483647"),
    *,
    namespace: str = "default",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    resources: Mapping[str, Mapping[str, str]] | None = None,
    grace_s: int = 1,
) -> dict[str, Any]:
    """The manifest of a pod with one container, `main`, of the lab's image on the host's network."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
        },
        "spec": {
            "hostNetwork": True,
            "terminationGracePeriodSeconds": grace_s,
            "containers": [
                {
                    "name": "main",
                    "image": BUSYBOX,
                    "imagePullPolicy": "Never",
                    "command": list(command),
                    "resources": dict(resources or {}),
                }
            ],
        },
    }


def available_bytes() -> int:
    """memory.available as kubelet counts it: on v1 by the root cgroup, on v2 by /proc/meminfo."""
    if ROOT_MEMORY_V1.exists():
        inactive = dict(_pairs(ROOT_MEMORY_V1.with_name("memory.stat"), " "))["total_inactive_file"]
        return free_bytes() + int(inactive)
    return free_bytes() + _meminfo()["Inactive(file)"]


def free_bytes() -> int:
    """Of that, what no page cache has either."""
    if ROOT_MEMORY_V1.exists():
        return _meminfo()["MemTotal"] - int(ROOT_MEMORY_V1.read_text())
    return _meminfo()["MemFree"]


def _meminfo() -> dict[str, int]:
    """In bytes."""
    return {key: int(rest.split()[0]) * 1024 for key, rest in _pairs(Path("/proc/meminfo"), ":")}


def _pairs(file: Path, separator: str) -> list[tuple[str, str]]:
    return [(key, rest) for key, _, rest in (line.partition(separator) for line in file.read_text().splitlines())]


def _share(directory: Path) -> None:
    """Let the runtime see what kubelet mounts there, in its own mount namespace, also where / is not shared."""
    if not os.path.ismount(directory):
        subprocess.run(["mount", "--bind", directory, directory], check=True)
        subprocess.run(["mount", "--make-shared", directory], check=True)


def find_kubelet() -> Path:
    """The kubelet to use: $KUBELET, or the one that is built. Raises LabError when there is none."""
    if chosen := os.environ.get("KUBELET"):
        if not os.access(chosen, os.X_OK):
            raise LabError(f"KUBELET={chosen} is not a program: set it to a kubelet's path, or unset it")
        return Path(chosen).absolute()
    return build.find("kubelet")


def known_gates() -> frozenset[str]:
    """The feature gates that the kubelet has and that can be switched: those that are always on are not named."""
    return frozenset(re.findall(r"(\w+)=true\|false", _help(find_kubelet())))


def end(directory: Path) -> None:
    """End the kubelet of the lab in `directory`, whoever started it, and remove its pods' logs."""
    name = lab_name(directory)
    kill_all(lambda: [pid for pid, argv in _kubelets() if f"--hostname-override={name}" in argv])
    for logs in LOG_DIRECTORIES:
        for path in logs.glob(f"*-{name}_*"):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        with contextlib.suppress(OSError):  # others' logs are in it, or it is not there
            logs.rmdir()


def _kubelets() -> list[tuple[int, list[str]]]:
    found = [(pid, argv_of(pid)) for pid in all_pids()]
    return [(pid, argv) for pid, argv in found if argv and Path(argv[0]).name.startswith("kubelet")]


def _refuse_beside_foreign() -> None:
    for pid, argv in _kubelets():
        if not any(arg.startswith("--hostname-override=criproxy-lab-") or arg == "--help" for arg in argv):
            raise LabError(f"a kubelet runs here (pid {pid}), and the lab's would remove its pods' logs: stop it first")


def _help(program: Path) -> str:
    return subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout


def _pod_status(item: Mapping[str, Any], suffix: str) -> PodStatus:
    metadata, status = item["metadata"], item.get("status", {})
    containers = status.get("containerStatuses", [])
    running = [container for container in containers if "running" in container["state"]]
    return PodStatus(
        name=metadata["name"].removesuffix(suffix),
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        phase=status.get("phase", ""),
        containers={one["name"]: one["containerID"].partition("://")[2] for one in running},
        restarts=sum(container["restartCount"] for container in containers),
    )
