"""What no cgroup bounds: what an offline pod is refused, and what is taken from it."""

from typing import Any

import pytest
from msgspec.structs import replace

from criproxy.hooks.hardening import Hardening, HardeningHook
from criproxy.hooks.offline import Rule, Subject, Test
from criproxy.model import HostMount, Operation, Pod, PodRef, PodRequest, Resources, Security, Target
from criproxy.vocabulary.unboundable import (
    CAPABILITIES,
    HOST_PATHS,
    WRITABLE_HOST_PATHS,
    first_holding,
    first_related,
    related,
)

POD = Pod(PodRef("1", "batch", "job"), {"app": "job"})
CONTAINER = PodRequest(Operation.CREATE_CONTAINER, Target.CONTAINER, "/offline/pod1", Resources(), "main", pod=POD)
ALLOWED = Hardening(allow=(Rule(Subject.NAMESPACE, "", Test.EQUALS, "batch"),))
OPEN = Hardening(False, frozenset(["ALL"]), False, frozenset(), (), ("/",), False, False, False)


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        pytest.param(Security(privileged=True), "privileged", id="privileged"),
        pytest.param(Security(host_namespaces=("network",)), "hostNetwork", id="network"),
        pytest.param(Security(host_namespaces=("pid",)), "hostPID", id="pid"),
        pytest.param(Security(host_namespaces=("ipc",)), "hostIPC", id="ipc"),
        pytest.param(Security(host_ports=(10250, 80)), "hostPort 10250", id="host-port"),
    ],
)
def test_what_lets_a_pod_leave_the_box_is_refused_with_its_name_and_the_remedy(asked: Security, named: str) -> None:
    why = Hardening().refusal(asked)
    assert named in why
    assert "hardening.allow" in why
    assert OPEN.refusal(asked) == ""


def test_container_that_adds_more_capabilities_than_there_are_is_refused() -> None:
    fine, many = (Security(added_capabilities=("CHOWN",) * number) for number in (256, 257))
    assert Hardening().refusal(fine) == ""
    assert "more than 256 added capabilities" in Hardening().refusal(many)


def test_what_stays_within_a_pod_is_not_refused() -> None:
    ordinary = Security(unconfined=True, added_capabilities=("NET_RAW",), host_mounts=(HostMount("/data"),))
    assert Hardening().refusal(ordinary) == ""
    assert Hardening().refusal_of_mounts(ordinary.host_mounts) == ""


@pytest.mark.parametrize(
    ("path", "is_refused"),
    [
        *((one.replace("*", "k3s"), True) for one in HOST_PATHS),
        ("/sys/fs/cgroup", True),
        ("/run/containerd/containerd.sock", True),
        ("/", True),
        ("//", True),
        ("/var", True),
        ("/data/../proc/1", True),
        ("/system", False),
        ("/devices", False),
        ("/var/lib", True),
        ("/var/lib/kubelet-backup", False),
        ("/data", False),
        ("/etc", True),
        ("/etc/kubernetes/pki", True),
        ("/var/lib/rancher", True),
        ("/var/lib/rancher/rke2/server/tls", True),
        ("/srv/kubernetes/kube-apiserver", True),
        ("/etc/localtime", False),
        ("/etc/ssl/certs", False),
        ("/usr/share/zoneinfo", False),
        ("/var/lib/rancher/k3s/storage", False),
    ],
)
def test_path_is_refused_where_it_is_in_a_refused_folder_or_has_one(path: str, is_refused: bool) -> None:
    mounts = [HostMount(path, readonly=True)]
    assert (Hardening().refusal_of_mounts(mounts) != "") is is_refused
    assert OPEN.refusal_of_mounts(mounts) == ""


@pytest.mark.parametrize(
    "path",
    [
        *("/etc/cron.d", "/etc/foo/data", "/usr", "/usr/local/share/x", "/bin", "/sbin", "/lib", "/lib64/security"),
        *("/lib32", "/libx32", "/opt", "/opt/bin", "/opt/cni/bin", "/opt/containerd", "/opt/criproxy", "/opt/nri"),
        *("/opt/azure", "/opt/app", "/root", "/root/.ssh", "/boot", "/boot/grub", "/boot/efi", "/efi", "/tmp"),
        *("/home", "/home/ubuntu", "/home/ubuntu/.ssh", "/home/ubuntu/data", "/home/kubernetes/bin", "/local"),
        *("/var/log", "/var/log/pods", "/var/log/spark", "/var/tmp", "/var/spool", "/var/spool/cron", "/var/cache"),
        *("/var/lib/cloud", "/var/lib/criproxy", "/var/lib/dkms", "/var/lib/dpkg", "/var/lib/rpm", "/var/lib/snapd"),
        *("/var/lib/systemd/system", "/var/lib/overlay/1/etc", "/var/system/overlays", "/var/lib/rancher/k3s/data"),
        *("/var/snap", "/var/snap/microk8s/common", "/var/openebs", "/usr/local/vgpu/containers"),
        *("/usr/local/vgpu/containers/u1_main", "/data/../opt", "/etcetera", "/databases/../database/../usr"),
        *("/srv/salt", "/srv/kubernetes/ca.crt", "/media/root-rw/overlay/etc"),
    ],
)
def test_folder_that_is_not_lent_is_refused_where_it_is_writable(path: str) -> None:
    why = Hardening().refusal_of_mounts([HostMount("/data"), HostMount(path)])
    assert why.startswith("an offline pod may not have a ")
    assert f"hostPath volume of {path}" in why
    assert "hardening.allow" in why
    if " writable " in why:
        assert "readOnly: true" in why
        assert "hardening.writable_host_paths" in why
        assert Hardening().refusal_of_mounts([HostMount(path, readonly=True)]) == ""
    assert Hardening(refuse_host_paths=(), writable_host_paths=("/",)).refusal_of_mounts([HostMount(path)]) == ""
    assert OPEN.refusal_of_mounts([HostMount(path)]) == ""


@pytest.mark.parametrize(
    "path",
    [
        *(one.replace("*", "1") for one in WRITABLE_HOST_PATHS),
        *("/data", "/data1/jobs", "/mnt", "/mnt/disk1/yarn", "/mnt1", "/local-ssd/0", "/localdisk"),
        *("/opt/local-path-provisioner/pvc-1", "/var/lib/rancher/k3s/storage/pvc-1", "/var/openebs/local/pvc-1"),
        "/var/snap/microk8s/common/default-storage/pvc-1",
    ],
)
def test_data_of_jobs_may_be_written(path: str) -> None:
    assert Hardening().refusal_of_mounts([HostMount(path)]) == ""
    assert Hardening(writable_host_paths=()).refusal_of_mounts([HostMount(path)])


def test_folder_that_an_administrator_lends_may_be_written_and_what_has_it_in_it_not() -> None:
    lent = Hardening(writable_host_paths=("/opt/app",))
    assert [lent.refusal_of_mounts([HostMount(one)]) for one in ("/opt/app", "/opt/app/x")] == ["", ""]
    assert all(lent.refusal_of_mounts([HostMount(one)]) for one in ("/opt", "/opt/application", "/data"))
    everything = Hardening(writable_host_paths=("/",))
    assert everything.refusal_of_mounts([HostMount("/usr")]) == ""
    assert "leads to /sys" in everything.refusal_of_mounts([HostMount("/")])


@pytest.mark.parametrize(
    ("lists", "looks"),
    [
        ({}, True),
        ({"refuse_host_paths": ()}, True),
        ({"writable_host_paths": ("/",)}, True),
        ({"refuse_host_paths": (), "writable_host_paths": ()}, True),
        ({"refuse_host_paths": (), "writable_host_paths": ("/srv", "/")}, False),
    ],
)
def test_nothing_is_looked_at_where_nothing_is_refused(lists: dict[str, Any], looks: bool) -> None:
    assert Hardening(**lists).looks_at_mounts is looks


def test_folder_holds_itself_and_what_is_in_it_alone() -> None:
    assert first_holding("/a/b", ["/a/c", "/a"]) == "/a"
    assert first_holding("/a/b", ["/a/b"]) == "/a/b"
    assert first_holding("/a", ["/a/b"]) is None
    assert first_holding("/ab/c", ["/a*"]) == "/a*"
    assert first_holding("/x/../a", ["/"]) == "/"


def test_name_that_ends_with_a_star_is_of_all_that_begin_so() -> None:
    assert first_related("/a/bcd/e", ["/a/b*/e"]) == "/a/b*/e"
    assert first_related("/a/bcd", ["/a/b*/e"]) == "/a/b*/e"
    assert first_related("/a/bcd/f", ["/a/b*/e"]) is None
    assert first_related("/a/cb/e", ["/a/b*/e"]) is None
    assert first_related("/a/b*", ["/a/bc"]) is None, "of a pod's path, a star is a star"


def test_related_goes_by_whole_names() -> None:
    assert related("/a/b", "/a/b/")
    assert not related("/a/b", "/a/bc")


def changes(hardening: Hardening, security: Security, request: PodRequest = CONTAINER) -> dict[str, object]:
    return {one.field: one.value for one in HardeningHook(hardening).adjust(replace(request, security=security))}


def test_container_without_a_profile_gets_the_runtime_s() -> None:
    assert changes(Hardening(), Security(unconfined=True)) == {"seccomp": "RuntimeDefault"}
    assert changes(Hardening(), Security()) == {}
    assert changes(replace(Hardening(), seccomp=False), Security(unconfined=True)) == {}


def test_container_that_sees_all_of_proc_gets_the_default() -> None:
    assert changes(Hardening(), Security(unmasked=True)) == {"proc_mount": "Default"}
    assert changes(OPEN, Security(unmasked=True)) == {}


def chosen(hardening: Hardening, request: PodRequest) -> set[str]:
    """The annotations that choose a class of the cache's, of those that are taken away; `*`: all that begin so."""
    keys = ("pod", "container.main", "container.other", "podx")
    annotations = {f"rdt.resources.beta.kubernetes.io/{key}": "Guaranteed" for key in keys} | {"other": "1"}
    asking = replace(request, pod=replace(POD, annotations=annotations))
    found = list(HardeningHook(hardening).adjust(asking))
    assert {(one.field, one.value) for one in found} <= {("annotations", None)}
    return {one.key.partition("/")[2] for one in found}


def test_class_of_the_cache_is_not_an_author_s_to_choose() -> None:
    sandbox = replace(CONTAINER, operation=Operation.RUN_POD_SANDBOX, target=Target.SANDBOX, container="")
    assert chosen(Hardening(), CONTAINER) == {"pod", "container.main"}
    assert chosen(Hardening(), sandbox) == {"pod", "container.*"}
    assert chosen(Hardening(), replace(sandbox, operation=Operation.RESTORE_POD)) == {"pod", "container.*"}
    assert chosen(OPEN, sandbox) == set()
    assert chosen(Hardening(), replace(CONTAINER, operation=Operation.RESTORE_POD)) == set()
    assert chosen(OPEN, CONTAINER) == set()


def test_what_a_pod_asks_of_another_plugin_beyond_shared_cpus_is_taken_from_its_sandbox() -> None:
    keys = ("scheduling-class", "prefer-isolated-cpus", "balloon.balloons", "cpu.preserve", "prefer-shared-cpus")
    scopes = ("", "/pod", *(f"/container.{number}" for number in range(1_000)))
    annotations = {f"{key}.resource-policy.nri.io{scope}": "x" for key in keys for scope in scopes}
    asking = replace(CONTAINER, pod=replace(POD, annotations=annotations))
    sandbox = replace(asking, operation=Operation.RUN_POD_SANDBOX, target=Target.SANDBOX, container="")

    found = list(HardeningHook(Hardening()).adjust(sandbox))

    assert {(one.field, one.value) for one in found} == {("annotations", None)}
    assert sorted(one.key for one in found) == [f"{key}.resource-policy.nri.io*" for key in sorted(keys[:3])]
    assert list(HardeningHook(Hardening()).adjust(asking)) == []
    assert list(HardeningHook(OPEN).adjust(sandbox)) == list(HardeningHook(ALLOWED).adjust(sandbox)) == []


@pytest.mark.parametrize(
    ("added", "kept"),
    [
        pytest.param((), None, id="none"),
        pytest.param(("NET_RAW", "CAP_CHOWN"), None, id="allowed"),
        pytest.param(("NET_ADMIN",), "", id="another"),
        pytest.param(("SYS_ADMIN", "net_raw"), "net_raw", id="some"),
        pytest.param(("ALL",), ", ".join(CAPABILITIES), id="all"),
    ],
)
def test_capabilities_that_are_not_allowed_are_cut(added: tuple[str, ...], kept: str | None) -> None:
    expected = {} if kept is None else {"add_capabilities": kept}
    assert changes(Hardening(), Security(added_capabilities=added)) == expected
    assert changes(OPEN, Security(added_capabilities=added)) == {}


def test_pod_that_a_rule_allows_passes_all_of_it() -> None:
    asked = Security(True, ("pid",), True, ("ALL",), (HostMount("/sys"),))
    assert ALLOWED.lets(POD) == 'namespace is "batch"'
    assert Hardening().lets(POD) is None
    assert changes(ALLOWED, asked) == {}


def test_request_that_does_not_carry_its_pod_is_left_alone() -> None:
    update = replace(CONTAINER, operation=Operation.UPDATE_CONTAINER_RESOURCES, pod=None)
    assert changes(Hardening(), Security(unconfined=True), update) == {}
