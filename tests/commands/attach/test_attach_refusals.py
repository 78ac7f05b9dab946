"""What attach refuses, and how it goes when it does not."""

from collections.abc import Sequence

import pytest

from criproxy.commands.attach.edits import NodeError
from tests.commands.attach.attach_bench import ON_PROXY, ON_RUNTIME, Bench, shell_node
from tests.fakes.node import LISTEN, OLD_HELP, UNIT, FakeNode

K0S = 'kubelet.root_dir = "/var/lib/k0s/kubelet"'
MICROK8S = 'kubelet.root_dir = "/var/snap/microk8s/common/var/lib/kubelet"'
OF_THE_MACHINE = "         0          0 4294967295\n"
OF_A_USER = "         0       1000          1\n         1     100000      65536\n"


def _crio(node: FakeNode) -> None:
    node.served.add("/run/crio/crio.sock")
    node.kubeadm("--container-runtime-endpoint=unix:///run/crio/crio.sock")


def _other_runtime(node: FakeNode) -> None:
    node.served.add("/run/other.sock")
    node.kubeadm("--container-runtime-endpoint=unix:///run/other.sock")


def _dockershim(node: FakeNode) -> None:
    node.help = OLD_HELP
    node.served.add("/var/run/dockershim.sock")
    node.kubeadm("--container-runtime-endpoint=unix:///var/run/dockershim.sock")


def _not_running(node: FakeNode) -> None:
    node.criproxy = False
    node.kubeadm()


def _does_not_serve(node: FakeNode) -> None:
    node.served.discard(LISTEN)
    node.kubeadm()


def _other_config(node: FakeNode) -> None:
    node.runtime_of_criproxy = "/run/old.sock"
    node.kubeadm()


def _nri(node: FakeNode) -> None:
    node.shown = {"nri": {"connected": True}}
    node.kubeadm()


def _ill(node: FakeNode) -> None:
    node.healthy = lambda _endpoint: False
    node.kubeadm()


def _shell(node: FakeNode) -> None:
    shell_node(node, f"--container-runtime-endpoint={ON_RUNTIME}")


def _no_socket(node: FakeNode) -> None:
    node.served.add("tcp://1.2.3.4:5")
    node.kubeadm("--container-runtime-endpoint=tcp://1.2.3.4:5")


def _bad_unit(node: FakeNode) -> None:
    node.kubeadm()
    node.write(f"/etc/systemd/system/{UNIT}.d/50.conf", '[Service]\nExecStart=\nExecStart=/usr/bin/kubelet "open\n')
    node._loaded[f"/etc/systemd/system/{UNIT}.d/50.conf"] = ""


def _rootless(node: FakeNode) -> None:
    node.kubeadm()
    node.write(f"/proc/{node.pid}/uid_map", OF_A_USER)


def _rootless_of_no_unit(node: FakeNode) -> None:
    _process(node, "k3s-server", "/user.slice/user-1000.slice/user@1000.service/app.slice/k3s-rootless.service")


def _rootless_in_a_container(node: FakeNode) -> None:
    _process(node, "kubelet", "/user.slice/user-1000.slice/user@1000.service/user.slice/docker-0a.scope/kubelet.slice")


def _in_a_namespace_itself(node: FakeNode) -> None:
    node.kubeadm()
    node.write("/proc/self/uid_map", OF_A_USER)


def _process(node: FakeNode, name: str, cgroup: str, uid_map: str = OF_A_USER) -> None:
    for file, text in {"comm": f"{name}\n", "cmdline": f"{name}\0", "cgroup": f"0::{cgroup}\n"}.items():
        node.write(f"/proc/77/{file}", text)
    node.write("/proc/77/uid_map", uid_map)


REFUSED = {
    "cri-o": (_crio, 'set proxy.listen = "/run/criproxy/run/crio/crio.sock"'),
    "other-runtime": (_other_runtime, 'set proxy.runtime = "/run/other.sock"'),
    "dockershim": (_dockershim, "built-in dockershim"),
    "criproxy-dead": (_not_running, "`systemctl start criproxy` first"),
    "criproxy-deaf": (_does_not_serve, "criproxy does not serve: /run/criproxy/criproxy.sock: UNAVAILABLE"),
    "criproxy-by-nri": (_nri, "take the DaemonSet's pod off this node"),
    "criproxy-of-an-older-config": (_other_config, "`systemctl restart criproxy` first"),
    "kubelet-ill": (_ill, "kubelet is not well as it is"),
    "shell": (_shell, f"by hand, set --container-runtime-endpoint={ON_PROXY}"),
    "no-unix-socket": (_no_socket, "'tcp://1.2.3.4:5' is no unix socket"),
    "rootless": (_rootless, "(pid 101 with the uid_map 0 1000 1; 1 100000 65536)"),
    "rootless-of-no-unit": (_rootless_of_no_unit, "kubelet is rootless: it runs in a user namespace (pid 77"),
    "rootless-in-a-container": (_rootless_in_a_container, "leave it at its runtime, or run Kubernetes as root"),
    "rootless-itself": (_in_a_namespace_itself, "(/proc/self/uid_map has 0 1000 1; 1 100000 65536)"),
    "unit-that-cannot-start": (_bad_unit, "No closing quotation: kubelet cannot start like this"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_attach_refuses_with_a_remedy_and_touches_nothing(bench: Bench, case: str) -> None:
    prepare, told = REFUSED[case]
    prepare(bench.node)
    before, ran = bench.node.files(), list(bench.node.ran)
    assert bench.attach() == 1
    assert told in bench.err
    assert (bench.node.files(), bench.node.ran, bench.record()) == (before, ran, None)


def test_attach_of_a_kubelet_in_the_machines_own_user_namespace_is_done(bench: Bench) -> None:
    bench.node.kubeadm()
    for process in ("self", f"{bench.node.pid}"):
        bench.node.write(f"/proc/{process}/uid_map", OF_THE_MACHINE)
    _process(bench.node, "kubelet", "/kubepods/podu1/0a", OF_A_USER)  # a pod's own, in a pod with a user namespace

    assert bench.attach() == 0, bench.err


def test_pod_with_a_user_namespace_and_a_kubelet_of_its_own_makes_no_rootless_node(bench: Bench) -> None:
    _process(bench.node, "kubelet", "/kubepods.slice/kubepods-podu1.slice/cri-containerd-0a.scope")

    assert bench.attach() == 1
    assert "rootless" not in bench.err


def test_attach_with_a_bad_config_fails_with_its_errors(bench: Bench) -> None:
    bench.config.write_text("[proxy]\nlisten = 3\n")
    assert bench.attach() == 1
    assert "proxy.listen" in bench.err


def test_attach_takes_a_runtime_socket_by_another_path_for_the_same(bench: Bench) -> None:
    (bench.node.root / "var").mkdir()
    (bench.node.root / "var/run").symlink_to("../run")
    bench.node.served.add("/var/run/containerd/containerd.sock")
    bench.node.kubeadm("--container-runtime-endpoint=unix:///var/run/containerd/containerd.sock")
    assert bench.attach() == 0, bench.err


def test_attach_leaves_image_calls_where_they_are_and_says_so(bench: Bench) -> None:
    bench.node.kubeadm(f"--container-runtime-endpoint={ON_RUNTIME} --image-service-endpoint=unix:///run/lazy.sock")
    assert bench.attach() == 0
    assert "image calls stay on unix:///run/lazy.sock" in bench.out


def test_attach_of_an_old_kubelet_with_a_remote_runtime_is_done(bench: Bench) -> None:
    bench.node.help = OLD_HELP
    bench.node.kubeadm(f"--container-runtime=remote --container-runtime-endpoint={ON_RUNTIME}")
    assert bench.attach() == 0, bench.err
    assert bench.node.endpoint == ON_PROXY


def test_attach_before_kubelet_runs_prepares_its_start(bench: Bench) -> None:
    bench.node.active = "inactive"
    bench.node.kubeadm()
    assert bench.attach() == 0, bench.err
    assert "it will use criproxy from its start on" in bench.out
    assert bench.node.ran == ["daemon-reload"]
    bench.node.start()
    assert bench.node.endpoint == ON_PROXY


@pytest.mark.parametrize(
    ("name", "cgroup", "told"),
    [
        ("k3s-agent", "k3s-agent.service", ("that of k3s before Kubernetes 1.32", "/etc/rancher/k3s/")),
        ("kubelet", "rke2-server.service", ("that of RKE2", "/etc/rancher/rke2/config.yaml.d")),
        ("kubelite", "snap.microk8s.daemon-kubelite.service", ("that of MicroK8s", "snap restart microk8s", MICROK8S)),
        ("kubelet", "k0sworker.service/kubelet", ("that of k0s", "--kubelet-extra-args", K0S)),
        ("kubelet", "snap.kubelet-eks.daemon.service", ("that of a snap", "snap set")),
        ("sshd", "ssh.service", ("no kubelet.service, and no kubelet runs",)),
    ],
    ids=["k3s", "rke2", "microk8s", "k0s", "snap", "none"],
)  # fmt: skip
def test_attach_of_another_kubelet_says_what_to_do_by_hand(
    bench: Bench, name: str, cgroup: str, told: tuple[str, ...]
) -> None:
    bench.node.write("/proc/7/comm", f"{name}\n")
    bench.node.write("/proc/7/cgroup", f"0::/system.slice/{cgroup}\n")
    assert bench.attach() == 1
    assert [word for word in told if word not in bench.err] == []


@pytest.mark.parametrize(
    ("cgroup", "told"),
    [
        ("0::/system.slice/docker-0123.scope\n", "runs in a container"),
        ("0::/system.slice/my-kubelet.service\n", "but my-kubelet.service"),
    ],
    ids=["container", "unit"],
)
def test_attach_of_a_kubelet_elsewhere_says_what_to_do_by_hand(bench: Bench, cgroup: str, told: str) -> None:
    bench.node.write("/proc/7/comm", "kubelet\n")
    bench.node.write("/proc/7/cmdline", "kubelet\0--v=2\0")
    bench.node.write("/proc/7/cgroup", cgroup)
    assert bench.attach() == 1
    assert told in bench.err


@pytest.mark.parametrize("endpoint", [ON_PROXY, f"unix:///var{LISTEN}"], ids=["socket", "link"])
def test_detach_of_another_kubelet_that_uses_criproxy_says_so(bench: Bench, endpoint: str) -> None:
    (bench.node.root / "var").mkdir(exist_ok=True)
    (bench.node.root / "var/run").symlink_to("../run")
    bench.node.write("/proc/7/comm", "kubelet\n")
    bench.node.write("/proc/7/cmdline", f"kubelet\0--container-runtime-endpoint={endpoint}\0")
    assert bench.detach() == 1
    assert "by somebody's hand" in bench.err


def test_a_machine_without_systemd_is_told(bench: Bench) -> None:
    def missing(_command: Sequence[str]) -> None:
        raise NodeError("systemctl: No such file or directory: is this a node with systemd?")

    bench.node.before_run = missing
    assert bench.attach() == 1
    assert "is this a node with systemd?" in bench.err


def test_a_node_has_one_front(bench: Bench) -> None:
    bench.node.kubeadm()
    bench.config.write_text('[proxy]\nfront = "nri"\n')
    assert bench.attach() == 1
    assert f'{bench.config}: proxy.front = "nri"' in bench.err
    assert "remove the key" in bench.err
    assert bench.node.ran == []
