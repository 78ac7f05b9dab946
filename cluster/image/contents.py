"""What is in the image: two directories, made with mmdebstrap and pip, and what Debian's packages there are."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from cluster.image.oci import MACHINES

CLUSTER: Final = Path(__file__).resolve().parents[1]
RELEASE: Final = "bookworm"
PYTHON: Final = "3.11"
PACKAGES: Final = ("base-files", f"libpython{PYTHON}-stdlib", f"python{PYTHON}-minimal", "libstdc++6", "tzdata")
"""libstdc++6 is for gRPC, tzdata for schedules."""

PLATFORMS: Final = ("manylinux2014", "manylinux_2_28", "manylinux_2_34")
"""The wheels that Debian's C library takes, without the machine."""
LOADERS: Final = {"x86_64": "lib64/ld-linux-x86-64.so.2", "aarch64": "lib/ld-linux-aarch64.so.1"}
PACKAGED: Final = "usr/share/criproxy/debian-packages.json"
"""What `make_base` unpacked: name, version and architecture of each package."""
HOST_PACKAGES: Final = "usr/share/criproxy/host"
"""criproxy's own packages for the hosts' Debian releases, for the installer."""
USER: Final = 65532
"""As in the Deployment; nobody else's."""

_LEFT_OUT: Final = (
    *("usr/share/man", "usr/share/locale", "usr/share/info", "usr/share/lintian", "usr/share/bash-completion"),
    *("usr/share/bug", "var", "dev", "proc", "sys", "boot", "home", "media", "mnt", "opt", "root", "srv", "run"),
)
"""Of the packages' files. Documentation goes but for the copyrights."""

_LISTED: Final = "var/packages"

_LAUNCHER: Final = f"""\
#!/usr/bin/python{PYTHON} -ISB
import sys

sys.path.insert(0, "/{{directory}}")

from {{module}}.cli import main

sys.exit(main())
"""
"""-I: neither environment nor current directory nor a user's packages change what runs; -S: nor do Debian's."""

SETTINGS: Final[Mapping[str, object]] = {
    "Labels": {"org.opencontainers.image.licenses": "Apache-2.0"},
    "User": f"{USER}:{USER}",
    "Env": ["PATH=/usr/bin:/bin", "LANG=C.UTF-8"],
    "Entrypoint": ["/usr/bin/criproxy-cluster"],
    "WorkingDir": "/",
}


@dataclass(frozen=True, slots=True)
class Program:
    """A command in /usr/bin, and its code and wheels in a directory of its own."""

    name: str
    code: Path
    """Its package."""
    lock: Path
    sources: str = ""
    """What of the lock has no wheel, for no machine: this Python's setuptools builds it."""

    @property
    def directory(self) -> str:
        return f"usr/lib/{self.name}"


PROGRAMS: Final = (
    Program("criproxy-cluster", CLUSTER / "criproxy_cluster", CLUSTER / "requirements.lock"),
    Program("criproxy", CLUSTER.parent / "criproxy", CLUSTER.parent / "requirements.lock", sources="cgroupspy"),
)


class BuildError(Exception):
    """The image can't be built; the message says why and what to do."""


def make_base(root: Path, mirror: str, architecture: str, python: Path) -> None:
    """Debian's part, below `root`, compiled by the Python that is in `python`. Raises BuildError."""
    tree = root.with_name(f"{root.name}.tar")
    archive = f"deb {mirror} {RELEASE} main"
    # A mirror may be a snapshot, whose index is of no date that holds any more; it is signed all the same.
    lasting = '--aptopt=Acquire::Check-Valid-Until "false"'
    packages = f"--include={','.join(PACKAGES)}"
    listed = f'--extract-hook=ls "$1/var/cache/apt/archives" >"$1/{_LISTED}"'
    options = ("-q", "--variant=extract", f"--architectures={architecture}", lasting, packages, listed)
    _run(["mmdebstrap", *options, RELEASE, str(tree), archive], "mmdebstrap")
    root.mkdir()
    _run(["tar", "-x", "--no-same-owner", "--exclude=./dev", "-f", str(tree), "-C", str(root)], "tar")
    tree.unlink()
    packaged = root / PACKAGED
    packaged.parent.mkdir(parents=True)
    packaged.write_text(json.dumps(unpacked((root / _LISTED).read_text()), indent=1))
    for name in _LEFT_OUT:
        shutil.rmtree(root / name, ignore_errors=True)
    for path in (root / "usr/share/doc").rglob("*"):
        if not path.is_dir() and path.name != "copyright":
            path.unlink()
    for name in ("tmp", "proc", "sys", "dev", "run"):
        (root / name).mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)
    (root / "etc/nsswitch.conf").write_text("hosts: files dns\n")
    (root / "etc/passwd").write_text(f"root:x:0:0:root:/:/bin/false\nreplica:x:{USER}:{USER}:replica:/:/bin/false\n")
    (root / "etc/group").write_text(f"root:x:0:\nreplica:x:{USER}:\n")
    compile_python(python, root, f"usr/lib/python{PYTHON}")


def make_code(root: Path, architecture: str, python: Path, host_packages: Sequence[Path] = ()) -> None:
    """Our part, below `root`, compiled by the Python that is in `python`. Raises BuildError or OSError."""
    (root / "usr/bin").mkdir(parents=True)
    for program in PROGRAMS:
        _add_program(root, program, MACHINES[architecture])
        compile_python(python, root, program.directory)
    installer = root / "usr/bin/criproxy-install"
    script = (CLUSTER.parent / "packaging/installer").read_text()
    installer.write_text(script.replace("#!/usr/bin/env python3", f"#!/usr/bin/python{PYTHON} -ISB"))
    installer.chmod(0o755)
    (root / HOST_PACKAGES).mkdir(parents=True)
    for package in host_packages:
        if package.name.endswith(f"_{architecture}.deb"):
            shutil.copy(package, root / HOST_PACKAGES)
    add_license(root)


def _add_program(root: Path, program: Program, machine: str) -> None:
    code = root / program.directory
    built = (f"--no-binary={program.sources}", "--no-build-isolation") if program.sources else ()
    options = ("--no-deps", "--require-hashes", "--only-binary=:all:", *built, "--no-compile", f"--target={code}")
    platforms = (f"--platform={one}_{machine}" for one in PLATFORMS)
    of_image = ("--implementation=cp", f"--python-version={PYTHON}", *platforms)
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "--no-input", "install"]
    _run([*pip, *options, *of_image, "-r", str(program.lock)], "pip")
    shutil.rmtree(code / "bin", ignore_errors=True)
    shutil.copytree(program.code, code / program.code.name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in sorted(code.rglob("*.dist-info/*")):  # pip's own notes: where it installed, and how
        if path.name in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json"):
            path.unlink()
    for path in code.rglob("*"):
        if path.is_file():
            path.chmod(0o644)
    launcher = root / "usr/bin" / program.name
    launcher.write_text(_LAUNCHER.format(directory=program.directory, module=program.code.name))
    launcher.chmod(0o755)


def add_license(root: Path) -> None:
    """criproxy's own: Debian's packages and the wheels have theirs beside them."""
    folder = root / "usr/share/doc/criproxy-cluster"
    folder.mkdir(parents=True)
    shutil.copy(CLUSTER / "LICENSE", folder)


def compile_python(base: Path, root: Path, directory: str) -> None:
    """Compile all of `root`/`directory` with the Python in `base`, which runs by its own loader. Raises BuildError.

    Bytecode is of a version of Python and of no machine, so `base` is of this one, whatever the image is for.
    """
    machine = os.uname().machine
    libraries = f"{base}/lib/{machine}-linux-gnu:{base}/usr/lib/{machine}-linux-gnu"
    program = base / f"usr/bin/python{PYTHON}"
    python = [str(base / LOADERS[machine]), "--library-path", libraries, str(program), "-sSB"]
    told = ["-m", "compileall", "-q", "-j", "1", "--invalidation-mode", "unchecked-hash"]
    where = ["-s", str(root), "-p", "/", str(root / directory)]
    environment = {"PYTHONHOME": str(base / "usr"), "PYTHONHASHSEED": "0", "PYTHONPYCACHEPREFIX": ""}
    _run([*python, *told, *where], "compiling", environment)


def unpacked(listed: str) -> list[dict[str, str]]:
    """Name, version and architecture of packages, by their files' names, in the names' order."""
    files = re.findall(r"^([^_\n]+)_([^_\n]+)_([^_\n]+)\.deb$", listed, re.MULTILINE)
    return [
        {"package": name, "version": unquote(version), "architecture": architecture}
        for name, version, architecture in sorted(files)
    ]


def find_mirror() -> str:
    """A Debian archive that apt uses. Raises BuildError."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    for uri in found:
        if uri.rstrip("/").endswith("/debian"):
            return uri
    raise BuildError("apt's sources name no Debian archive: give one with --mirror http://…/debian")


def _run(command: Sequence[str], what: str, environment: Mapping[str, str] | None = None) -> None:
    """Raises BuildError."""
    if shutil.which(command[0]) is None:
        raise BuildError(f"{command[0]} is missing: apt-get install {command[0]}")
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env={**os.environ, **(environment or {})}
    )
    if done.returncode != 0:
        raise BuildError(f"{what} failed: {(done.stderr or done.stdout).strip()[-2000:]}")
