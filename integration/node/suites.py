"""Runs tests of integration/ on nodes, each file on a fresh one: `python -m integration.node.suites`.

    suites smoke [NODE...]             a few minutes: what matters most, on each node (those of today: no NODE)
    suites whole NODE [pytest args]    everything that can run there, or only the files that the arguments name
    suites all                         everything on every node of amd64: hours

UPGRADES and RESTARTS are passed on: how many integration/systemd/test_upgrade.py makes (100 upgrades: an hour). So are
NRI_ROUNDS and NRI_MINUTES, of integration/test_nri.py.
The nodes, and what can't run on one of them, are in table.py.
"""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from integration.lab.kubelet import find_kubelet
from integration.node.build import BOOT_S, Wanted, find_snapshot, mount_all
from integration.node.command import FAILED, TIMED_OUT
from integration.node.machine import Command, Machine, Start
from integration.node.packages import CHECKOUT, find_packages
from integration.node.settings import Settings
from integration.node.spawn import GuestKernelError, NodeError, output
from integration.node.table import NODES, PYTHONS, entries_of, left_out
from integration.programs import build

SMOKE = "integration/test_smoke.py"
SMOKE_OF_KUBELET = "integration/test_pids.py::test_offline_pod_of_a_real_kubelet_has_its_limits_and_its_weight"
SMOKE_S, FILE_S = 900, 7200
SMOKE_TEST_S, TEST_S = 300, 900
"""Each test's own time-outs, those of a file above: Python is fifteen times slower there."""
PACKAGES, KUBELET, CONTAINERD = "/opt/python", "/opt/kubelet", "/opt/containerd"
COMPILED = "/var/tmp/pycache"
COMPILE = f"""
mkdir -p {PACKAGES}
mount --bind /mnt/0 {PACKAGES}
PYTHONPYCACHEPREFIX={COMPILED} python3 -m compileall -q -j 0 -x /pygments/ {PACKAGES} /usr/lib/python3*
umount {PACKAGES}
"""
"""What all tests import is compiled before the snapshot, or each file's fresh machine spends half a minute on it."""
CONTROL_PLANE = ("/opt/control-plane", "/opt/etcd")
WITH_CONTROL_PLANE = (
    *("integration/control_plane/", "integration/test_gates.py"),
    "integration/systemd/test_installer_job.py",
)
"""The files that a control plane is brought for."""
KEPT_BYTES = 8 << 30
"""Of the disk that is kept over boots; sparse."""
REBOOTED = "integration/systemd/test_reboot.py"
REBOOTED_BY_POWER_CUT = "test_after_a_power_cut"
BOOTS = (
    "test_first_boot",
    "test_after_a_reboot",
    REBOOTED_BY_POWER_CUT,
    "test_after_a_reboot_with_a_config_that_has_an_error",
)
"""The tests of REBOOTED, one on each boot of one machine, whose disk is kept."""
TAKE_CONTAINERD = f"""; for program in {CONTAINERD}/*; do mount --bind $program /usr/bin/${{program##*/}}; done
systemctl restart containerd"""
"""In place of Debian's, with its configuration."""
PASSED_ON = ("UPGRADES", "RESTARTS", "NRI_ROUNDS", "NRI_MINUTES")
"""Environment variables that tests read."""
TODAY = [name for name, node in NODES.items() if node.today]
USUAL = [name for name, node in NODES.items() if not node.cpus and node.architecture == "amd64"]
NOTHING_COLLECTED = 5
"""pytest's status when all tests of a file are left out."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one file fared on one node."""

    node: str
    file: str
    status: int
    seconds: float
    tail: str = ""
    """The end of its output, and what is known of its end."""

    @property
    def failed(self) -> bool:
        return self.status not in (0, NOTHING_COLLECTED)

    def __str__(self) -> str:
        words = {0: "passed", NOTHING_COLLECTED: "left out", TIMED_OUT: "TIMED OUT", FAILED: "THE NODE FAILED"}
        return f"{self.node:21} {self.file:45} {self.seconds:6.0f} s  {words.get(self.status, 'FAILED')}"


class Stand:
    """One node's images and packages, ready for any number of fresh machines."""

    def __init__(self, name: str) -> None:
        """Makes what is missing of images: minutes. Raises LabError when a program of today is not built."""
        node = NODES[name]
        self._name = name
        settings = replace(Settings.from_environment(node.architecture), suite=node.release)
        self._settings = replace(
            settings, cpus=node.cpus or settings.cpus, processor=node.processor or settings.processor
        )
        python = find_packages(self._settings.cache, PYTHONS[node.release], settings.architecture.machine)
        wanted = Wanted(python, node.prepare + COMPILE, kernel_arguments=node.kernel_arguments)
        self._image, self._snapshot = find_snapshot(self._settings, wanted)
        containerd = {CONTAINERD: build.find("containerd").parent} if node.containerd else {}
        kubelet = {} if left_out(name, SMOKE_OF_KUBELET) else {KUBELET: find_kubelet()}
        self._binds = {PACKAGES: python, **kubelet, **containerd}

    def run(self, file: str, arguments: Sequence[str], timeout_s: float, test_timeout_s: float) -> Outcome:
        """Run pytest on one file, on a fresh machine; its output passes through."""
        began_s, binds = time.monotonic(), dict(self._binds)
        if file.startswith(WITH_CONTROL_PLANE):
            folders = (build.find(name).parent for name in ("kube-apiserver", "etcd"))
            binds |= zip(CONTROL_PLANE, folders, strict=True)
        setup = mount_all(binds) + (TAKE_CONTAINERD if CONTAINERD in binds else "")
        pytest = ["python3", "-m", "pytest", "-v", "-p", "no:cacheprovider", "-o", f"timeout={test_timeout_s}"]
        environment = {
            "PYTHONPATH": f"{PACKAGES}:/w",
            "PYTHONPYCACHEPREFIX": COMPILED,
            "PYTHONUNBUFFERED": "1",
            "CRIPROXY_NODE": self._name,
            **{name: os.environ[name] for name in PASSED_ON if name in os.environ},
            "KUBELET": KUBELET,
            "CONTROL_PLANE": os.pathsep.join(CONTROL_PLANE),
        }
        trees = [CHECKOUT, *binds.values()]
        tail = ""

        def run(machine: Machine, tests: str) -> int:
            nonlocal tail
            command = Command([*pytest, *arguments, tests], setup, env=environment)
            try:
                return machine.run(command, time.monotonic() + timeout_s)
            finally:
                tail = machine.tail

        def fresh() -> int:
            with Machine(self._settings, Start(self._image, trees, self._snapshot, resume=True)) as machine:
                return run(machine, file)

        def over_boots() -> int:
            with kept_disk() as disk:
                for test, next_test in itertools.zip_longest(BOOTS, BOOTS[1:]):
                    with Machine(self._settings, Start(self._image, trees, disk=disk)) as machine:
                        machine.wait_booted(time.monotonic() + BOOT_S)
                        status = run(machine, f"{file}::{test}")
                        if status != 0:
                            return status
                        if next_test not in (None, REBOOTED_BY_POWER_CUT):
                            machine.reboot(time.monotonic() + BOOT_S)
            return 0

        try:
            status = once_more_after_a_kernel_failure(over_boots if file == REBOOTED else fresh)
        except TimeoutError as error:
            status, tail = TIMED_OUT, f"{tail}\nThe guest's kernel at the end:\n{error}"
        except NodeError as error:
            status, tail = FAILED, f"{tail}\n{error}"
        return Outcome(self._name, file, status, time.monotonic() - began_s, tail)


@contextlib.contextmanager
def kept_disk() -> Iterator[Path]:
    """An empty file system for `Start.disk`, removed at the end. Raises NodeError when it can't be made."""
    with tempfile.NamedTemporaryFile(prefix="node-disk-") as file:
        file.truncate(KEPT_BYTES)
        output(["mkfs.ext4", "-q", "-F", file.name])
        yield Path(file.name)


def once_more_after_a_kernel_failure(run: Callable[[], int]) -> int:
    """Run it again, once, when the guest's kernel failed; raises GuestKernelError when that happens anew."""
    try:
        return run()
    except GuestKernelError as error:
        say(f"THE GUEST'S KERNEL FAILED; all is run once more, on a fresh machine. {error}")
        return run()


def smoke(name: str) -> Outcome:
    """The smoke of one node."""
    say(f"smoke: {name} ({NODES[name].words})")
    began_s = time.monotonic()
    try:
        outcome = Stand(name).run(SMOKE, [SMOKE_OF_KUBELET], SMOKE_S, SMOKE_TEST_S)
    except (NodeError, TimeoutError) as error:
        outcome = Outcome(name, SMOKE, FAILED, 0, str(error) or "making its snapshot took too long")
    outcome = replace(outcome, seconds=time.monotonic() - began_s)
    say(str(outcome))
    return outcome


def smokes(names: Sequence[str]) -> list[Outcome]:
    """The smokes of several nodes, two at a time, as one waits half of the time for what its node does.

    Each is a process of its own, whose output is shown when it has ended; one that fails keeps no other from running.
    """
    running: list[subprocess.Popen[str]] = []

    def run(name: str) -> Outcome:
        say(f"smoke: {name} ({NODES[name].words}) begins")
        began_s = time.monotonic()
        command = [sys.executable, "-m", "integration.node.suites", "smoke", name]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        running.append(child)
        output, _ = child.communicate()
        print(output, flush=True)
        return Outcome(name, SMOKE, child.returncode, time.monotonic() - began_s)

    with ThreadPoolExecutor(2) as pool:
        try:
            return list(pool.map(run, names))
        finally:  # of none that still runs, but for a signal
            for child in running:
                child.terminate()


def whole(name: str, arguments: Sequence[str]) -> list[Outcome]:
    """All files on one node, or those that the arguments name; the other arguments are pytest's."""
    named = [argument for argument in arguments if (CHECKOUT / argument.partition("::")[0]).exists()]
    options = [argument for argument in arguments if argument not in named]
    files = named or suite_files(CHECKOUT)
    say(f"{name}: {NODES[name].words}")
    for entry in entries_of(name):
        say(f"{name}: left out: {entry.tests}: {entry.reason}")
    stand, began_s = Stand(name), time.monotonic()
    outcomes = []
    for number, file in enumerate(files, 1):
        say(f"{name} {number}/{len(files)}: {file}, {time.monotonic() - began_s:.0f} s so far")
        if left_out(name, file):
            outcomes.append(Outcome(name, file, NOTHING_COLLECTED, 0))
        else:
            outcomes.append(stand.run(file, options, FILE_S, TEST_S))
        say(str(outcomes[-1]))
    return outcomes


def suite_files(checkout: Path) -> list[str]:
    """The test files of integration/ and of its folders systemd/ and control_plane/, relative to the checkout."""
    found = [
        one for folder in ("", "systemd/", "control_plane/") for one in checkout.glob(f"integration/{folder}test_*.py")
    ]
    return sorted(str(file.relative_to(checkout)) for file in found)


def say(text: str) -> None:
    print(f"=== {text}", file=sys.stderr, flush=True)


def summary(outcomes: Sequence[Outcome]) -> int:
    """Print how all fared, once more how those that failed ended; returns the exit status."""
    sys.stdout.flush()
    for outcome in outcomes:
        if outcome.failed:
            say(f"{outcome}; it ended so:\n{outcome.tail}")
    for outcome in outcomes:
        say(str(outcome))
    return 1 if any(outcome.failed for outcome in outcomes) else 0


def main(arguments: Sequence[str]) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    match arguments:
        case ["smoke", name] if name in NODES:
            return summary([smoke(name)])
        case ["smoke", *names] if set(names) <= NODES.keys():
            return summary(smokes(names or TODAY))
        case ["whole", name, *rest] if name in NODES:
            return summary(whole(name, rest))
        case ["all"]:
            return summary([outcome for name in USUAL for outcome in whole(name, [])])
    print(f"{__doc__}\nNodes: {', '.join(NODES)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
