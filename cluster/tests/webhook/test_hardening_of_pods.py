"""Which offline pods are refused when they are made, and which get users of their own."""

import base64
import json

import pytest

from criproxy_cluster.cli import main
from criproxy_cluster.webhook.admission import answer
from criproxy_cluster.webhook.conversion import ConversionSettings
from criproxy_cluster.webhook.hardening import HardeningSettings

NONE = HardeningSettings()
OFFLINE = {"colocation.criproxy.io/class": "offline"}


def asked(spec, *, labels=OFFLINE, annotations=None, namespace="batch", settings=NONE):
    meta = {"name": "p", "labels": labels, "annotations": annotations or {}}
    pod = {"metadata": meta, "spec": {"containers": [{"name": "c"}], **spec}}
    request = {"uid": "u1", "operation": "CREATE", "namespace": namespace, "object": pod}
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return json.loads(answer(json.dumps(body).encode(), ConversionSettings(hardening=settings)).body)["response"]


def volume(path):
    return {"volumes": [{"name": "v", "hostPath": {"path": path}}]}


def mounted(path, *mounts, kind="containers"):
    """A volume that one container mounts so, in each of these ways."""
    made = {"name": "m", "volumeMounts": [{"name": "v", "mountPath": f"/{n}", **one} for n, one in enumerate(mounts)]}
    return {**volume(path), kind: [made]}


READ_ONLY = {"readOnly": True}


def containers(**fields):
    return {"containers": [{"name": "c", **fields}]}


REFUSED = {
    "privileged": (containers(securityContext={"privileged": True}), "privileged"),
    "a privileged init container": (
        {"initContainers": [{"name": "i", "securityContext": {"privileged": True}}]},
        "privileged",
    ),
    "hostNetwork": ({"hostNetwork": True}, "hostNetwork"),
    "hostPID": ({"hostPID": True}, "hostPID"),
    "hostIPC": ({"hostIPC": True}, "hostIPC"),
    "a port of the node": (containers(ports=[{"containerPort": 1}, {"hostPort": 10250}]), "hostPort 10250"),
    "a port of the node for an init container": (
        {"initContainers": [{"name": "i", "ports": [{"hostPort": 22}]}]},
        "hostPort 22",
    ),
    "more capabilities than there are": (
        containers(securityContext={"capabilities": {"add": ["CHOWN"] * 257}}),
        "more than 256 added capabilities",
    ),
    "the cgroups": (volume("/sys/fs/cgroup"), "a hostPath volume of /sys/fs/cgroup, which leads to /sys"),
    "the runtime's socket": (volume("/run/containerd/containerd.sock"), "a hostPath volume of /run/containerd"),
    "the root": (volume("/"), "a hostPath volume of /"),
    "dots": (volume("/data/../proc"), "a hostPath volume of /data/../proc"),
    "the cluster's keys": (mounted("/etc/kubernetes/pki", READ_ONLY), "a hostPath volume of /etc/kubernetes/pki"),
    "timers": (mounted("/etc/cron.d", {}), "a writable hostPath volume of /etc/cron.d, as"),
    "pods' logs": (mounted("/var/log", {}), "a writable hostPath volume of /var/log, as"),
    "a folder of an application's": (mounted("/opt/app", {}), "a writable hostPath volume of /opt/app, as"),
    "the shell's settings": (mounted("/root", {"readOnly": False}), "a writable hostPath volume of /root"),
    "written by an init container": (mounted("/usr", {}, kind="initContainers"), "a writable hostPath volume of /usr"),
    "written in one of two places": (mounted("/boot", READ_ONLY, {}), "a writable hostPath volume of /boot"),
    "above what the runtime runs": (mounted("/opt", {}), "a writable hostPath volume of /opt, as"),
    "who may log in": (mounted("/home/ubuntu/.ssh", {}), "a writable hostPath volume of /home/ubuntu/.ssh"),
    "read-only by a word of the author's": (
        mounted("/usr", {"readOnly": "true"}),
        "a writable hostPath volume of /usr",
    ),
    "read-only in name": (mounted("/usr", {"recursiveReadOnly": "Enabled"}), "a writable hostPath volume of /usr"),
}


@pytest.mark.parametrize(("spec", "named"), REFUSED.values(), ids=REFUSED)
def test_an_offline_pod_that_could_leave_the_box_is_refused_with_the_remedy(spec, named):
    found = asked(spec)
    assert (found["allowed"], found["status"]["code"]) == (False, 403)
    assert f"criproxy: an offline pod may not have {named}" in found["status"]["message"]
    assert "--trusted-namespace" in found["status"]["message"]
    assert asked(spec, labels={})["allowed"]
    assert asked(spec, settings=HardeningSettings(trusted=frozenset(["batch"])))["allowed"]
    assert not asked(spec, settings=HardeningSettings(trusted=frozenset(["other"])))["allowed"]


def test_a_long_path_is_not_repeated_as_a_whole():
    assert len(json.dumps(asked(volume("/a/../" * 300_000)))) < 1000


@pytest.mark.parametrize(
    "spec",
    [
        volume("/data"),
        volume(""),
        volume("/usr"),
        mounted("/data", {}),
        mounted("/mnt/disks/ssd0", {}),
        mounted("/opt/local-path-provisioner/pvc-1", {}),
        mounted("/var/log", READ_ONLY),
        mounted("/etc/localtime", READ_ONLY),
        mounted("/etc/ssl", {**READ_ONLY, "recursiveReadOnly": "Enabled"}, kind="initContainers"),
        mounted("/usr/share/zoneinfo", READ_ONLY, READ_ONLY),
        {**volume("/usr"), **containers(volumeMounts=[{"name": "other"}, None])},
        {**volume("/usr"), **containers(volumeMounts="nonsense")},
        {"volumes": [{"name": "v", "emptyDir": {}}]},
        {"volumes": "nonsense"},
        {"hostNetwork": False},
        containers(ports=[{"containerPort": 80}, {"hostPort": 0}, {"hostPort": "nonsense"}, None]),
        containers(securityContext={"privileged": False}),
        containers(securityContext=None),
        containers(securityContext={"capabilities": {"add": ["CHOWN", "SYS_ADMIN"]}}),
        containers(securityContext={"capabilities": {"add": "nonsense"}}),
    ],
    ids=str,
)
def test_another_pod_is_not_refused(spec):
    assert asked(spec)["allowed"]


def test_folder_that_nodes_lend_may_be_written_where_the_webhook_knows_of_it():
    lent = HardeningSettings(lent=("/data*", "/opt/app"))
    for path in ("/opt/app", "/opt/app/x", "/data1"):
        assert asked(mounted(path, {}), settings=lent)["allowed"]
    for path in ("/opt", "/opt/application", "/mnt"):
        said = asked(mounted(path, {}), settings=lent)["status"]["message"]
        assert f"a writable hostPath volume of {path}, as" in said
        assert "--writable-host-path" in said


@pytest.mark.parametrize("folder", ["opt/app", "/opt/*app"])
def test_lent_folder_that_is_no_absolute_path_is_an_error_that_names_it(capsys, folder):
    with pytest.raises(SystemExit):
        main(["webhook", "--writable-host-path", folder])
    assert f"--writable-host-path: {folder} is not an absolute path" in capsys.readouterr().err


def host_users(spec, settings):
    found = asked(spec, settings=settings)
    patch = json.loads(base64.b64decode(found.get("patch", base64.b64encode(b"[]"))))
    return [step["value"] for step in patch if step["path"] == "/spec/hostUsers"]


OWN = HardeningSettings(trusted=frozenset(["batch"]), own_users=True)


def test_a_pod_gets_users_of_its_own_where_that_is_asked_for_and_it_can():
    assert host_users({}, OWN) == [False]
    assert host_users({}, HardeningSettings()) == []
    for spec in ({"hostUsers": True}, {"hostUsers": False}, {"hostNetwork": True}, {"hostPID": True}):
        assert host_users(spec, OWN) == []
    assert host_users(containers(volumeDevices=[{"name": "d", "devicePath": "/d"}]), OWN) == []


@pytest.mark.parametrize(("spec", "named"), REFUSED.values(), ids=REFUSED)
def test_a_spark_driver_is_refused_only_where_it_stays_offline(spec, named):
    labels = {**OFFLINE, "spark-role": "driver"}
    assert asked(spec, labels=labels)["allowed"]
    found = asked(spec, labels=labels, annotations={"colocation.criproxy.io/keep-requests": "true"})
    assert named in found["status"]["message"]
