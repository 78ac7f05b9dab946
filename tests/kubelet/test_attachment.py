"""What `criproxy status` says of the attachment."""

from collections.abc import Callable
from pathlib import Path

import pytest

from criproxy.commands.attach.command import run
from criproxy.kubelet.attachment import attachment
from criproxy.model import AttachStatus
from tests.fakes.node import DROPIN, LISTEN, STATE, FakeNode

KUBEADM = "/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf"
CONFIG = "/var/lib/kubelet/config.yaml"
SEE = "; see `criproxy attach`"


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path / "root").kubeadm()


def attach(node: FakeNode) -> None:
    config = node.root / "config.toml"
    config.write_text("")
    assert run("attach", config, False, node, node.root) == 0


def told(node: FakeNode) -> tuple[str, str]:
    found = attachment(LISTEN, node.root)
    return found.state, found.where


def test_kubelet_on_its_runtime_is_not_attached(node: FakeNode) -> None:
    assert told(node) == ("no", "kubelet uses unix:///run/containerd/containerd.sock; see `criproxy attach`")


def test_attached_kubelet_is_told_with_its_drop_in(node: FakeNode) -> None:
    attach(node)
    assert told(node) == ("yes", f"by {DROPIN}")


USED = "kubelet uses unix:///run/containerd/containerd.sock"
LOST = (
    f"{USED}, though it was attached, so new offline pods are not bounded: `criproxy attach` again, or "
    "`criproxy detach` to forget the attachment"
)


def _back_on_its_runtime(node: FakeNode) -> None:
    (node.root / DROPIN[1:]).unlink()
    node.boot()


def test_attachment_that_somebody_else_undid_is_a_problem_until_attach_or_detach(node: FakeNode) -> None:
    assert attachment(LISTEN, node.root).problem == ""
    attach(node)
    assert attachment(LISTEN, node.root).problem == ""
    _back_on_its_runtime(node)
    found = attachment(LISTEN, node.root)
    assert (found.state, found.problem) == ("no", LOST)
    attach(node)
    assert attachment(LISTEN, node.root) == AttachStatus("yes", f"by {DROPIN}")
    _back_on_its_runtime(node)
    assert run("detach", node.root / "config.toml", False, node, node.root) == 0
    assert attachment(LISTEN, node.root).problem == ""


def test_attachment_to_a_socket_that_criproxy_has_left_is_a_problem(node: FakeNode) -> None:
    attach(node)
    found = attachment("/run/criproxy/new.sock", node.root)
    assert (found.state, found.problem) == (
        "no",
        f"kubelet is attached to {LISTEN}, not to /run/criproxy/new.sock: `criproxy detach`, then `criproxy attach`",
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [('"attached"', '"changing"'), ("{", ""), ('"version": 1', '"version": 2')],
    ids=["attach-at-work", "spoilt", "of-another-version"],
)
def test_kubelet_off_criproxy_is_no_problem_where_no_finished_record_tells(node: FakeNode, old: str, new: str) -> None:
    attach(node)
    node.write(STATE, (node.text(STATE) or "").replace(old, new, 1))
    _back_on_its_runtime(node)
    assert attachment(LISTEN, node.root) == AttachStatus("no", f"{USED}{SEE}")


def test_copy_of_a_command_that_has_changed_is_told(node: FakeNode) -> None:
    attach(node)
    node.write(KUBEADM, (node.text(KUBEADM) or "").replace("/usr/bin/kubelet $", "/usr/bin/kubelet --new $"))
    stale = f"by {DROPIN}; the command in {KUBEADM} has changed since: `criproxy attach` again takes that up"
    assert told(node) == ("yes", stale)
    attach(node)
    assert told(node) == ("yes", f"by {DROPIN}")


@pytest.mark.parametrize("line", ["# new\n", "Restart=no\n"], ids=["comment", "another-setting"])
def test_copy_of_a_command_whose_file_has_changed_elsewhere_is_as_good_as_before(node: FakeNode, line: str) -> None:
    attach(node)
    node.write(KUBEADM, f"{node.text(KUBEADM)}{line}")
    assert told(node) == ("yes", f"by {DROPIN}")


def test_kubelet_that_was_not_restarted_since_is_told_as_it_runs(node: FakeNode) -> None:
    attach(node)
    (node.root / DROPIN[1:]).unlink()
    assert told(node) == ("yes", "by a flag")


@pytest.mark.parametrize(
    ("config", "drop_in", "found"),
    [
        (f"containerRuntimeEndpoint: unix://{LISTEN}  # x\n", "", ("yes", f"by containerRuntimeEndpoint in {CONFIG}")),
        (f'{{"containerRuntimeEndpoint":"unix://{LISTEN}"}}', "", ("yes", f"by containerRuntimeEndpoint in {CONFIG}")),
        (f"a: 1\n# containerRuntimeEndpoint: unix://{LISTEN}\n", "", ("no", f"kubelet uses its default{SEE}")),
        (f"containerRuntimeEndpoint: unix://{LISTEN}\n", "unix:///o", ("no", f"kubelet uses unix:///o{SEE}")),
        ("a: 1\n", f"unix://{LISTEN}", ("yes", "by containerRuntimeEndpoint in /k.d/1.conf")),
    ],
    ids=["yaml", "json", "comment", "drop-in-of-another", "drop-in"],
)  # fmt: skip
def test_endpoint_of_the_configuration_is_told_with_its_file(
    node: FakeNode, config: str, drop_in: str, found: tuple[str, str]
) -> None:
    node.write("/var/lib/kubelet/kubeadm-flags.env", "KUBELET_KUBEADM_ARGS=--config-dir=/k.d\n")
    node.write("/k.d/1.conf", f"containerRuntimeEndpoint: {drop_in}\n" if drop_in else "b: 1\n")
    node.write(CONFIG, config)
    node.served.add("/o")
    node.boot()
    assert told(node) == found


def _gone(node: FakeNode) -> None:
    node.write("/sys/fs/cgroup/system.slice/kubelet.service/cgroup.procs", "")


def _spoilt_record(node: FakeNode) -> None:
    attach(node)
    node.write(STATE, "{")


@pytest.mark.parametrize(
    ("prepare", "why"),
    [(_gone, "no kubelet.service runs"), (_spoilt_record, "Input data was truncated")],
    ids=["not-running", "spoilt-record"],
)
def test_what_cannot_be_told_is_unknown(node: FakeNode, prepare: Callable[[FakeNode], None], why: str) -> None:
    prepare(node)
    state, where = told(node)
    assert (state, where.startswith(why)) == ("unknown", True)


@pytest.mark.parametrize(
    ("place", "state"),
    [
        ("", "no"),
        ("runtime.slice/", "no"),
        ("kube.slice/kube-node.slice/", "no"),
        ("systemd/system.slice/", "no"),
        ("systemd/runtime.slice/", "no"),
        ("unified/runtime.slice/", "no"),
        ("kubepods.slice/kubepods-pod1.slice/cri-1.scope/system.slice/", "unknown"),
        ("kubepods/pod1/1/system.slice/", "unknown"),
        ("system.slice/docker-1.scope/system.slice/", "unknown"),
    ],
    ids=[
        "no-slice", "v2", "v2-slice-in-a-slice", "v1-default", "v1", "hybrid", "pod-s-own", "pod-s-own-cgroupfs",
        "container-s-own",
    ],
)  # fmt: skip
def test_kubelet_service_is_found_in_the_slice_that_its_unit_names(node: FakeNode, place: str, state: str) -> None:
    (node.root / "sys/fs/cgroup/system.slice/kubelet.service/cgroup.procs").unlink()
    node.write(f"/sys/fs/cgroup/{place}kubelet.service/cgroup.procs", f"{node.pid}\n")
    assert told(node)[0] == state


def test_helpers_of_kubelet_are_not_taken_for_it(node: FakeNode) -> None:
    node.write("/proc/7/comm", "mount.nfs\n")
    node.write("/sys/fs/cgroup/system.slice/kubelet.service/cgroup.procs", f"7\n{node.pid}\n")
    assert told(node)[0] == "no"
