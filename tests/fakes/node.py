"""A node in a directory: a systemd that reads its unit files, and a kubelet that goes by its flags and files.

It has a way of its own to read them, by shlex and PyYAML, so that it does not share a mistake with what it tests.
"""

import itertools
import json
import posixpath
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from criproxy.commands.attach.edits import NodeError
from criproxy.commands.attach.host import Machine, TimedOutError

LISTEN = "/run/criproxy/criproxy.sock"
STATUS = "/run/criproxy/criproxy-status.sock"
RUNTIME = "/run/containerd/containerd.sock"
UNIT = "kubelet.service"
DROPIN = "/etc/systemd/system/kubelet.service.d/zz-criproxy.conf"
STATE = "/var/lib/criproxy/attach.json"
K3S_UNIT = """\
[Unit]
Description=Lightweight Kubernetes
[Service]
Type=notify
EnvironmentFile=-/etc/default/%N
KillMode=process
Delegate=yes
ExecStartPre=-/sbin/modprobe br_netfilter
ExecStart=/usr/local/bin/k3s \\
    server \\
	'--node-label=a=b' \\

"""
RKE2_UNIT = """\
[Service]
Type=notify
EnvironmentFile=-/etc/default/%N
KillMode=process
Delegate=yes
ExecStart=/usr/local/bin/rke2 server
"""
RANCHERS_RUNTIME = "/run/k3s/containerd/containerd.sock"
KUBEADM_UNIT = """\
[Unit]
Description=kubelet: The Kubernetes Node Agent
[Service]
ExecStart=/usr/bin/kubelet
Restart=always
"""
KUBEADM_DROPIN = """\
# Note: This dropin only works with kubeadm and kubelet v1.11+
[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
"""
CONFIG = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nhealthzPort: 10248  # as ever\n"
NEW_HELP = (
    '      --container-runtime-endpoint string   The endpoint (default "unix:///run/containerd/containerd.sock")\n'
)
OLD_HELP = (
    '      --container-runtime string            The runtime: docker, remote. (default "docker")\n'
    '      --container-runtime-endpoint string   [Experimental] (default "unix:///var/run/dockershim.sock")\n'
)


@dataclass
class FakeNode(Machine):
    """`before_run` is called with each command before it is done: there a test interferes.

    A kubelet that `flaps` is started anew all the time; `drops` is the end of words that never reach it. `others_call`:
    somebody else uses criproxy. `unit` is the one that runs kubelet.
    """

    root: Path
    unit: str = UNIT
    help: str = NEW_HELP
    active: str = "active"
    served: set[str] = field(default_factory=lambda: {LISTEN, RUNTIME})
    healthy: Callable[[str], bool] = lambda endpoint: True
    dies: Callable[[str], bool] = lambda endpoint: False
    silent: bool = False
    others_call: bool = False
    flaps: Callable[[str], bool] = lambda endpoint: False
    drops: str = "nothing"
    criproxy: bool = True
    runtime_of_criproxy: str = RUNTIME
    shown: Mapping[str, Any] = field(default_factory=dict)
    """What else is in criproxy's status."""
    offline: Sequence[tuple[str, str]] = ()
    before_run: Callable[[Sequence[str]], None] = lambda command: None
    ran: list[str] = field(default_factory=list)
    calls: int = 7
    time_s: float = 1000.0
    reload_s: float = 0.0
    """What a reload takes systemd, which answers nobody meanwhile."""
    unheard: int = 0
    """How many of the next reloads never reach systemd."""
    _reads_until_s: float = 0.0
    _reloads: bool = False
    _resets_at_s: float | None = None
    pid: int = 100
    restarts: int = 0
    endpoint: str = ""
    _loaded: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.write("/usr/bin/kubelet", "")
        (self.root / "usr/bin/kubelet").chmod(0o755)
        self.write("/run/containerd/containerd.sock", "")

    # --- its files --------------------------------------------------------------------------------------------------

    def write(self, path: str, text: str) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def text(self, path: str) -> str | None:
        file = self.root / path.lstrip("/")
        return file.read_text() if file.exists() else None

    def files(self) -> dict[str, bytes]:
        """Everything that a node keeps, but processes and our own state."""
        apart = ("proc", "sys", "run")
        found = {str(path.relative_to(self.root)): path for path in self.root.rglob("*") if path.is_file()}
        return {
            name: path.read_bytes()
            for name, path in found.items()
            if name.split("/")[0] not in apart and f"/{name}" != STATE
        }

    def kubeadm(self, flags: str = "--container-runtime-endpoint=unix:///run/containerd/containerd.sock") -> "FakeNode":
        """As kubeadm sets a node up; kubelet runs."""
        self.write("/usr/lib/systemd/system/kubelet.service", KUBEADM_UNIT)
        self.write("/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf", KUBEADM_DROPIN)
        self.write("/var/lib/kubelet/config.yaml", CONFIG)
        self.write("/var/lib/kubelet/kubeadm-flags.env", f'KUBELET_KUBEADM_ARGS="{flags}"\n')
        return self.boot()

    def rancher(self, product: str, unit: str) -> "FakeNode":
        """As the installer of k3s or RKE2 sets a node up; it runs. Source: get.k3s.io, get.rke2.io."""
        self.unit = unit
        self.write(f"/etc/systemd/system/{unit}", K3S_UNIT if product == "k3s" else RKE2_UNIT)
        self.write(f"/etc/rancher/{product}/config.yaml", "write-kubeconfig-mode: '0644'\ntls-san:\n- a.example\n")
        self.write(RANCHERS_RUNTIME, "")
        self.served.add(RANCHERS_RUNTIME)
        self.runtime_of_criproxy = RANCHERS_RUNTIME
        return self.boot()

    def boot(self) -> "FakeNode":
        self.reload()
        if self.active == "active":
            self.start()
        return self

    # --- systemd ----------------------------------------------------------------------------------------------------

    def container(self, name: str, oom_group: str) -> str:
        """A running container's scope, with its memory.oom.group; returns the file."""
        file = f"/sys/fs/cgroup/kubepods.slice/kubepods-pod{name}.slice/cri-containerd-{name}.scope/memory.oom.group"
        self.write(file, f"{oom_group}\n")
        return file

    def _reset_oom_groups(self) -> None:
        for file in (self.root / "sys/fs/cgroup").rglob("*.scope/memory.oom.group"):
            file.write_text("0\n")

    def reload(self) -> None:
        """Systemd resets memory.oom.group before it answers (262), and a moment later (257)."""
        self._reset_oom_groups()
        self._resets_at_s = self.time_s + 1.0
        self._loaded = self._read()

    def _read(self) -> dict[str, str]:
        """The unit's files as they are now."""
        found: dict[str, str] = {}
        for directory in ("/etc/systemd/system", "/usr/lib/systemd/system"):
            if (text := self.text(f"{directory}/{self.unit}")) is not None:
                found[f"{directory}/{self.unit}"] = text
                break
        dropins: dict[str, str] = {}
        for directory in ("/usr/lib/systemd/system", "/etc/systemd/system"):
            for path in (self.root / f"{directory[1:]}/{self.unit}.d").glob("*.conf"):
                dropins[path.name] = f"{directory}/{self.unit}.d/{path.name}"
        if found:
            found |= {path: self.text(path) or "" for _, path in sorted(dropins.items())}
        return found

    def _begin_reload(self, timeout_s: float) -> None:
        self._reads_until_s = max(self.time_s, self._reads_until_s) + self.reload_s
        self._reloads = True
        self._wait("daemon-reload", timeout_s)

    def _wait(self, command: str, timeout_s: float) -> None:
        """Until systemd answers."""
        wait_s = max(0.0, self._reads_until_s - self.time_s)
        self.sleep(min(wait_s, timeout_s))
        if wait_s > timeout_s:
            raise TimedOutError(f"systemctl {command} has not ended within {timeout_s:.0f} s")

    def argv(self) -> list[str]:
        return self._started()[0]

    def _started(self) -> tuple[list[str], dict[str, str]]:
        """The words of the unit's command, and its environment."""
        variables: dict[str, str] = {}
        command: list[str] = []
        for line in "\n".join(self._loaded.values()).replace("\\\n", " ").splitlines():
            key, _, value = line.partition("=")
            if key == "Environment":
                variables |= dict(word.split("=", 1) for word in shlex.split(value))
            elif key == "EnvironmentFile":
                text = self.text(value.removeprefix("-").replace("%N", self.unit.removesuffix(".service"))) or ""
                variables |= dict(word.split("=", 1) for word in shlex.split(text, comments=True))
            elif key == "ExecStart":
                command = shlex.split(value)
        words: list[str] = []
        for word in command:
            if word.startswith("$"):
                words += variables.get(word[1:], "").split()
            else:
                words.append(re.sub(r"\$\{(\w+)\}", lambda found: variables.get(found[1], ""), word))
        return words, variables

    def start(self) -> None:
        self._end()
        self.pid += 1
        self.write(f"/sys/fs/cgroup/system.slice/{self.unit}/cgroup.procs", "")
        argv, product = self.argv(), self.unit.partition("-")[0].removesuffix(".service")
        if product in ("k3s", "rke2"):
            argv = self._rancher_starts(product)
        shell = argv[:2] == ["/bin/sh", "-c"]
        if shell:
            argv = shlex.split(argv[2])
            argv = argv[1:] if argv[0] == "exec" else argv
        argv = [word for word in argv if not word.endswith(self.drops)]
        self.endpoint = self._uses(argv)
        dead = self.dies(self.endpoint) or self.endpoint.removeprefix("unix://") not in self.served
        self.active = "activating" if dead else "active"
        self.restarts += dead
        if dead:
            return
        if product == "k3s":
            argv = ["/usr/local/bin/k3s server", ""]  # it hides its arguments
        self.write(f"/proc/{self.pid}/cmdline", "".join(f"{word}\0" for word in argv))
        self.write(f"/proc/{self.pid}/comm", "k3s-server\n" if product == "k3s" else "kubelet\n")
        self.write("/proc/90/comm", "containerd-shim\n")
        self.write(f"/sys/fs/cgroup/system.slice/{self.unit}/cgroup.procs", f"90\n{self.pid}\n")

    def _rancher_starts(self, product: str) -> list[str]:
        """Kubelet's words: the defaults are written anew at each start, and what else is in the directory stays."""
        words, variables = self._started()
        if words[:2] == ["/bin/sh", "-c"]:
            words = shlex.split(words[2])
        words = words[[posixpath.basename(word) for word in words].index(product) :]
        data = variables.get(f"{product.upper()}_DATA_DIR", f"/var/lib/rancher/{product}")
        given: dict[str, list[str]] = {"kubelet-arg": [], "data-dir": [data]}
        options = {"-c": "--config", "-d": "--data-dir"}
        flags = {options.get(key, key): value for key, value in itertools.pairwise(words)}
        config = flags.get("--config", f"/etc/rancher/{product}/config.yaml")
        config = variables.get(f"{product.upper()}_CONFIG_FILE", config)
        main = self.root / config.lstrip("/")
        for path in [main, *sorted(main.with_name(f"{main.name}.d").glob("*.y*ml"))]:
            for key, value in (yaml.safe_load(path.read_text()) or {}).items():
                values = value if isinstance(value, list) else [value]
                given[key.rstrip("+")] = (given.get(key.rstrip("+"), []) if key.endswith("+") else []) + values
        directory = f"{flags.get('--data-dir', given['data-dir'][-1])}/agent/etc/kubelet.conf.d"
        defaults = f"{CONFIG}containerRuntimeEndpoint: unix://{RANCHERS_RUNTIME}\n"
        self.write(f"{directory}/00-{product}-defaults.conf", defaults)
        return ["kubelet", f"--config-dir={directory}", *(f"--{argument}" for argument in given["kubelet-arg"])]

    def stop(self) -> None:
        self.active = "inactive"
        self._end()

    def _end(self) -> None:
        shutil.rmtree(self.root / f"proc/{self.pid}", ignore_errors=True)

    def _uses(self, argv: list[str]) -> str:
        flags = dict(word.split("=", 1) for word in argv if "=" in word)
        if endpoint := flags.get("--container-runtime-endpoint"):
            return endpoint
        paths = [flags.get("--config", "")]
        if directory := flags.get("--config-dir"):
            found = sorted(path for path in (self.root / directory[1:]).rglob("*.conf") if path.is_file())
            paths += ["/" + str(path.relative_to(self.root)) for path in found]
        merged: dict[str, str] = {}
        for path in paths:
            merged |= yaml.safe_load((self.text(path) if path else None) or "{}")
        return merged.get("containerRuntimeEndpoint") or f"unix://{RUNTIME}"

    def _shown(self, words: Sequence[str]) -> str:
        if "--property=NeedDaemonReload" in words:
            return f"NeedDaemonReload=no\n\nNeedDaemonReload={'no' if self._read() == self._loaded else 'yes'}\n"
        if words[0] != self.unit:
            return "LoadState=not-found\nActiveState=inactive\nSubState=dead\nMainPID=0\nNRestarts=0\n"
        if self.flaps(self.endpoint):
            self.restarts += 1
            self.start()
        return self._show()

    def _show(self) -> str:
        files = list(self._loaded)
        running = self.active == "active"
        return (
            f"LoadState={'loaded' if files else 'not-found'}\nActiveState={self.active if files else 'inactive'}\n"
            f"SubState={'running' if running else 'auto-restart' if self.active == 'activating' else 'dead'}\n"
            f"MainPID={self.pid if running else 0}\nNRestarts={self.restarts}\n"
            f"FragmentPath={files[0] if files else ''}\nDropInPaths={' '.join(files[1:])}\n"
            f"{self._environment()}"
        )

    def _environment(self) -> str:
        """As `systemctl show` prints it: one line of assignments, and one for each file."""
        lines = "\n".join(self._loaded.values()).splitlines()
        words = [word for line in lines if line.startswith("Environment=") for word in shlex.split(line[12:])]
        files = [line.partition("=-")[2] for line in lines if line.startswith("EnvironmentFile=-")]
        shown = "".join(f"EnvironmentFiles={file} (ignore_errors=yes)\n" for file in files)
        return f"Environment={shlex.join(words)}\n{shown}"

    # --- the machine ------------------------------------------------------------------------------------------------

    def run(self, command: Sequence[str], timeout_s: float) -> tuple[int, str]:
        self.before_run(command)
        if command[0] == "systemctl" and command[1] != "daemon-reload":
            self._wait(" ".join(command[1:]), timeout_s)
        match list(command):
            case ["systemctl", "show", *words]:
                return 0, self._shown(words)
            case ["systemctl", "daemon-reload"] if self.unheard:
                self.unheard -= 1
                self.sleep(25.0)
                return 1, "Failed to reload daemon: Connection timed out\n"
            case ["systemctl", "daemon-reload"]:
                self._begin_reload(timeout_s)
            case ["systemctl", "restart", _]:
                self.start()
            case ["systemctl", "reset-failed", _]:
                return 0, ""
            case ["journalctl", *_]:
                return 0, "kubelet says why"
            case [_, "--help"]:
                return 0, self.help
            case _:
                raise AssertionError(command)
        self.ran.append(" ".join(command[1:]))
        return 0, ""

    def version(self, socket: str) -> str:
        if socket not in self.served:
            raise NodeError(f"{socket}: UNAVAILABLE")
        return "containerd 1.6"

    def get(self, host: str, port: int, path: str) -> str:
        if path == "/healthz":
            if self.active != "active" or not self.healthy(self.endpoint):
                raise NodeError(f"http://{host}:{port}/healthz answers 500: PLEG is not healthy")
            seen = _plain(self.endpoint.removeprefix("unix://")) == LISTEN and not self.silent
            self.calls += self.others_call or seen
            return "ok"
        raise AssertionError(path)

    def ask(self, socket: str, question: str) -> str:
        if not self.criproxy or _plain(socket) != STATUS:
            raise NodeError(f"no criproxy answers at {socket} (No such file or directory)")
        if question == "/metrics":
            return f'criproxy_calls_total{{method="Version",code="OK",hooked="false"}} {self.calls}.0\n'
        pods = [{"namespace": namespace, "name": name} for namespace, name in self.offline]
        runtime = {"socket": self.runtime_of_criproxy, "ready": True, "problem": ""}
        attached = {"state": "unknown", "where": "no kubelet.service runs"}
        return json.dumps({"runtime": runtime, "pods": pods, "attached": attached, **self.shown})

    def now_s(self) -> float:
        return self.time_s

    def sleep(self, seconds: float) -> None:
        self.time_s += seconds
        if self._reloads and self.time_s >= self._reads_until_s:
            self._reloads = False
            self.reload()
        if self._resets_at_s is not None and self.time_s >= self._resets_at_s:
            self._resets_at_s = None
            self._reset_oom_groups()


def _plain(path: str) -> str:
    """A path without the link that /var/run is."""
    return path.removeprefix("/var") if path.startswith("/var/run/") else path
