"""The lab itself: what tests, demo and benchmarks take for granted."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from integration.lab import cgroups, images
from integration.lab import cri_client_pb2 as cri
from integration.lab.cgroups import Tree
from integration.lab.clean import clean, clean_abandoned, leftovers
from integration.lab.client import METHODS, TRIES, CriClient, PatientClient
from integration.lab.containerd import Containerd, shim_sockets
from integration.lab.criproxy import CHECKOUT, ENGINE, LETS_THE_LAB, Criproxy
from integration.lab.directory import abandoned, cgroup_root, claimed, mounts_below, socket_path
from integration.lab.kubelet import SYSCTLS, Kubelet, static_pod
from integration.lab.naming import spelled
from integration.lab.process import LabError, Process, is_running, wait_until
from integration.programs import build

FOREVER = ["sleep", "2147483647"]


# --- processes ------------------------------------------------------------------------------------------------------


def test_process_that_ends_early_raises_with_its_status_and_the_end_of_its_log(tmp_path: Path) -> None:
    child = Process("child", ["sh", "-c", "echo why; exit 3"], tmp_path / "log")
    with pytest.raises(LabError, match=r"(?s)child ended with status 3, before a miracle.*\nwhy$"):
        child.wait_until(lambda: False, 60, "a miracle")


def test_wait_until_in_vain_raises_with_what_was_awaited() -> None:
    with pytest.raises(LabError, match=r"waited 0\.1 s in vain for a miracle$"):
        wait_until(lambda: False, 0.1, "a miracle")


def test_process_that_ignores_sigterm_is_killed_by_stop(tmp_path: Path) -> None:
    child = Process("child", ["sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.1; done"], tmp_path / "log")
    child.wait_until((tmp_path / "log").read_text, 30, "deafness")
    child.stop(timeout_s=0.3)
    assert child.exit_status == -signal.SIGKILL


def test_process_ends_with_its_owner_that_was_killed(tmp_path: Path) -> None:
    script = (
        "import os, pathlib, signal; from integration.lab.process import Process\n"
        f"child = Process('child', ['sleep', '600'], pathlib.Path({str(tmp_path / 'log')!r}))\n"
        "child.wait_until(lambda: pathlib.Path(f'/proc/{child.pid}/comm').read_text() == 'sleep\\n', 30, 'exec')\n"
        "print(child.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    pid = int(subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=False).stdout)
    wait_until(lambda: not is_running(pid), 60, "the child's end")


# --- cgroups --------------------------------------------------------------------------------------------------------


def test_tree_takes_a_process_in_every_hierarchy_and_kills_and_removes_it(lab: Path) -> None:
    tree, leaf = Tree(cgroup_root(lab)), Tree(f"{cgroup_root(lab)}/a/b")
    leaf.make()
    child = Process("child", FOREVER, lab / "log")
    for hierarchy in cgroups.hierarchies():
        (hierarchy.directory(leaf.path) / "cgroup.procs").write_text(str(child.pid))
    assert set(cgroups.of_process(child.pid).values()) == {leaf.path}
    assert tree.pids() == {child.pid}
    tree.kill()
    assert child.exit_status == -signal.SIGKILL
    tree.remove()
    assert tree.directories() == []


def test_tree_with_a_frozen_process_is_killed(lab: Path) -> None:
    freezer = next((h for h in cgroups.hierarchies() if "freezer" in h.controllers), None)
    if freezer is None:
        pytest.skip("cgroup v1's freezer only: v2 kills frozen processes")
    tree = Tree(cgroup_root(lab))
    tree.make()
    child = Process("child", FOREVER, lab / "log")
    (freezer.directory(tree.path) / "cgroup.procs").write_text(str(child.pid))
    (freezer.directory(tree.path) / "freezer.state").write_text("FROZEN")
    tree.kill()
    assert child.exit_status == -signal.SIGKILL


# --- images ---------------------------------------------------------------------------------------------------------


def test_archive_written_twice_is_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        images.write_archive(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with tarfile.open(tmp_path / "a") as archive:
        assert {"oci-layout", "index.json"} <= set(archive.getnames())


@pytest.mark.parametrize(
    ("program", "complaint"),
    [
        pytest.param(Path("/bin/sh"), "linked dynamically", id="dynamic"),
        pytest.param(Path("/nowhere/busybox"), "No such file", id="missing"),
    ],
)
def test_busybox_that_can_not_serve_is_refused_with_the_remedy(program: Path, complaint: str) -> None:
    with pytest.raises(LabError, match=f"{complaint}.* busybox-static"):
        images.read_busybox(program)


# --- directories ----------------------------------------------------------------------------------------------------


@pytest.fixture
def base() -> Iterator[Path]:
    """A base of the test's own, so that labs beside it are not cleaned."""
    directory = Path(tempfile.mkdtemp(prefix="criproxy-lab-test-", dir="/run"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def test_directory_is_abandoned_once_its_owner_has_let_go(base: Path) -> None:
    with claimed(base) as directory:
        assert abandoned(base) == []
    assert abandoned(base) == [directory]


def test_socket_path_that_is_too_long_is_refused_with_the_remedy(tmp_path: Path) -> None:
    assert len(os.fsencode(socket_path(Path("/" + 100 * "x"), "12345"))) == 107
    with pytest.raises(LabError, match=r"has 108 bytes, a socket's path at most 107: use a shorter directory"):
        socket_path(Path("/" + 100 * "x"), "123456")


# --- containerd -----------------------------------------------------------------------------------------------------


def test_containerd_has_the_images(client: CriClient) -> None:
    assert client.image_names() == set(images.NAMES)


def test_pod_runs_in_its_cgroup_and_leaves_nothing(
    containerd: Containerd, client: CriClient, cgroup_parent: str
) -> None:
    pod = client.run_pod("web", uid="u1", cgroup_parent=cgroup_parent)
    container = client.run_container(pod, "main", FOREVER, env={"GREETING": "hello"})
    pids = [client.pid(pod), client.pid(container)]
    for pid in pids:
        own = cgroups.of_process(pid)
        assert {os.path.dirname(path) for path in own.values()} == {cgroup_parent}
    answer = client.exec_sync(container, ["sh", "-c", "echo $GREETING; exit 3"])
    assert (answer.stdout, answer.exit_code) == (b"hello\n", 3)
    sockets = shim_sockets(containerd.directory)
    assert sockets
    assert all(path.is_socket() for path in sockets)

    client.stop_and_remove(pod)
    assert [pid for pid in pids if is_running(pid)] == []
    left = [os.path.basename(spelled(cgroup_parent)) for _ in cgroups.hierarchies()]
    wait_until(
        lambda: [directory.name for directory in Tree(cgroup_parent).directories()] == left, 60, "the last cgroup to go"
    )
    wait_until(lambda: not mounts_below(containerd.directory), 60, "the last mount to go")
    wait_until(lambda: not any(path.exists() for path in sockets), 60, "the shim's socket to go")


class RefusingRuntime:
    """A runtime's answers, in their order; "" is one that is no refusal."""

    def __init__(self, *words: str) -> None:
        self.words = [*words]

    def __call__(self, *_: object) -> str:
        if word := self.words.pop(0):
            raise grpc.RpcError(f"criproxy refuses CreateContainer of offline pod batch/job: {word}")
        return "made"


AGAIN = "kubelet tries again by itself"
ROOM = f"the node did not make room for it within 0.45 s; {AGAIN}"
HANDS_OVER = f"criproxy hands over to a new process, and the old one was too slow for it; {AGAIN}"
SENTRY = f"criproxy has not placed this container: it does not run, or has yet to come back to the runtime; {AGAIN}"
CLOSED = f"an operator holds criproxy off; {AGAIN}"


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> Iterator[PatientClient]:
    monkeypatch.setattr("integration.lab.client.PAUSE_S", 0.001)
    with PatientClient("/nowhere") as client:
        yield client


def call(client: PatientClient, refusals: RefusingRuntime, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(CriClient, "call", refusals)
    return client.call("CreateContainer", cri.CreateContainerRequest())


def test_patient_client_asks_again_where_criproxy_was_late(
    patient: PatientClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(patient, RefusingRuntime(ROOM, HANDS_OVER, ""), monkeypatch) == "made"


@pytest.mark.parametrize("word", [SENTRY, CLOSED, "no such image"], ids=["sentry", "closed", "runtime"])
def test_patient_client_asks_once_where_another_refuses(
    patient: PatientClient, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(grpc.RpcError, match=word):
        call(patient, RefusingRuntime(word, ""), monkeypatch)


def test_patient_client_gives_up_in_time(patient: PatientClient, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = RefusingRuntime(*[ROOM] * 1000)
    with pytest.raises(grpc.RpcError, match="did not make room"):
        call(patient, refusals, monkeypatch)
    assert len(refusals.words) == 1000 - TRIES


def test_both_api_versions_show_the_same_pods(containerd: Containerd, client: CriClient, cgroup_parent: str) -> None:
    pod = client.run_pod("web", uid="u1", cgroup_parent=cgroup_parent)
    with CriClient(containerd.socket, "runtime.v1alpha2") as old:
        method = METHODS["ListPodSandbox"]
        assert old.path(method.name) == "/runtime.v1alpha2.RuntimeService/ListPodSandbox"
        assert [item.id for item in old.list_pods()] == [pod.id]
        assert old.list_pods() == client.list_pods()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_pods_outlive_a_containerd_that_ends(
    containerd: Containerd, client: CriClient, cgroup_parent: str, end: str
) -> None:
    pod = client.run_pod("web", uid="u1", cgroup_parent=cgroup_parent)
    container = client.run_container(pod, "main", FOREVER)
    pid, old = client.pid(container), containerd.pid
    getattr(containerd, end)()
    assert not client.is_ready()
    assert is_running(pid)
    containerd.start()
    wait_until(client.is_ready, 60, "the client's connection")
    assert containerd.pid != old
    assert client.pid(container) == pid
    assert client.exec_sync(container, ["echo", "here"]).stdout == b"here\n"


OWNER = """
import os, signal, sys
from pathlib import Path
from integration.lab.cgroups import Tree
from integration.lab.client import CriClient
from integration.lab.containerd import Containerd, shim_sockets
from integration.lab.directory import cgroup_root, claimed
with claimed(Path(sys.argv[1])) as lab:
    containerd = Containerd(lab)
    containerd.start()
    with CriClient(containerd.socket) as client:
        parent = cgroup_root(lab) + "/kubepods/besteffort/pod1"
        Tree(parent).make()
        pod = client.run_pod("web", uid="u1", cgroup_parent=parent)
        container = client.run_container(pod, "main", ["sh", "-c", "while :; do sleep 0.1; done"])
        print(lab, shim_sockets(lab)[0], containerd.pid, client.pid(pod), client.pid(container), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_clean_after_the_owner_was_killed_leaves_nothing(base: Path) -> None:
    done = subprocess.run([sys.executable, "-c", OWNER, base], stdout=subprocess.PIPE, text=True, check=False)
    lab, socket, *pids = done.stdout.split()
    assert is_running(int(pids[-1])), "the pod was to outlive its owner"
    assert leftovers(Path(lab)) != []
    assert clean_abandoned(base) == [Path(lab)]
    assert leftovers(Path(lab)) == []
    wait_until(lambda: not any(is_running(int(pid)) for pid in pids), 60, "the last of the lab's processes to end")
    assert not Path(socket).exists()
    assert not Path(lab).exists()


def test_clean_twice_is_fine(lab: Path) -> None:
    clean(lab)
    clean(lab)


# --- kubelet --------------------------------------------------------------------------------------------------------


def test_kubelet_runs_a_static_pod_keeps_it_over_a_restart_and_ends_it(lab: Path) -> None:
    sysctls = {name: Path("/proc/sys", name).read_text() for name in SYSCTLS}
    containerd = Containerd(lab)
    containerd.start()
    kubelet = Kubelet(lab, containerd.socket)
    kubelet.start()
    with CriClient(containerd.socket, "runtime.v1alpha2") as client:
        kubelet.add_pod(static_pod("web", labels={"app": "web"}))
        pod = kubelet.wait_running("web")
        pid = client.pid_of(pod.containers["main"])
        parent = f"{cgroup_root(lab)}/kubepods/besteffort/pod{pod.uid}"
        assert os.path.dirname(cgroups.of_process(pid)["memory" if cgroups.version() == 1 else ""]) == parent

        kubelet.restart()
        assert kubelet.wait_running("web") == pod
        assert is_running(pid)

        kubelet.remove_pod("web")
        kubelet.wait_gone(pod)
        assert not is_running(pid)
        ended = cri.PodSandboxState.SANDBOX_NOTREADY  # kubelet removes ended sandboxes once a minute
        wait_until(lambda: all(item.state == ended for item in client.list_pods()), 120, "the sandbox to end")
    assert {name: Path("/proc/sys", name).read_text() for name in SYSCTLS} == sysctls


# --- criproxy -------------------------------------------------------------------------------------------------------


def test_criproxy_configuration_is_completed_with_the_lab_s_own_paths(lab: Path) -> None:
    rules = [{"label": "tier", "equals": 'a "quoted" \\ ünï'}, {"namespace": True, "prefix": "batch-"}]
    proxy = Criproxy(lab, Path("/run/x.sock"), {"colocation": {"enabled": True, "rules": rules}})
    assert tomllib.loads(proxy.config_file.read_text()) == {
        "proxy": {"listen": str(lab / "criproxy.sock"), "runtime": "/run/x.sock", "engine": ENGINE},
        "observe": {"address": proxy.address},
        "control": {"checkpoint": str(lab / "criproxy.checkpoint")},
        "colocation": {"enabled": True, "rules": rules},
        "hardening": LETS_THE_LAB,
    }


def test_criproxy_is_ready_once_its_runtime_is_and_again_after_a_kill(lab: Path) -> None:
    containerd = Containerd(lab)
    proxy = Criproxy(lab, containerd.socket)
    proxy.start(until_ready=False)
    assert not proxy.is_ready()
    containerd.start()
    wait_until(proxy.is_ready, 60, "readiness")
    proxy.kill()
    assert proxy.http("/healthz") == (0, "")
    proxy.start()
    assert proxy.status()["pid"] == proxy.pid
    with CriClient(proxy.socket) as client:
        assert client.image_names() == set(images.NAMES)
    assert "listening" in [event["event"] for event in proxy.events()]


# --- programs of today ----------------------------------------------------------------------------------------------


def test_program_that_is_not_built_is_named_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(LabError, match=r"kube-scheduler is not built .*: integration/setup control-plane$"):
        build.find("kube-scheduler")


@pytest.mark.parametrize(
    ("project", "chosen"), [(project, chosen) for project, there in build.VERSIONS.items() for chosen in there]
)
def test_project_is_of_the_version_that_is_asked_for(
    project: str, chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(project.upper(), chosen)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    program = {"kubernetes": "kubectl", "containerd": "ctr"}[project]
    with pytest.raises(LabError, match=f"/{project}-{re.escape(chosen)}-[0-9a-f]+/{program} is not there"):
        build.find(program)


def test_built_kubectl_says_its_version() -> None:
    command = [str(build.find("kubectl")), "version", "--client"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"Client Version: v{build.version()}." in said


@pytest.mark.parametrize(("variable", "there"), [("KUBERNETES", "1.37 or 1.34"), ("CONTAINERD", "2.4 or 2.1 or 1.7")])
def test_version_that_is_not_here_is_refused(variable: str, there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "1.20")
    with pytest.raises(LabError, match=re.escape(f"{variable}=1.20: set it to {there}, or unset it")):
        build.find("kubectl")


# --- what README has people call ------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["bench", "demo"])
def test_command_of_readme_starts_in_a_new_shell(command: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([CHECKOUT / command, "--help"], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert f"usage: ./{command}" in done.stdout
