"""The chart's installer on a node with systemd, dpkg and kubelet: its Jobs, by a real control plane, in the real image.

`integration/setup installer` makes the image and renders the chart. Objects are made and replaced as Helm does it, and
the control plane's own controllers make the pods. What differs from a cluster: the API server's Service is an address
of the node's own, as there is no kube-proxy, and kubelet reports its node each minute at least, not each five.

The tests run in their order: each finds the node as the one before has left it.
"""

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest

from integration.lab import cri_client_pb2 as cri
from integration.lab.control_plane import ApiError, ControlPlane
from integration.lab.installer_jobs import IMAGE, NEWER_IMAGE, NODE, OBJECTS
from integration.lab.kubelet import find_kubelet, static_pod
from integration.lab.load import Load
from integration.lab.process import LabError, wait_until
from integration.systemd import package, service
from integration.systemd import test_attach as kubelet
from integration.systemd.service import LISTEN, show, systemctl
from integration.systemd.test_install import told
from integration.systemd.test_package import NOT_WATCHED, files

pytestmark = [
    pytest.mark.skipif(not IMAGE.exists(), reason="needs the image: integration/setup installer"),
    pytest.mark.timeout(3600),
]

Say = Callable[[str], object]
T = TypeVar("T")
Before = tuple[set[str], dict[Path, bytes], tuple[str, int]]
"""The node's files, kubelet's, and the container of the ordinary pod, before the first Job."""

NAMESPACE = "criproxy-node"
WHERE = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
    "ConfigMap": f"/api/v1/namespaces/{NAMESPACE}/configmaps",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Job": f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs",
}
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
SERVICE = "10.0.0.1"
"""The API server's, of the control plane's own range."""
ADDRESS = "service-address"
"""The units that serve it."""
CONFIG = Path("/etc/criproxy/config.d/40-chart.toml")
JOB_S, SOON_S = 900.0, 300.0
KUBELETS_OWN = "/var/lib/kubelet/", "/var/scratch/"
"""What changes there is kubelet's, and the control plane's."""


class Log:
    """What a Job's container says; also once its pod has been deleted, and its file with it."""

    def __init__(self, job: str, say: Say) -> None:
        def find() -> list[Path]:
            return list(Path("/var/log/pods").glob(f"{NAMESPACE}_{job}-*/installer/0.log"))

        (path,) = wait_until(find, SOON_S, f"the log of {job}", poll_s=1)
        self._file = path.open()
        self._say = say
        self._text = ""

    def read(self) -> str:
        """All of it by now. Source: Kubernetes, the CRI's log format: TIME STREAM P|F TEXT."""
        if new := "".join(line.split(" ", 3)[-1] for line in self._file):
            self._say(new)
        self._text += new
        return self._text

    def wait_for(self, words: str) -> None:
        wait_until(lambda: words in self.read(), JOB_S, f"the log to have {words!r}", poll_s=0.5)


class Release:
    """The chart's, on this control plane."""

    def __init__(self, plane: ControlPlane, say: Say) -> None:
        self.plane = plane
        self.say = say
        self._objects: Mapping[str, list[dict[str, Any]]] = json.loads(OBJECTS.read_text())
        self._revision = 0

    def upgrade(self, name: str) -> str:
        """As Helm does it: all objects of the next revision, then the Jobs that it has no more go; the Job's name."""
        self._revision += 1
        before = [one["metadata"]["name"] for one in self._jobs()]
        for one in self._objects[name]:
            if one["kind"] == "Job":
                job = f"{one['metadata']['name'].removesuffix('-1')}-{self._revision}"
                self._apply({**one, "metadata": {**one["metadata"], "name": job}})
            else:
                self._apply(one)
        for old in before:
            self.plane.call("DELETE", f"{WHERE['Job']}/{old}", {"propagationPolicy": "Background"})
        return job

    def _apply(self, one: Mapping[str, Any]) -> None:
        try:
            self.plane.call("POST", WHERE[one["kind"]], one)
        except ApiError as error:
            if error.code != 409:
                raise
            self.plane.merge(f"{WHERE[one['kind']]}/{one['metadata']['name']}", one)

    def _jobs(self) -> list[Any]:
        if not self.plane.exists(f"{WHERE['Namespace']}/{NAMESPACE}"):
            return []
        return list(self.plane.call("GET", WHERE["Job"])["items"])

    def pods(self, job: str) -> list[Any]:
        return list(self.plane.call("GET", f"{PODS}?labelSelector=job-name={job}")["items"])

    def log(self, job: str) -> Log:
        return Log(job, self.say)

    def end(self, job: str, log: Log | None = None) -> tuple[str, str]:
        """How the Job has ended: Complete or Failed; and what it has said."""
        told = log or self.log(job)

        def ended() -> list[str]:
            told.read()
            conditions = self.plane.call("GET", f"{WHERE['Job']}/{job}")["status"].get("conditions", [])
            return [one["type"] for one in conditions if one["type"] in ("Complete", "Failed")]

        try:
            (found,) = asked(ended, f"{job} to end")
        except LabError as error:
            raise LabError(f"{error}: {self.pods(job)}") from error
        return found, told.read()

    def restarts(self, job: str) -> int:
        (pod,) = self.pods(job)
        (status,) = pod["status"]["containerStatuses"]
        return int(status["restartCount"])

    def wait_gone(self, job: str) -> None:
        asked(lambda: not self.pods(job), f"the pod of {job} to go")


def asked(question: Callable[[], T], what: str) -> T:
    """Its answer, once there is one. Seldom: each question to the API server costs an emulated node much time."""

    def answer() -> T | None:
        with contextlib.suppress(OSError, ApiError):
            return question()
        return None

    found = wait_until(answer, JOB_S, what, poll_s=3)
    assert found is not None
    return found


def serve_address(plane: ControlPlane) -> None:
    """The API server answers pods at its Service's address."""
    forward = ["/usr/lib/systemd/systemd-socket-proxyd", plane.url.removeprefix("https://")]
    listens = [f"--unit={ADDRESS}", f"--socket-property=ListenStream={SERVICE}:443"]
    subprocess.run(["systemd-run", *listens, *forward], check=True)


@contextlib.contextmanager
def no_answer_for_pods(plane: ControlPlane) -> Iterator[None]:
    """The API server answers kubelet alone: a Job can't learn that the node is ready."""
    systemctl("stop", f"{ADDRESS}.socket", f"{ADDRESS}.service")
    try:
        yield
    finally:
        serve_address(plane)


@pytest.fixture(scope="module")
def release(say: Say) -> Release:
    """A node of a control plane, with one ordinary pod; nothing of criproxy is on it."""
    say("the image is imported")
    for archive in (IMAGE, NEWER_IMAGE):
        subprocess.run(["ctr", "-n", "k8s.io", "images", "import", str(archive)], check=True, timeout=900)
    service._import_images()
    say("the control plane starts")
    plane = ControlPlane(Path("/var/scratch"))
    plane.start(scheduler=False)
    subprocess.run(["ip", "address", "add", f"{SERVICE}/32", "dev", "lo"], check=True)
    serve_address(plane)
    say("kubelet starts")
    Path("/usr/bin/kubelet").symlink_to(find_kubelet())
    kubelet.MANIFESTS.mkdir(parents=True)
    kubelet.KUBELET_CONFIG.parent.mkdir(parents=True, exist_ok=True)
    kubelet.KUBELET_CONFIG.write_text(json.dumps(kubelet._configuration() | {"nodeStatusReportFrequency": "1m"}))
    (kubelet.MANIFESTS / "pod.json").write_text(json.dumps(static_pod("web")))
    joins = f"KUBELET_EXTRA_ARGS=--kubeconfig={plane.node_kubeconfig(NODE)}\n"
    kubelet.set_up("kubeadm-flags", {kubelet.DEFAULTS: joins})

    def ready() -> bool:
        conditions = plane.call("GET", f"/api/v1/nodes/{NODE}")["status"]["conditions"]
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    asked(ready, "the node to be ready")
    say("the node is ready")
    return Release(plane, say)


@pytest.fixture(scope="module")
def before(release: Release) -> Before:
    web = told("web")
    assert release and web is not None
    return watched(), kubelet.files(), web


@pytest.fixture(autouse=True)
def ordinary_pod(before: Before) -> Iterator[None]:
    """It is as it was, after each test."""
    yield
    assert wait_until(lambda: told("web"), SOON_S, "the ordinary pod", poll_s=1) == before[2]


def watched() -> set[str]:
    return {path for path in files() if not path.startswith(KUBELETS_OWN) and not NOT_WATCHED.match(path)}


def version() -> str:
    return package.dpkg("-s", "criproxy").stdout.partition("Version: ")[2].partition("\n")[0]


def test_config_with_an_error_fails_the_job_and_attaches_nothing(release: Release, before: Before) -> None:
    ended, log = release.end(release.upgrade("error"))
    assert ended == "Failed"
    assert "would let everybody on the network in" in log
    assert "node: criproxy check ended with 1" in log
    assert (kubelet.endpoint(), kubelet.files()) == (kubelet.ON_RUNTIME, before[1])
    assert not CONFIG.exists()


def test_pod_that_is_deleted_amid_attach_puts_kubelet_back(release: Release, before: Before) -> None:
    job = release.upgrade("install")
    log = release.log(job)
    log.wait_for("criproxy-install: criproxy attach")
    wait_until(kubelet.OURS.exists, SOON_S, "the drop-in", poll_s=0.2)
    (pod,) = release.pods(job)
    release.plane.call("DELETE", f"{PODS}/{pod['metadata']['name']}")
    ended, _ = release.end(job, log)
    assert ended == "Failed"
    assert "rolled back: kubelet is as it was" in log.read()
    assert "node: criproxy attach ended with 1" in log.read()
    release.wait_gone(job)
    assert (kubelet.endpoint(), kubelet.files()) == (kubelet.ON_RUNTIME, before[1])


def test_install_attaches_kubelet_and_ends_though_it_restarts_beneath(release: Release) -> None:
    job = release.upgrade("install")
    ended, log = release.end(job)
    assert (ended, release.restarts(job)) == ("Complete", 0), log
    assert kubelet.endpoint() == kubelet.ON_PROXY
    assert "kubelet is well, and calls come through criproxy" in log
    (config,) = [one for one in json.loads(OBJECTS.read_text())["install"] if one["kind"] == "ConfigMap"]
    assert CONFIG.read_text() == config["data"]["config.toml"]
    package.wait_status("colocation    on")


def test_install_again_upgrades_the_package_without_a_failed_call(release: Release, say: Say) -> None:
    old, began = version(), show("kubelet.service", "ExecMainStartTimestampMonotonic")
    calls = {
        "Version": lambda client: client.call("Version", cri.VersionRequest()),
        "lists": lambda client: (client.list_pods(), client.call("ListContainers", cri.ListContainersRequest())),
    }
    with Load(LISTEN, calls, pause_s=0.2) as load:
        ended, log = release.end(release.upgrade("newer"))
    say(load.summary())
    assert ended == "Complete", log
    assert load.failures == []
    assert (old, version()) == (deb_version(), deb_version(newer=True))
    assert package.is_mapped(service.main_pid(), package.code())
    assert "already attached" in log
    assert (kubelet.endpoint(), show("kubelet.service", "ExecMainStartTimestampMonotonic")) == (kubelet.ON_PROXY, began)


def deb_version(newer: bool = False) -> str:
    return package.deb(newer).name.split("_")[1]


def test_upgrade_of_the_release_ends_a_job_that_waits_and_the_node_stays_attached(release: Release) -> None:
    with no_answer_for_pods(release.plane):
        waits = release.upgrade("newer")
        log = release.log(waits)
        log.wait_for("already attached")
        job = release.upgrade("newer")
        release.wait_gone(waits)
    assert "node: stopped by SIGTERM after `criproxy attach`, which is complete and stays" in log.read()
    ended, _ = release.end(job)
    assert (ended, kubelet.endpoint()) == ("Complete", kubelet.ON_PROXY)


def test_remove_leaves_the_node_as_it_was(release: Release, before: Before) -> None:
    job = release.upgrade("remove")
    ended, log = release.end(job)
    assert (ended, release.restarts(job)) == ("Complete", 0), log
    assert (kubelet.endpoint(), kubelet.files()) == (kubelet.ON_RUNTIME, before[1])
    assert systemctl("list-units", "--all", "--plain", "--no-legend", "*criproxy*", "*offline*") == ""
    assert watched() - before[0] == set()
    ended, log = release.end(release.upgrade("remove"))
    assert (ended, "the host has no criproxy" in log) == ("Complete", True), log
