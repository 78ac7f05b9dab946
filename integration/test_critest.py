"""critest, Kubernetes' tests of container runtimes: the same outcomes directly, through criproxy, and in its box.

By command, the same where criproxy is the runtime's plugin: `./test integration integration/test_critest.py`.

Each of the arms is a containerd of its own with a network and a registry of its own, and critest in front of it.
In all of them, integration.lab.kubelets_part stands behind critest, as the box takes pods with kubelet's cgroups alone:
so what differs between two arms is criproxy, or the label that makes pods offline, and nothing else. What passes
criproxy then comes from Python's gRPC; kubelet's own (Go) does so in test_kubelet.py.
"""

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from integration.lab import kubelets_part, registry
from integration.lab.cgroups import version
from integration.lab.clean import clean, leftovers
from integration.lab.containerd import REGISTRY, Containerd
from integration.lab.criproxy import QUICK, UNJUDGED, Config, Criproxy, merged
from integration.lab.directory import cgroup_root, claimed
from integration.lab.lookout import Lookout
from integration.lab.process import LabError, Process, tail
from integration.programs import build

pytestmark = pytest.mark.timeout(3600)

Say = Callable[[str], object]

RUN_S = 3000.0
REPORT_S = 30.0
LOOK_S = 0.2

LEFT_OUT = {
    "public image with digest": "it names an image of others by its digest, which none of ours has",
    "MaskedPaths": "it masks /bin/ls, which the shell of our busybox has within itself",
    "AppArmor|SELinux": "security modules of the kernel, which the lab can't rely on",
}
"""Specs that can't say anything here, by a regular expression, with the reason. critest has left out benchmarks."""

METRICS = (
    "[k8s.io] PodSandbox runtime should support metrics operations"
    " runtime should support listing pod sandbox metrics [Conformance]"
)
IN_THE_BOX: Mapping[str, Mapping[str, str]] = {
    "cri": {METRICS: "criproxy takes the quota and its period off: cgroup v1 refuses a quota above the box's"}
    if version() == 1
    else {},
    "nri": {},  # there the period stays
}
"""The specs with another outcome in the box, by the front, with the reason: these, and no others."""

ATTEMPTS = 2
"""A spec that fails runs once more, as containerd 2.4.2 has races: a start that NRI refuses leaves its sandbox when its
clean-up meets the one at the sandbox's end. A defect fails twice."""
PASSED_LEAST = 110
PODS_LEAST = {"cri": 60, "nri": 20}
"""By NRI, those with a container that a look meets; where sandboxes count, each pod's pause process waits for it."""
CONFIG: Config = {
    "colocation": {"enabled": True},
    "control": QUICK,
    "cpu": {"min_cores": 1.0},
    "memory": {"min_bytes": 1 << 30},
    "interference": UNJUDGED,
    "hardening": {"allow": [{"label": "colocation.criproxy.io/class", "equals": "offline"}]},
}
"""Nothing closes the box, or squeezes it much, while others keep the machine busy. Some specs are about privileged pods
and the node's namespaces, which offline pods may not have."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`state`: passed, failed, or skipped by the spec itself, in the last attempt; `words`: what it said of that."""

    state: str
    words: str = ""
    attempts: int = 1


NOT_RUN = Outcome("not run")
Outcomes = Mapping[str, Outcome]
"""By the spec's full name."""


@dataclass
class Arm:
    """One way for critest to the runtime. `wrong`: what of its pods was seen outside the cgroup that they belong in.
    `front`: by which criproxy hears of its pods; "": there is none.
    """

    name: str
    directory: Path
    kind: str
    front: str
    wrong: set[str] = field(default_factory=set)
    _started: list[Process] = field(default_factory=list)

    def start(self) -> None:
        """Start all of it, critest last."""
        runtime = Containerd(self.directory, programs=build.find("containerd").parent, enclosed=True)
        runtime.start()
        # By NRI, a sandbox is made in kubelet's cgroup before criproxy is asked.
        self._lookout = Lookout(self.directory, runtime.socket, self._place, sandboxes=self.front != "nri")
        self._started.append(registry.start(self.directory, REGISTRY, runtime.inside))
        socket = runtime.socket
        if self.front:
            front = {"proxy": {"front": self.front, "nri": str(runtime.nri)}}
            proxy = Criproxy(self.directory, socket, merged(CONFIG, front))
            proxy.start()
            socket = proxy.socket if self.front == "cri" else socket
        part, socket = kubelets_part.start(self.directory, socket, cgroup_root(self.directory), self.kind)
        self._started.append(part)
        self._critest = self._start_critest(runtime, socket)
        self._started.append(self._critest)

    def _start_critest(self, runtime: Containerd, socket: Path) -> Process:
        (temporary := self.directory / "tmp").mkdir()
        (names := self.directory / "images.yaml").write_text(
            f"defaultTestContainerImage: {registry.BUSYBOX}\nwebServerTestImage: {registry.WEB}\n"
        )
        command: list[str | Path] = [
            *runtime.inside,
            build.find("critest"),
            f"--runtime-endpoint=unix://{socket}",
            f"--test-images-file={names}",
            f"--nri-socket={runtime.nri}",
            f"--ginkgo.json-report={self._report}",
            f"--ginkgo.skip={'|'.join(LEFT_OUT)}",
            "--ginkgo.seed=1",
            f"--ginkgo.flake-attempts={ATTEMPTS}",
            "--ginkgo.no-color",
        ]
        return Process("critest", command, self.directory / "critest.log", {"TMPDIR": str(temporary)})

    @property
    def _report(self) -> Path:
        return self.directory / "critest.json"

    def _place(self, uid: str) -> str:
        parent = "offline" if self.kind == "offline" else "kubepods/besteffort"
        return f"{cgroup_root(self.directory)}/{parent}/pod{uid}"

    def goes_on(self) -> bool:
        """Whether critest does; and look where its pods are now."""
        self.wrong.update(self._lookout.look())
        return self._critest.is_alive()

    def pods(self) -> int:
        """How many pods were seen with a process of their own program."""
        return len({uid for uid, _, _ in self._lookout.seen})

    def so_far(self) -> int:
        """How many specs have ended."""
        return self._critest.log.read_text(errors="replace").count("•")

    def outcomes(self) -> Outcomes:
        """Raises LabError when critest wrote no report."""
        if not self._report.exists():
            raise LabError(f"{self.name}: critest ended with {self._critest.exit_status}{tail(self._critest.log)}")
        (suite,) = json.loads(self._report.read_text())
        return {
            " ".join([*spec["ContainerHierarchyTexts"], spec["LeafNodeText"]]): outcome(spec)
            for spec in suite["SpecReports"]
            if spec["LeafNodeType"] == "It" and not was_left_out(spec)
        }

    def stop(self) -> None:
        """End critest and what `clean` does not know."""
        for process in reversed(self._started):
            process.stop()


def was_left_out(spec: Mapping[str, Any]) -> bool:
    """A spec that skips itself says why."""
    return spec["State"] == "skipped" and "Failure" not in spec


def outcome(spec: Mapping[str, Any]) -> Outcome:
    """Source: ginkgo's types.SpecReport."""
    state = spec["State"] if spec["State"] in ("passed", "skipped") else "failed"
    return Outcome(state, spec.get("Failure", {}).get("Message", ""), spec["NumAttempts"])


def differing(one: Outcomes, other: Outcomes) -> dict[str, str]:
    """What became of each spec whose state is not the same, in words."""
    pairs = {name: (one.get(name, NOT_RUN), other.get(name, NOT_RUN)) for name in sorted({*one, *other})}
    return {
        name: f"{first.state}, then {second.state}: {second.words or first.words}"
        for name, (first, second) in pairs.items()
        if first.state != second.state
    }


@pytest.fixture
def arms(front: str) -> Iterator[list[Arm]]:
    """Without criproxy, and with the front: for online pods, and for offline ones."""
    with contextlib.ExitStack() as stack:
        directories = [stack.enter_context(claimed()) for _ in range(3)]
        found = [
            Arm("directly", directories[0], "online", ""),
            Arm("through criproxy", directories[1], "online", front),
            Arm("in the box", directories[2], "offline", front),
        ]
        for arm in found:
            stack.callback(clean, arm.directory)
            stack.callback(arm.stop)
        yield found
    assert [left for directory in directories for left in leftovers(directory)] == []


def run(arms: list[Arm], say: Say) -> list[Outcomes]:
    """critest in all arms side by side."""
    for arm in arms:
        arm.start()
    say_at_s = began_s = time.monotonic()
    while [arm for arm in arms if arm.goes_on()]:
        if time.monotonic() > say_at_s:
            say_at_s += REPORT_S
            say("specs so far: " + ", ".join(f"{arm.name} {arm.so_far()}" for arm in arms))
        assert time.monotonic() < began_s + RUN_S, f"critest takes more than {RUN_S:.0f} s"
        time.sleep(LOOK_S)
    return [arm.outcomes() for arm in arms]


@pytest.mark.parametrize("front", ["cri", pytest.param("nri", marks=pytest.mark.by_command)])
def test_critest_comes_out_the_same_directly_through_criproxy_and_in_the_box(
    front: str, arms: list[Arm], say: Say
) -> None:
    found = run(arms, say)
    counts = [Counter(one.state for one in outcomes.values()) for outcomes in found]
    for arm, count, outcomes in zip(arms, counts, found, strict=True):
        again = [name for name, one in outcomes.items() if one.state == "passed" and one.attempts > 1]
        say(f"{arm.name}: {dict(count)}; in the second attempt alone: {again}; pods in their place: {arm.pods()}")
    directly, through, boxed = found

    assert differing(directly, through) == {}
    in_the_box = differing(directly, boxed)
    assert in_the_box.keys() == IN_THE_BOX[front].keys(), in_the_box
    assert counts[0]["passed"] >= PASSED_LEAST, [(name, one) for name, one in directly.items() if one.state != "passed"]
    assert [arm.wrong for arm in arms] == [set(), set(), set()]
    assert min(arm.pods() for arm in arms) >= PODS_LEAST[front]


# --- controls: what the comparison finds ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "words"),
    [
        pytest.param({"spec": Outcome("failed", "no such file")}, "passed, then failed: no such file", id="failed"),
        pytest.param({"spec": Outcome("skipped", "no support")}, "passed, then skipped: no support", id="skipped"),
        pytest.param({}, "passed, then not run: ", id="not run"),
    ],
)
def test_differing_outcomes_are_told_by_spec(other: Outcomes, words: str) -> None:
    passed = {"spec": Outcome("passed")}
    assert differing(passed, other) == {"spec": words}
    assert differing(passed, passed) == {}


def test_spec_that_was_left_out_is_told_from_one_that_skips_itself() -> None:
    assert was_left_out({"State": "skipped"})
    itself = {"State": "skipped", "Failure": {"Message": "no support"}, "NumAttempts": 1}
    assert not was_left_out(itself)
    assert outcome(itself) == Outcome("skipped", "no support")
    assert outcome({"State": "timedout", "NumAttempts": 1}) == Outcome("failed")
