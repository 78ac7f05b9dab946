"""The locked Python packages that the tests need, as a directory for a node's Python, whatever the host's is."""

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from integration.node.build import cached
from integration.node.spawn import NodeError

CHECKOUT = Path(__file__).resolve().parents[2]
TESTS_NEED = (
    *("pytest", "pytest-timeout", "iniconfig", "packaging", "pluggy", "pygments"),
    *("hypothesis", "sortedcontainers", "h2", "hyperframe"),
)
"""Of requirements-dev.lock, beside all of requirements.lock."""
SOURCE_ONLY = ("cgroupspy",)
PLATFORMS = ("manylinux2014", "manylinux_2_28", "manylinux_2_34")


def find_packages(cache: Path, python: str, machine: str) -> Path:
    """A directory for PYTHONPATH under this Python ("3.13") on this machine ("x86_64").

    Made, with pip and the network, when it is not there. Raises NodeError when pip fails.
    """
    locks = pinned((CHECKOUT / "requirements-dev.lock").read_text())
    wanted = [*pinned((CHECKOUT / "requirements.lock").read_text()), *TESTS_NEED]
    key = sha256("\n".join(locks[name] for name in wanted).encode()).hexdigest()[:12]
    with cached(cache, f"python{python}-{machine}-{key}", anew=False) as (directory, empty):
        if empty:
            wheels = [locks[name] for name in wanted if name not in SOURCE_ONLY]
            platforms = [f"--platform={platform}_{machine}" for platform in PLATFORMS]
            _install(empty, wheels, [f"--python-version={python}", "--only-binary=:all:", *platforms])
            _install(empty, [locks[name] for name in SOURCE_ONLY], ["--no-build-isolation", "--use-pep517"])
    return directory


def pinned(lock: str) -> Mapping[str, str]:
    """The entries of a lock file, each with its hashes, by name."""
    entries = re.split(r"^(?=[a-z0-9])", lock, flags=re.MULTILINE)
    return {entry.partition("==")[0]: entry for entry in entries if "==" in entry}


def _install(directory: Path, entries: Sequence[str], options: Sequence[str]) -> None:
    lock = directory.with_name(f"{directory.name}.lock.txt")
    lock.write_text("".join(entries))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "-q"]
    hashes = ["--no-deps", "--require-hashes", "--upgrade", f"--target={directory}", f"--requirement={lock}"]
    done = subprocess.run([*pip, *hashes, *options], check=False)
    lock.unlink()
    if done.returncode != 0:
        raise NodeError(f"pip could not install the packages of {', '.join(options)} (see above)")
