"""Kubelet's newest gates and settings, once each: what it reports of a pod is the same directly and through criproxy.

Each row of `ROWS` is a gate (or a setting, or a field of a pod that has become usual) with a pod that uses it, once
online and once offline. The rows of a group share a kubelet, which runs directly on containerd first and through
criproxy then. Of each pod all is compared: its status as kubelet reports it, what the kernel holds its container and
its pod to, and, where the gate is about them, its statistics. An online pod may differ in nothing, an offline one only
in what its row and `OFFLINE` name, with the reason. That the gate is in force, a row shows by what is seen of the pod
directly (`shown`).

What the node can't do is skipped, with the reason. Most of that is for cgroup v2, a newer runc or a swap of one's own:
`./test node trixie-v2-containerd-2.4 integration/test_gates.py`, and for user namespaces `./test node forky-v2 …`.
"""

import contextlib
import functools
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from integration.lab.cgroups import hierarchies, of_process, unkept, version
from integration.lab.clean import clean, leftovers
from integration.lab.client import CriClient
from integration.lab.containerd import Containerd, containerd_version, programs
from integration.lab.control_plane import ControlPlane, find_program, wait_for
from integration.lab.criproxy import QUICK, UNJUDGED, Config, Criproxy
from integration.lab.directory import claimed
from integration.lab.images import BUSYBOX
from integration.lab.kubelet import EVICTION_SIGNALS, Kubelet, known_gates, static_pod
from integration.lab.process import LabError, wait_until
from integration.lab.swap import swap_on
from integration.lab.throwaway import is_throwaway

pytestmark = pytest.mark.timeout(1800)  # a group's first test runs both of its kubelets, on slow nodes, too

Say = Callable[[str], object]
Json = dict[str, Any]
Facts = Mapping[str, str]
"""What is seen of a pod, by a path such as `status.phase`, `kernel.pod.memory.max`, `summary.cpu.psi.some.total`."""

POD_S = 300.0
DEADLINE_S = 36_000
"""A change of a pod that changes nothing."""
SETTLED_S = 60.0
"""For statistics, which kubelet takes each 10 s, and for what is still on its way."""
APART_S = 2.0
POLL_S = 0.5

CLASS = "colocation.criproxy.io/class"
KINDS = ("online", "offline")
PODS = "/api/v1/namespaces/default/pods"
BURSTABLE = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "500m", "memory": "128Mi"}}
LARGER = {"requests": {"cpu": "200m", "memory": "96Mi"}, "limits": {"cpu": "700m", "memory": "192Mi"}}
RUNNING, ENDED = ("Running",), ("Failed", "Succeeded")
ANY_NUMBER = r"\d*[1-9]\d*"
MORE = "more than 0"

KERNEL_FILES: Mapping[str, Sequence[str]] = (
    {"cpu": ("cpu.shares", "cpu.cfs_quota_us"), "memory": ("memory.limit_in_bytes",), "pids": ("pids.max",)}
    if version() == 1
    else {
        "": (
            *("cpu.weight", "cpu.max", "pids.max", "memory.max", "memory.high", "memory.low", "memory.min"),
            *("memory.swap.max", "memory.oom.group"),
        )
    }
)
"""What the kernel holds a cgroup to, by controller."""

NO_QUOTA = "cgroup v1 refuses a quota above the box's, so an offline container has none"
OFFLINE: Mapping[str, str] = {
    r"place": "it is in the box",
    r"kernel\.oom_score_adj": "an offline pod is the first to go when memory ends",
    **(
        {r"kernel\.(container|pod)\.cpu\.cfs_quota_us": NO_QUOTA}
        if version() == 1
        else {
            r"kernel\.pod\.memory\.oom\.group": "short of memory, an offline pod ends whole",
            r"kernel\.pod\.memory\.(low|min)": "it would protect offline's memory from online",
            r"kernel\.pod\.memory\.high": "what MemoryQoS sets on kubelet's own cgroup of a pod stays there",
        }
    ),
}
"""In what any offline pod may differ from the same pod directly on containerd, with the reason."""


# --- what a node has ------------------------------------------------------------------------------------------------


def cgroup_v2() -> str:
    return "" if version() == 2 else "needs cgroup v2"


def psi() -> str:
    return cgroup_v2() or ("" if Path("/proc/pressure/cpu").exists() else "the kernel has no PSI")


def own_swap() -> str:
    return cgroup_v2() or ("" if is_throwaway() else "switches swap on, for the whole machine")


def two_cpus() -> str:
    return "" if len(os.sched_getaffinity(0)) > 1 else "a CPU to give away and one to keep are needed"


@functools.cache
def idmapped_mounts() -> str:
    """What kubelet wants of the runtime for a user namespace. Source: runc, docs of `runc features`."""
    said = subprocess.run(["runc", "features"], capture_output=True, text=True, check=False).stdout
    features = json.loads(said or "{}")
    known = features.get("linux", {}).get("mountExtensions", {}).get("idmap", {}).get("enabled", False)
    return "" if known else "the machine's runc has no idmapped mounts: 1.2 or later is needed"


@functools.cache
def control_plane() -> str:
    """Whether the two programs are there."""
    try:
        missing = [name for name in ("etcd", "kube-apiserver") if not find_program(name).exists()]
    except LabError as error:
        return f"needs a control plane: {error}"
    return f"needs a control plane: there is no {' and no '.join(missing)}" if missing else ""


@functools.cache
def gates_of_kubelet() -> frozenset[str]:
    return known_gates()


def image_volumes() -> str:
    return "this kubelet has image volumes off by default" if "ImageVolume" in gates_of_kubelet() else ""


# --- the rows -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that share a kubelet. `joined`: it joins an API server, and the pods come from there."""

    name: str
    joined: bool = False


USUAL = Group("usual")
OF_THE_CRI = Group("of the CRI")
CPUS = Group("CPUs")
NUMA = Group("NUMA")
FROM_THE_API = Group("from the API", joined=True)
SWAP = Group("swap", joined=True)
"""By itself, as a kubelet that gives pods swap resizes the memory of none in place; joined, as static pods get none."""


@dataclass(frozen=True, slots=True)
class Row:
    """A gate, and how it is tried.

    `spec` and `main` are more of the pod's spec and of its container. `shown`: facts that the pods have directly when
    the gate is in force, each a pattern for all of it; `calls`: CRI methods that kubelet calls then. `gates` are
    switched on for it, `settings` are more of kubelet's. `containerd`: the first that has it; `lacks`: why the node
    can't do it, "" when it can. `differs`: in what the offline pod differs beside `OFFLINE`, with the
    reason.
    `statistics`: its part of /stats/summary counts as well. `ends`: the pod ends by itself. `resized_to`: its
    container's resources are changed to these while it runs. `online_main` and `online_shown` are of the online pod
    alone.
    """

    group: Group
    shown: Mapping[str, str]
    spec: Json = field(default_factory=dict)
    main: Json = field(default_factory=dict)
    online_main: Json = field(default_factory=dict)
    online_shown: Mapping[str, str] = field(default_factory=dict)
    gates: Sequence[str] = ()
    settings: Json = field(default_factory=dict)
    containerd: tuple[int, int] = (2, 0)
    lacks: Callable[[], str] = lambda: ""
    calls: Sequence[str] = ()
    counters: Sequence[str] = ()
    differs: Mapping[str, str] = field(default_factory=dict)
    statistics: bool = False
    ends: bool = False
    resized_to: Json = field(default_factory=dict)

    def lacking(self) -> str:
        """Why it can't be tried here; "": it can."""
        if unknown := set(self.gates) - gates_of_kubelet():
            return f"this kubelet has no gate {', '.join(sorted(unknown))}"
        if containerd_version() < self.containerd:
            return f"needs containerd {'.'.join(map(str, self.containerd))}, and here is {containerd_version()}"
        return self.lacks() or (control_plane() if self.group.joined else "")

    def manifest(self, name: str, kind: str) -> Json:
        pod = static_pod(pod_name(name, kind), labels={CLASS: kind})
        pod["spec"] |= self.spec
        pod["spec"]["containers"][0] |= self.main
        if kind == "online":
            pod["spec"]["containers"][0] |= self.online_main
        return pod

    def wanted(self, kind: str) -> Mapping[str, str]:
        """What such a pod is to show directly."""
        return {**self.shown, **(self.online_shown if kind == "online" else {})}

    def expected(self, kind: str) -> Mapping[str, str]:
        """In what such a pod may differ."""
        return {**OFFLINE, **self.differs} if kind == "offline" else {}


def pod_name(row: str, kind: str) -> str:
    return f"{kind}-{row.lower()}"


def guaranteed(cpu: str) -> Json:
    amounts = {"cpu": cpu, "memory": "64Mi"}
    return {"requests": amounts, "limits": amounts}


ENDS_WITH_3 = {"command": ["sh", "-c", "exit 3"]}
ENDS_WITH_7_AT_USR1 = {
    "command": ["sh", "-c", "trap 'exit 7' USR1; while :; do sleep 0.2; done"],
    "lifecycle": {"stopSignal": "SIGUSR1"},
}
AN_IMAGE = [{"name": "image", "image": {"reference": BUSYBOX, "pullPolicy": "Never"}}]
AT = "/of-the-image"
EMPTY_CGROUP = "kubelet reads its own cgroup of the pod, which an offline pod has left"

ROWS: Mapping[str, Row] = {
    "KubeletPSI": Row(
        USUAL,
        {r"summary\.cpu\.psi\.some\.total": "there", r"summary\.containers\.main\.memory\.psi\.full\.total": "there"},
        main={"command": ["sh", "-c", "while :; do sleep 0.1; done"]},
        lacks=psi,
        statistics=True,
        differs={r"summary\.(cpu\.usageCoreNanoSeconds|memory\.workingSetBytes)": EMPTY_CGROUP},
    ),
    "UserNamespaces": Row(
        USUAL,
        {r"kernel\.uid_map": r"0 \[own\] 65536"},
        spec={"hostNetwork": False, "hostUsers": False},
        lacks=idmapped_mounts,
    ),
    "ImageVolume": Row(
        USUAL,
        {r"kernel\.image": "busybox"},
        spec={"volumes": AN_IMAGE},
        main={"volumeMounts": [{"name": "image", "mountPath": AT}]},
        containerd=(2, 1),
        lacks=image_volumes,
    ),
    "PodLevelResources": Row(
        USUAL,
        {
            r"status\.qosClass": "Burstable",
            r"kernel\.pod\.memory\.(max|limit_in_bytes)": str(128 << 20),
        },
        spec={"resources": BURSTABLE},
    ),
    "MemoryQoS": Row(
        USUAL,
        {
            r"kernel\.container\.memory\.low": str(64 << 20),
            r"kernel\.container\.memory\.high": ANY_NUMBER,
            r"kernel\.container\.memory\.max": str(128 << 20),
        },
        main={"resources": BURSTABLE},
        gates=("MemoryQoS",),
        settings={"memoryThrottlingFactor": 0.9, "memoryReservationPolicy": "TieredReservation"},
        lacks=cgroup_v2,
    ),
    "EventedPLEG": Row(
        OF_THE_CRI,
        {
            r"status\.phase": "Failed",
            r"status\.containerStatuses\.main\.state\.terminated\.exitCode": "3",
            r"kubelet\.kubelet_evented_pleg_connection_success_count": MORE,
        },
        spec={"restartPolicy": "Never"},
        main=ENDS_WITH_3,
        gates=("EventedPLEG",),
        counters=("kubelet_evented_pleg_connection_success_count", "kubelet_evented_pleg_connection_error_count"),
        ends=True,
    ),
    "ContainerStopSignals": Row(
        OF_THE_CRI,
        {
            r"status\.reason": "DeadlineExceeded",
            r"status\.containerStatuses\.main\.stopSignal": "SIGUSR1",
            r"status\.containerStatuses\.main\.state\.terminated\.exitCode": "7",
        },
        # Kubelet itself ends it, by its deadline, with time for the signal to be heeded.
        spec={"os": {"name": "linux"}, "activeDeadlineSeconds": 2, "terminationGracePeriodSeconds": 60},
        main=ENDS_WITH_7_AT_USR1,
        gates=("ContainerStopSignals",),
        containerd=(2, 4),
        ends=True,
    ),
    "CRIListStreaming": Row(
        OF_THE_CRI,
        {r"status\.containerStatuses\.main\.ready": "True"},
        gates=("CRIListStreaming",),
        containerd=(2, 4),
        calls=("StreamPodSandboxes", "StreamContainers", "StreamImages"),
    ),
    "PodAndContainerStatsFromCRI": Row(
        OF_THE_CRI,
        {r"summary\.process_stats\.process_count": MORE, r"summary\.memory\.workingSetBytes": MORE},
        main={"command": ["sh", "-c", "while :; do sleep 0.1; done"], "resources": BURSTABLE},
        gates=("PodAndContainerStatsFromCRI",),
        statistics=True,
    ),
    "CPUManager": Row(
        CPUS,
        {r"kubelet\.cpu_manager": "static.*"},
        online_main={"resources": guaranteed("1")},
        online_shown={r"kubelet\.cpu_manager": "static main", r"kernel\.cpus": r"\d+"},
        settings={"cpuManagerPolicy": "static", "reservedSystemCPUs": "0", "cpuManagerReconcilePeriod": "1s"},
        lacks=two_cpus,
    ),
    "MemoryManager": Row(
        NUMA,
        {r"kubelet\.memory_manager": "Static main", r"kernel\.memory_nodes": r"\d+"},
        main={"resources": guaranteed("100m")},
        settings={
            "memoryManagerPolicy": "Static",
            # All that is reserved is of the first NUMA node: kubelet's own and what is kept free.
            "kubeReserved": {"memory": "256Mi"},
            "evictionHard": {**dict.fromkeys(EVICTION_SIGNALS, "0%"), "memory.available": "64Mi"},
            "reservedMemory": [{"numaNode": 0, "limits": {"memory": "320Mi"}}],
        },
    ),
    "TopologyManager": Row(
        NUMA,
        {r"kubelet\.kubelet_topology_manager_admission_requests_total": MORE, r"status\.phase": "Running"},
        main={"resources": guaranteed("200m")},
        settings={"topologyManagerPolicy": "single-numa-node", "topologyManagerScope": "pod"},
        counters=(
            "kubelet_topology_manager_admission_requests_total",
            "kubelet_topology_manager_admission_errors_total",
        ),
    ),
    "InPlacePodVerticalScaling": Row(
        FROM_THE_API,
        {
            r"status\.containerStatuses\.main\.resources\.limits\.memory": "192Mi",
            r"status\.containerStatuses\.main\.restartCount": "0",
            r"kernel\.container\.memory\.(max|limit_in_bytes)": str(192 << 20),
        },
        main={"resources": BURSTABLE},
        resized_to=LARGER,
        differs={r"status\.containerStatuses\.main\.resources\.limits\.cpu": NO_QUOTA} if version() == 1 else {},
    ),
    "NodeSwap": Row(
        SWAP,
        {r"kernel\.container\.memory\.swap\.max": ANY_NUMBER},
        main={"resources": BURSTABLE},
        settings={"memorySwap": {"swapBehavior": "LimitedSwap"}},
        lacks=own_swap,
    ),
}


# --- what is seen of a pod ------------------------------------------------------------------------------------------

OF_THE_MOMENT = re.compile(r"(At|Time|ID|IPs?|time)$")
"""Fields of a status whose value is the run's own."""
SECOND_SAMPLE = ("cpu.usageNanoCores", "rootfs.usedBytes", "logs.usedBytes")
"""What of the statistics comes with a second sample, or a later one."""
VALUES_THAT_GROW = ("usageCoreNanoSeconds", "workingSetBytes", "process_count")
"""Of the statistics, those that tell whether the pod's own cgroup was read; the others are there or not."""


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a JSON value by their paths; members of lists go by their name or type."""
    match value:
        case dict():
            for key, inner in value.items():
                yield from flat(inner, f"{path}.{key}")
        case list():
            for number, inner in enumerate(value):
                own = inner.get("name") or inner.get("type") if isinstance(inner, dict) else None
                yield from flat(inner, f"{path}.{own or number}")
        case _:
            yield path, value


def of_status(status: Json) -> Facts:
    return {path: str(value) for path, value in flat(status, "status") if not OF_THE_MOMENT.search(path)}


def of_statistics(pod: Json) -> Facts:
    found = {}
    for path, value in flat(pod, "summary"):
        name = path.rpartition(".")[2]
        if name in VALUES_THAT_GROW:
            found[path] = MORE if value else "0"
        elif not OF_THE_MOMENT.search(path) and ".podRef." not in path:
            found[path] = "there"
    return found


def of_kernel(pid: int, uid: str, container: str, root: str) -> Facts:
    """Where a container's process is, and what it and its pod are held to."""
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    inside, outside, count = Path(f"/proc/{pid}/uid_map").read_text().split()
    places = {controller: path for controller, path in of_process(pid).items() if controller not in unkept()}
    short = {path.removeprefix(root).replace(uid, "UID").replace(container, "ID") for path in places.values()}
    image = Path(f"/proc/{pid}/root{AT}/bin/busybox")
    facts = {
        "place": " ".join(sorted(short)),
        "kernel.cpus": status["Cpus_allowed_list"],
        "kernel.memory_nodes": status["Mems_allowed_list"],
        "kernel.oom_score_adj": Path(f"/proc/{pid}/oom_score_adj").read_text().strip(),
        "kernel.uid_map": f"{inside} {outside if outside == inside else '[own]'} {count}",
        "kernel.image": image.name if image.exists() else "",
    }
    for hierarchy in hierarchies():
        for controller in set(hierarchy.controllers) & KERNEL_FILES.keys():
            container_at = places[controller]
            for level, path in (("container", container_at), ("pod", os.path.dirname(container_at))):
                for name in KERNEL_FILES[controller]:
                    file = hierarchy.directory(path) / name
                    facts[f"kernel.{level}.{name}"] = file.read_text().strip() if file.exists() else "no such file"
    return facts


def differences(direct: Facts, proxied: Facts) -> dict[str, str]:
    """What differs, by path, in words."""
    return {
        path: f"directly {direct.get(path, 'nothing')!r}, through criproxy {proxied.get(path, 'nothing')!r}"
        for path in sorted({*direct, *proxied})
        if direct.get(path) != proxied.get(path)
    }


def unexpected(found: Mapping[str, str], expected: Mapping[str, str]) -> dict[str, str]:
    return {path: words for path, words in found.items() if not any(re.fullmatch(known, path) for known in expected)}


def lacking_facts(facts: Facts, wanted: Mapping[str, str]) -> dict[str, list[str]]:
    """Of the patterns for paths, those whose facts are not as wanted, with what they are."""
    found = {path: [value for name, value in facts.items() if re.fullmatch(path, name)] for path in wanted}
    return {
        path: values
        for path, values in found.items()
        if not values or not all(re.fullmatch(wanted[path], value) for value in values)
    }


# --- runs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seen:
    """A run of a group: the facts of each pod by its name, and the methods that kubelet called (through criproxy)."""

    facts: Mapping[str, Facts]
    calls: frozenset[str]


class Node:
    """Containerd, criproxy before it or not, and a kubelet for these rows."""

    def __init__(self, lab: Path, rows: Mapping[str, Row], *, proxied: bool) -> None:
        self.rows = rows
        self.containerd = Containerd(lab, programs=programs(), enclosed=True)
        socket, self.criproxy, self.plane = self.containerd.socket, None, None
        if proxied:
            config: Config = {
                "colocation": {"enabled": True},
                "control": QUICK,
                "cpuset": {"pin_pods": False},
                "interference": UNJUDGED,
                "kubelet": {"root_dir": str(Kubelet(lab, socket).root_dir)},
            }
            self.criproxy = Criproxy(lab, socket, config)
            socket = self.criproxy.socket
        credential = None
        if any(row.group.joined for row in rows.values()):
            self.plane = ControlPlane(lab)
            credential = self.plane.node_kubeconfig(Kubelet(lab, socket).node)
        gates = {gate: True for row in rows.values() for gate in row.gates}
        settings = {key: value for row in rows.values() for key, value in row.settings.items()}
        logs = {"podLogsDir": str(lab / "pod-logs")}
        self.kubelet = Kubelet(lab, socket, settings={**logs, **settings, "featureGates": gates}, kubeconfig=credential)

    def start(self) -> None:
        self.containerd.start()
        if self.criproxy:
            self.criproxy.start()
        if self.plane:
            self.plane.start_api()
            accounts = "/api/v1/namespaces/default/serviceaccounts"
            wait_for(lambda: self.plane and self.plane.exists("/api/v1/namespaces/default"), POD_S, "a namespace")
            self.plane.call("POST", accounts, {"metadata": {"name": "default"}})
        self.kubelet.start()
        if self.plane:
            wait_for(lambda: self.plane and self.plane.exists(f"/api/v1/nodes/{self.kubelet.node}"), POD_S, "the node")

    def run(self, kind: str) -> None:
        """Start all pods of one kind, and return once each runs, or has ended where it is to."""
        for name, row in self.rows.items():
            manifest = row.manifest(name, kind)
            if self.plane:
                manifest["spec"] |= {"nodeName": self.kubelet.node, "automountServiceAccountToken": False}
                self.plane.call("POST", PODS, manifest)
            else:
                self.kubelet.add_pod(manifest)
        for name, row in self.rows.items():
            pod, goal = pod_name(name, kind), ENDED if row.ends else RUNNING
            wait_until(functools.partial(self._is, pod, goal), POD_S, f"{pod} to be {goal}", self.kubelet.log, POLL_S)
            if self.plane and not row.ends:
                self._sync(self.plane, pod)

    def _sync(self, plane: ControlPlane, pod: str) -> None:
        """Have kubelet look once more at a pod that it knows to run: only then it reads the pod's resources from its
        own cgroup of it, where 100m may have become 79m; by itself it does so within a minute and a half.
        """
        changed = plane.merge(f"{PODS}/{pod}", {"spec": {"activeDeadlineSeconds": DEADLINE_S}})

        def seen() -> bool:
            status = self.kubelet.statuses()[pod]
            return bool(status.get("observedGeneration", 0) >= changed["metadata"]["generation"])

        wait_until(seen, POD_S, f"kubelet to look at {pod}", self.kubelet.log, POLL_S)

    def _is(self, pod: str, goal: Sequence[str]) -> bool:
        """Raises LabError when it has ended and is not to."""
        status = self.kubelet.statuses().get(pod, {})
        if status.get("phase") in ENDED and goal != ENDED:
            raise LabError(f"{pod} has ended: {status}")
        if goal == ENDED:  # by its deadline, a pod has failed before its container has ended
            return all("terminated" in one["state"] for one in status.get("containerStatuses", [{"state": {}}]))
        return status.get("phase") in goal

    def resize(self) -> None:
        """Change what the containers of those rows have that say so, and return once kubelet reports it."""
        for pod, row in self._pods():
            if row.resized_to and self.plane:
                body = {"spec": {"containers": [{"name": "main", "resources": row.resized_to}]}}
                content = "application/strategic-merge-patch+json"
                self.plane.call("PATCH", f"{PODS}/{pod}/resize", body, content=content)
                resized = functools.partial(self._is_resized, pod, row)
                wait_until(resized, POD_S, f"{pod} to be resized", self.kubelet.log, POLL_S)

    def _is_resized(self, pod: str, row: Row) -> bool:
        """Raises LabError when kubelet says that it never will be."""
        status = self.kubelet.statuses()[pod]
        if refused := [one["message"] for one in status.get("conditions", []) if one.get("reason") == "Infeasible"]:
            raise LabError(f"{pod} is not resized: {refused}")
        (container,) = status["containerStatuses"]
        return bool(container["resources"]["limits"]["memory"] == row.resized_to["limits"]["memory"])

    def _pods(self) -> Iterator[tuple[str, Row]]:
        for name, row in self.rows.items():
            for kind in KINDS:
                yield pod_name(name, kind), row

    def seen(self) -> Seen:
        """All that is seen, once two looks see the same and the statistics are complete."""
        with CriClient(self.containerd.socket) as client:
            ends_s, before = time.monotonic() + SETTLED_S, self._facts(client)
            while time.monotonic() < ends_s:
                time.sleep(APART_S)
                now = self._facts(client)
                if now == before and not self._without_statistics(now):
                    break
                before = now
        calls = re.findall(r'^criproxy_calls_total\{method="(\w+)",code="OK"', self._metrics(), re.MULTILINE)
        return Seen(before, frozenset(calls))

    def _metrics(self) -> str:
        return self.criproxy.http("/metrics")[1] if self.criproxy else ""

    def _without_statistics(self, seen: Mapping[str, Facts]) -> list[str]:
        """The pods that lack those which come with a second sample, unless they are known to stay without."""
        return [
            pod
            for pod, row in self._pods()
            if row.statistics
            and (
                not {f"summary.containers.main.{one}" for one in SECOND_SAMPLE} <= seen[pod].keys()
                or seen[pod].get("summary.containers.main.memory.workingSetBytes") != MORE
                or (
                    seen[pod].get("summary.memory.workingSetBytes") != MORE
                    and not (self.criproxy and row.differs and pod.startswith("offline"))
                )
            )
        ]

    def _facts(self, client: CriClient) -> Mapping[str, Facts]:
        statuses, running = self.kubelet.statuses(), self.kubelet.pods()
        wants = any(row.statistics for row in self.rows.values())
        statistics = {one["podRef"]["uid"]: one for one in self.kubelet.summary()["pods"]} if wants else {}
        found: dict[str, Facts] = {}
        for pod, row in self._pods():
            uid = running[pod].uid
            counted = {name: MORE if self.kubelet.counted(name) else "0" for name in row.counters}
            found[pod] = {
                **of_status(statuses[pod]),
                **{f"kubelet.{name}": value for name, value in counted.items()},
                "kubelet.cpu_manager": self._given("cpu", uid),
                "kubelet.memory_manager": self._given("memory", uid),
                **(of_statistics(statistics.get(uid, {})) if row.statistics else {}),
            }
            for container in () if row.ends else running[pod].containers.values():
                found[pod] = {
                    **found[pod],
                    **of_kernel(client.pid_of(container), uid, container, self.kubelet.cgroup_root),
                }
        return found

    def _given(self, manager: str, uid: str) -> str:
        """A manager's policy, and the containers of the pod to which it has given something of their own."""
        file = self.kubelet.root_dir / f"{manager}_manager_state"
        state = json.loads(file.read_text()) if file.exists() else {}
        return " ".join([state.get("policyName", ""), *state.get("entries", {}).get(uid, {})])


def run(rows: Mapping[str, Row], *, proxied: bool) -> Seen:
    """One run of a group, in a lab of its own: a kubelet removes what it takes for remains of others' pods."""
    with contextlib.ExitStack() as stack:
        if "NodeSwap" in rows:
            stack.enter_context(swap_on())
        with claimed() as lab:
            try:
                if "UserNamespaces" in rows:  # its root is another user, who has to get to the container's files
                    for directory in (lab.parent, lab):
                        directory.chmod(0o711)
                node = Node(lab, rows, proxied=proxied)
                node.start()
                for kind in KINDS:  # online first: what they have for themselves is taken when offline pods come
                    node.run(kind)
                node.resize()
                seen = node.seen()
            finally:
                clean(lab)
        assert leftovers(lab) == []
    return seen


@dataclass(frozen=True, slots=True)
class Both:
    direct: Seen
    proxied: Seen


@pytest.fixture(scope="module")
def runs(say: Say) -> Callable[[Group], Both]:
    """Both runs of a group, with those of its rows that the node can do: made once, or failed once."""

    @functools.cache
    def made(group: Group) -> Both | Exception:
        rows = {name: row for name, row in ROWS.items() if row.group == group and not row.lacking()}
        began_s = time.monotonic()
        try:
            found = Both(run(rows, proxied=False), run(rows, proxied=True))
        except Exception as error:  # else each row of the group would wait for it again
            return error
        say(f"{', '.join(rows)}: ran directly and through criproxy, in {time.monotonic() - began_s:.0f} s")
        return found

    def both(group: Group) -> Both:
        found = made(group)
        if isinstance(found, Exception):
            raise found
        return found

    return both


@pytest.mark.parametrize("name", ROWS)
def test_pods_fare_through_criproxy_as_they_do_directly(runs: Callable[[Group], Both], name: str, say: Say) -> None:
    row = ROWS[name]
    if reason := row.lacking():
        pytest.skip(reason)
    both = runs(row.group)
    for kind in KINDS:
        pod = pod_name(name, kind)
        direct, proxied = both.direct.facts[pod], both.proxied.facts[pod]
        found, expected = differences(direct, proxied), row.expected(kind)
        say(f"{pod}: {len(direct)} facts; differing: {found or 'none'}")

        assert lacking_facts(direct, row.wanted(kind)) == {}, f"{pod}: the gate is not in force: {direct}"
        assert unexpected(found, expected) == {}, pod
        absent = [
            path for path in row.differs if kind == "offline" and not any(re.fullmatch(path, one) for one in found)
        ]
        assert absent == [], f"{pod} does not differ where it is known to: take that out of its row"
        assert row.ends or (proxied["place"] == "/offline/podUID/ID") == (kind == "offline"), proxied["place"]
    assert set(row.calls) <= both.proxied.calls


# --- controls: what the comparison finds ----------------------------------------------------------------------------


def test_facts_that_differ_are_told_by_path_and_only_those_that_are_known_are_let_pass() -> None:
    direct, proxied = {"place": "a", "status.phase": "Running", "gone": "1"}, {"place": "b", "status.phase": "Failed"}

    found = differences(direct, proxied)

    assert found.keys() == {"place", "status.phase", "gone"}
    assert unexpected(found, {"place": "known"}).keys() == {"status.phase", "gone"}
    assert unexpected(found, {"status": "a path is meant as a whole"}).keys() == found.keys()
    assert differences(direct, direct) == {}


def test_gate_is_in_force_only_when_all_that_it_shows_is_there() -> None:
    facts = {"kernel.pod.memory.max": "1", "kernel.container.memory.max": "2"}

    assert lacking_facts(facts, {r"kernel\.pod\..*": "1"}) == {}
    assert lacking_facts(facts, {r"kernel\..*": "1"}) == {r"kernel\..*": ["1", "2"]}
    assert lacking_facts(facts, {"status": "1"}) == {"status": []}


def test_status_without_the_run_s_own_ids_and_times_keeps_all_else() -> None:
    container = {
        "name": "main",
        "containerID": "containerd://1",
        "ready": True,
        "state": {"running": {"startedAt": "1"}},
    }
    status = {"phase": "Running", "startTime": "1", "hostIP": "1", "containerStatuses": [container]}

    assert of_status(status) == {
        "status.phase": "Running",
        "status.containerStatuses.main.name": "main",
        "status.containerStatuses.main.ready": "True",
    }
