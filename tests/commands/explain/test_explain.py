"""What `criproxy explain` tells of a pod."""

import json
from pathlib import Path
from typing import Any

import pytest
import structlog
from msgspec.structs import replace

from criproxy.cgroup.naming import BoxPath
from criproxy.commands.explain import command
from criproxy.commands.explain.explain import Explanation, NodeFacts, explain, render
from criproxy.commands.explain.manifest import Manifest, read_manifests
from criproxy.config.settings import Config
from criproxy.fronts.cri import messages as cri
from criproxy.hooks import HookSettings, offline_chain
from criproxy.hooks.bandwidth import EGRESS, Bandwidth
from criproxy.hooks.hardening import MASKED_PATHS, READONLY_PATHS, Hardening
from criproxy.hooks.offline import DEFAULT_RULE, OfflineRules, Rule, Subject, Test
from criproxy.pods.admission import AdmissionSettings
from tests.fronts.cri.test_intercept import V1, Bench

CGROUPFS, SYSTEMD = BoxPath("/offline"), BoxPath("offline.slice")
NODE = NodeFacts(
    enabled=True,
    rules=OfflineRules((DEFAULT_RULE,)),
    box=CGROUPFS,
    origin="by a flag of kubelet's",
    hooks=HookSettings(child_quota=False),
)
LIMITED = {"limits": {"cpu": "500m", "memory": "1Gi"}, "requests": {"cpu": "100m"}}


def manifest(offline: bool = True, **meta: Any) -> Manifest:
    labels = {DEFAULT_RULE.key: DEFAULT_RULE.value} if offline else {}
    document = {
        "kind": "Pod",
        "metadata": {"name": "p", "uid": "u1", "labels": labels, **meta},
        "spec": {"containers": [{"name": "main", "resources": LIMITED}], "initContainers": [{"name": "prep"}]},
    }
    return read_manifests(json.dumps(document).encode()).pods[0]


def changes(explanation: Explanation) -> dict[tuple[str, str], object]:
    return {
        (part.container, change.adjustment.field): change.adjustment.value
        for part, changed in explanation.changes
        for change in changed
    }


def text(pod: Manifest, node: NodeFacts = NODE) -> str:
    return render(pod, explain(pod, node), node)


def test_offline_pod_moves_into_the_box_with_all_its_containers() -> None:
    found = changes(explain(manifest(), NODE))
    assert {container: found[container, "cgroup_parent"] for container in ("", "prep", "main")} == {
        "": "/offline/podu1",
        "prep": "/offline/podu1",
        "main": "/offline/podu1",
    }
    assert ("main", "cpu_shares") not in found
    assert found["main", "cpu_quota"] is None
    assert ("main", "memory_limit_in_bytes") not in found


@pytest.mark.parametrize("hooks", [HookSettings(False), HookSettings(True, Bandwidth(egress=5_000_000))])
def test_what_is_said_of_a_pod_is_what_placing_does_to_kubelet_s_calls(hooks: HookSettings) -> None:
    """By the changes that placing logs of a real call, but for the values before, which a manifest does not say."""
    pod = manifest(annotations={EGRESS: "1G", "colocation.criproxy.io/placement": "/"})
    said = explain(pod, replace(NODE, hooks=hooks)).changes

    bench = Bench(AdmissionSettings(True, NODE.rules), offline_chain(hooks))
    config = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name=b"p", uid=b"u1", namespace=b"default"),
        labels=[cri.StringEntry(key=key.encode(), value=value.encode()) for key, value in pod.pod.labels.items()],
        annotations=[cri.StringEntry(key=key.encode(), value=one.encode()) for key, one in pod.pod.annotations.items()],
        linux={"cgroup_parent": b"/kubepods/burstable/podu1", "resources": {"cpu_quota": 50000, "cpu_period": 100000}}
        | {"security_context": {"seccomp": {}}},
    )
    masks = {"masked_paths": map(str.encode, MASKED_PATHS), "readonly_paths": map(str.encode, READONLY_PATHS)}
    masked = {"security_context": {key: list(paths) for key, paths in masks.items()}}
    quotas = {b"prep": {"cpu_period": 100000}, b"main": {"cpu_quota": 50000, "cpu_period": 100000}}
    with structlog.testing.capture_logs() as logs:
        bench.run(cri.RunPodSandboxRequest(config=config).SerializeToString())
        for name, resources in quotas.items():
            container = cri.ContainerConfig(metadata={"name": name}, linux={"resources": resources, **masked})
            request = cri.CreateContainerRequest(pod_sandbox_id=b"s1", config=container, sandbox_config=config)
            bench.send(V1 + "CreateContainer", request.SerializeToString())

    done = [[{**change, "old": None} for change in line["changes"]] for line in logs if line["event"] == "rewrite"]
    assert [[{**change.logged(), "old": None} for change in changes] for _, changes in said] == done
    assert len(done) == 3


def test_offline_pod_is_told_the_bandwidth_that_it_gets() -> None:
    node = replace(NODE, hooks=HookSettings(False, Bandwidth(egress=5_000_000)))
    pod = manifest(annotations={EGRESS: "1G"})

    (row,) = [line.split() for line in text(pod, node).splitlines() if EGRESS in line]
    assert row[:4] == [f"annotations[{EGRESS}]", "1G", "5000000", "no"]
    assert EGRESS not in text(pod)


def test_offline_pod_keeps_its_quota_where_the_kernel_takes_it() -> None:
    node = replace(NODE, hooks=HookSettings(child_quota=True))
    assert ("main", "cpu_quota") not in changes(explain(manifest(), node))
    assert "its own stays (cgroup v2)" in text(manifest(), node)


def test_capability_for_real_time_is_told_to_be_dropped() -> None:
    document = {
        "kind": "Pod",
        "metadata": {"name": "p", "labels": {DEFAULT_RULE.key: DEFAULT_RULE.value}},
        "spec": {"containers": [{"name": "main", "securityContext": {"capabilities": {"add": ["SYS_NICE"]}}}]},
    }
    pod = read_manifests(json.dumps(document).encode()).pods[0]
    assert changes(explain(pod, NODE))["main", "drop_capabilities"] == "SYS_NICE"
    assert any(line.split()[:3] == ["drop_capabilities", "(none)", "SYS_NICE"] for line in text(pod).splitlines())


def hostile(**spec: Any) -> Manifest:
    """An offline pod with this in its spec."""
    document = {
        "kind": "Pod",
        "metadata": {"name": "p", "labels": {DEFAULT_RULE.key: DEFAULT_RULE.value}},
        "spec": {"containers": [{"name": "main"}], **spec},
    }
    return read_manifests(json.dumps(document).encode()).pods[0]


def of_main(**of_container: Any) -> dict[str, Any]:
    return {"containers": [{"name": "main", **of_container}]}


SYS_ADMIN = of_main(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}})
UNMASKED = of_main(securityContext={"procMount": "Unmasked"})


def mounting(path: str, **of_mount: Any) -> dict[str, Any]:
    volumes = [{"name": "v", "hostPath": {"path": path}}]
    return {"volumes": volumes, **of_main(volumeMounts=[{"name": "v", **of_mount}])}


SYS = {"volumes": [{"name": "v", "hostPath": {"path": "/sys"}}], **of_main(volumeMounts=[{"name": "v"}])}


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        pytest.param(of_main(securityContext={"privileged": True}), "privileged", id="privileged"),
        pytest.param({"hostPID": True}, "hostPID", id="hostPID"),
        pytest.param({"hostIPC": True}, "hostIPC", id="hostIPC"),
        pytest.param({"hostNetwork": True}, "hostNetwork", id="hostNetwork"),
        pytest.param(of_main(ports=[{"containerPort": 80}, {"hostPort": 22}]), "hostPort 22", id="hostPort"),
        pytest.param(SYS, "a hostPath volume of /sys", id="hostPath"),
        pytest.param(mounting("/etc/cron.d"), "a writable hostPath volume of /etc/cron.d", id="writable"),
        pytest.param(mounting("/root", readOnly=False), "a writable hostPath volume of /root", id="not-read-only"),
    ],
)
def test_what_would_let_a_pod_leave_the_box_is_said_to_be_refused(spec: dict[str, Any], named: str) -> None:
    (refused,) = [line for line in text(hostile(**spec)).splitlines() if line.startswith("refused")]
    assert f"an offline pod may not have {named}" in refused
    allowed = Hardening(allow=(Rule(Subject.NAMESPACE, "", Test.EQUALS, "default"),))
    shown = text(hostile(**spec), replace(NODE, hooks=HookSettings(False, hardening=allowed)))
    assert 'hardening      none, as the node\'s file lets it (hardening.allow): namespace is "default"\n' in shown


@pytest.mark.parametrize(
    ("spec", "row"),
    [
        pytest.param({}, ["seccomp", "Unconfined", "RuntimeDefault"], id="no-profile"),
        pytest.param(UNMASKED, ["proc_mount", "Unmasked", "Default"], id="procMount"),
        pytest.param(SYS_ADMIN, ["add_capabilities", "SYS_ADMIN", "(none)"], id="capability"),
    ],
)
def test_what_is_taken_from_a_pod_is_a_row_of_the_table(spec: dict[str, Any], row: list[str]) -> None:
    assert any(row == [word for word in line.split() if word in row] for line in text(hostile(**spec)).splitlines())


def test_pod_with_users_of_its_own_may_see_all_of_proc() -> None:
    assert ("main", "proc_mount") in changes(explain(hostile(**UNMASKED), NODE))
    assert ("main", "proc_mount") not in changes(explain(hostile(hostUsers=False, **UNMASKED), NODE))


@pytest.mark.parametrize("of", ["pod", "container"])
def test_profile_that_a_pod_names_stays(of: str) -> None:
    context = {"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "a.json"}}}
    pod = hostile(**context) if of == "pod" else hostile(**of_main(**context))
    assert ("main", "seccomp") not in changes(explain(pod, NODE))


def test_text_of_an_offline_pod_is_a_table_of_what_changes_and_why() -> None:
    shown = text(manifest())
    assert 'class          offline: label colocation.criproxy.io/class is "offline"\n' in shown
    assert "place          /offline/podu1 (cgroupfs driver, by a flag of kubelet's)\n" in shown
    rows = [line.split() for line in shown.splitlines()]
    assert ["of", "field", "old", "new", "reason"] in rows
    assert any(row[:4] == ["sandbox", "cgroup_parent", "kubelet's", "/offline/podu1"] for row in rows)
    assert "CPU shares     kubelet's, by its requests, among the pods of the box" in shown
    assert "pids           kubelet's podPidsLimit" in shown
    assert any(row[:3] == ["cpu_quota", "kubelet's", "(none)"] for row in rows)
    assert any(row[:4] == ["init", "container", "prep", "cgroup_parent"] for row in rows)


@pytest.mark.parametrize(
    ("box", "place", "parent"),
    [
        (SYSTEMD, "offline-podu_1.slice", "/offline.slice/offline-podu_1.slice"),
        (
            BoxPath("kubelet-offline.slice"),
            "kubelet-offline-podu_1.slice",
            "/kubelet.slice/kubelet-offline.slice/kubelet-offline-podu_1.slice",
        ),
        (BoxPath("/kubelet/offline"), "/kubelet/offline/podu-1", "/kubelet/offline/podu-1"),
    ],
)
def test_place_is_that_beside_kubelets_own_cgroups(box: BoxPath, place: str, parent: str) -> None:
    node = replace(NODE, box=box)
    assert changes(explain(manifest(uid="u-1"), node))["main", "cgroup_parent"] == parent
    shown = text(manifest(uid="u-1"), node)
    assert f"place          {place} ({box.driver} driver, by a flag of kubelet's)\n" in shown
    assert ["sandbox", "cgroup_parent", "kubelet's", parent] in [line.split()[:4] for line in shown.splitlines()]


def test_driver_that_nobody_tells_gives_both_places_and_an_online_pod_one_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "cgroup_driver", lambda _root: ("", ""))
    shown = []
    for labels in ({DEFAULT_RULE.key: DEFAULT_RULE.value}, {}):
        meta = {"name": "p", "uid": "u1", "labels": labels}
        document = {"kind": "Pod", "metadata": meta, "spec": {"containers": [{"name": "c"}]}}
        (tmp_path / "pod.json").write_text(json.dumps(document))
        shown.append(command.run(str(tmp_path / "pod.json"), Config()))
    unknown = "if that is kubelet's: neither a running criproxy nor kubelet's configuration says so"
    assert f"place          /offline/podu1 (cgroupfs driver, {unknown})\n" in shown[0]
    assert f"place          offline-podu1.slice (systemd driver, {unknown})\n" in shown[0]
    assert shown[1].count("class ") == 1


def test_placement_that_a_manifest_claims_is_shown_as_replaced() -> None:
    shown = text(manifest(annotations={"colocation.criproxy.io/placement": "/kubepods"}))
    assert [
        "annotations[colocation.criproxy.io/placement]", "/kubepods", "/offline/podu1", "records",
    ] in [line.split()[:4] for line in shown.splitlines()]  # fmt: skip


def test_text_of_an_online_pod_says_that_nothing_changes() -> None:
    assert text(manifest(offline=False)).endswith("class          online: every request passes as it came\n")


@pytest.mark.parametrize(
    ("pod", "node", "told"),
    [
        pytest.param(manifest(), replace(NODE, enabled=False), "colocation is off here", id="switched-off"),
        pytest.param(manifest(uid=None), NODE, "the manifest has no uid yet", id="no-uid"),
        pytest.param(manifest(uid="../../x"), NODE, "refused        ", id="hostile-uid"),
        pytest.param(manifest(namespace="kube-system"), NODE, "as a static pod it would be online", id="kube-system"),
        pytest.param(
            manifest(namespace="kube-system", annotations={"kubernetes.io/config.source": "file"}),
            NODE,
            "online (a static pod of kube-system always is)",
            id="static-system",
        ),
    ],
)
def test_text_tells_what_is_special(pod: Manifest, node: NodeFacts, told: str) -> None:
    assert told in text(pod, node)


def test_text_of_a_hostile_pod_is_printable() -> None:
    pod = manifest(name="a\x1b[2Jb", annotations={"colocation.criproxy.io/placement": "\n" + "x" * 10_000})
    assert all(line.isprintable() for line in text(pod).split("\n"))
    assert len(text(pod)) < 20_000


@pytest.mark.parametrize(
    "spec", [mounting("/data"), mounting("/etc/localtime", readOnly=True), mounting("/usr", readOnly=True)]
)
def test_what_may_be_mounted_is_not_said_to_be_refused(spec: dict[str, Any]) -> None:
    assert "refused" not in text(hostile(**spec))
    let = replace(NODE, hooks=replace(NODE.hooks, hardening=Hardening(allow=(DEFAULT_RULE,))))
    assert "not bounded" not in text(hostile(**spec), let)


def asking(containers: list[dict[str, Any]], annotations: dict[str, str] | None = None, **spec: Any) -> Manifest:
    meta = {"name": "p", "uid": "u1", "labels": {DEFAULT_RULE.key: DEFAULT_RULE.value}, "annotations": annotations}
    document = {"kind": "Pod", "metadata": meta, "spec": {"containers": containers, **spec}}
    return read_manifests(json.dumps(document).encode()).pods[0]


UNBOUNDED = {
    "privileged": (
        asking([{"name": "c", "securityContext": {"privileged": True}}]),
        "it has privileged: by that it could leave every bound",
    ),
    "host-pid": (
        asking([{"name": "c"}], hostPID=True),
        "it has hostPID: what it does there, no limit of the box holds",
    ),
    "host-network": (asking([{"name": "c"}], hostNetwork=True), "it has hostNetwork: what it does there, no limit"),
    "host-path": (
        asking(
            [{"name": "c", "volumeMounts": [{"name": "v"}]}],
            volumes=[{"name": "v", "hostPath": {"path": "/sys/fs/cgroup"}}],
        ),
        "it has a hostPath volume of /sys/fs/cgroup: by that it could leave every bound",
    ),
    "writable-host-path": (
        asking(
            [{"name": "c", "volumeMounts": [{"name": "v", "readOnly": True}, {"name": "v"}]}],
            volumes=[{"name": "v", "hostPath": {"path": "/usr"}}],
        ),
        "it has a writable hostPath volume of /usr: the node may run what is there, or go by it, outside the box",
    ),
}


@pytest.mark.parametrize(("pod", "words"), UNBOUNDED.values(), ids=UNBOUNDED)
def test_what_no_bound_holds_is_refused_and_where_it_is_let_its_meaning_is_said(pod: Manifest, words: str) -> None:
    assert "refused        an offline pod may not have" in text(pod)
    let = replace(NODE, hooks=replace(NODE.hooks, hardening=Hardening(allow=(DEFAULT_RULE,))))
    assert f"not bounded    {words}" in text(pod, let)
    assert "not bounded" not in text(manifest(), let)


def test_annotation_says_what_the_pod_is_as_a_whole() -> None:
    asked = {"containers": {"c": {"requests": {"cpu": "2"}, "limits": {"cpu": "1500m", "memory": "64Mi"}}}}
    pod = asking([{"name": "c"}], {"colocation.criproxy.io/resources": json.dumps(asked)})
    assert "by annotation  CPU shares 2048, a memory limit of 64 MiB, 2 CPUs to stay on\n" in text(pod)


NRI = replace(NODE, by_nri=True)


def test_by_nri_only_what_nri_can_set_is_promised() -> None:
    capable = {"capabilities": {"add": ["SYS_NICE"]}}
    pod = hostile(**of_main(resources=LIMITED, securityContext=capable, ports=[{"hostPort": 22}]))
    assert explain(pod, NODE).refused
    found = explain(pod, NRI)
    assert found.refused is None
    assert set(changes(found)) == {("main", "cgroup_parent"), ("main", "oom_score_adj"), ("main", "cpu_quota")}
    told = text(pod, NRI)
    assert "not bounded    the sandbox's own process, which stays in kubelet's cgroup of the pod" in told
    assert "not bounded    seccomp, add_capabilities, drop_capabilities of main, which NRI can't set" in told
    assert "not bounded    it has hostPort 22" in told


@pytest.mark.parametrize("spec", [{"hostPID": True}, of_main(securityContext={"privileged": True}), SYS])
def test_by_nri_what_the_runtime_tells_of_is_refused_as_ever(spec: dict[str, Any]) -> None:
    assert explain(hostile(**spec), NRI).refused


def test_ephemeral_container_is_placed_as_all_others() -> None:
    pod = asking([{"name": "c"}], ephemeralContainers=[{"name": "debug", "image": "busybox"}])
    assert changes(explain(pod, NODE))["debug", "cgroup_parent"] == "/offline/podu1"
    assert "ephemeral container debug" in text(pod)


def test_privileged_ephemeral_container_is_refused() -> None:
    debug = {"name": "debug", "securityContext": {"privileged": True}}
    assert "may not have privileged" in text(asking([{"name": "c"}], ephemeralContainers=[debug]))


def test_runtime_class_is_told_of() -> None:
    assert "runtime        kata: of one that starts virtual machines" in text(
        asking([{"name": "c"}], runtimeClassName="kata")
    )
