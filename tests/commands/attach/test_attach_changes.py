"""What others change while kubelet is attached, and detach in every state of the node."""

from collections.abc import Callable
from pathlib import Path

import pytest

from criproxy.commands.attach import byhand
from criproxy.kubelet.attachment import AttachRecord, attachment, to_json
from criproxy.model import AttachStatus
from tests.commands.attach.attach_bench import (
    DROPIN_WITH_FLAG,
    FLAGS,
    KUBEADM,
    KUBELET_CONFIG,
    ON_PROXY,
    ON_RUNTIME,
    Bench,
    shell_node,
)
from tests.fakes.node import CONFIG, DROPIN, KUBEADM_DROPIN, LISTEN, RUNTIME, STATE, UNIT


def test_kubeadm_upgrade_leaves_kubelet_attached(bench: Bench) -> None:
    bench.node.kubeadm()
    bench.attach()
    bench.node.write(FLAGS, f'KUBELET_KUBEADM_ARGS="--v=4 --container-runtime-endpoint={ON_RUNTIME}"\n')
    bench.node.write(KUBELET_CONFIG, f"{CONFIG}containerRuntimeEndpoint: {ON_RUNTIME}\n")
    bench.node.boot()
    assert bench.node.endpoint == ON_PROXY
    upgraded = {name: content for name, content in bench.node.files().items() if f"/{name}" != DROPIN}
    assert bench.attach() == 0
    assert bench.out.startswith("already attached")
    assert bench.detach() == 0
    assert bench.node.files() == upgraded


def test_a_new_command_of_the_package_is_taken_up_by_the_next_attach(bench: Bench) -> None:
    bench.node.kubeadm()
    bench.attach()
    bench.node.write(KUBEADM, KUBEADM_DROPIN.replace("/usr/bin/kubelet $", "/usr/bin/kubelet --new $"))
    package = bench.node.text(KUBEADM)
    bench.node.boot()
    assert "--new" not in (bench.node.text(DROPIN) or "")
    assert bench.attach() == 0, bench.err
    assert "--new" in (bench.node.text(DROPIN) or "")
    assert bench.node.endpoint == ON_PROXY
    assert bench.detach() == 0
    assert (bench.node.text(DROPIN), bench.node.text(KUBEADM)) == (None, package)


def test_a_command_that_the_package_has_moved_to_another_file_is_followed_by_the_next_attach(bench: Bench) -> None:
    bench.node.kubeadm()
    bench.attach()
    moved = KUBEADM.replace("/usr/lib", "/etc")
    bench.node.write(moved, bench.node.text(KUBEADM) or "")
    (bench.node.root / KUBEADM[1:]).unlink()
    bench.node.boot()
    changed, files = "has changed since", bench.node.files()
    assert changed in attachment(LISTEN, bench.node.root).where
    assert bench.attach(dry_run=True) == 0
    assert changed in attachment(LISTEN, bench.node.root).where
    assert bench.attach() == 0, bench.err
    assert bench.out.startswith("already attached")
    assert attachment(LISTEN, bench.node.root) == AttachStatus("yes", f"by {DROPIN}")
    assert bench.node.files() == files
    assert bench.detach() == 0, bench.err
    assert bench.node.endpoint == ON_RUNTIME


def test_renewal_that_fails_leaves_the_old_attachment(bench: Bench) -> None:
    bench.node.kubeadm()
    bench.attach()
    bench.node.write(KUBEADM, KUBEADM_DROPIN.replace("/usr/bin/kubelet $", "/usr/bin/kubelet --new $"))
    bench.node.boot()
    before, record = bench.node.files(), bench.record()
    bench.node.dies = lambda _endpoint: "--new" in (bench.node.text(DROPIN) or "")
    assert bench.attach() == 1
    assert (bench.node.files(), bench.record(), bench.node.endpoint) == (before, record, ON_PROXY)


def test_detach_keeps_what_somebody_added_to_the_drop_in(bench: Bench) -> None:
    bench.node.kubeadm()
    bench.attach()
    bench.node.write(DROPIN, f"{bench.node.text(DROPIN)}Environment=GODEBUG=x\n")
    assert bench.detach() == 0
    assert bench.node.text(DROPIN) == "[Unit]\n\n[Service]\nEnvironment=GODEBUG=x\n"
    assert "was changed since: only what criproxy wrote is taken out" in bench.out
    assert bench.node.endpoint == ON_RUNTIME


@pytest.mark.parametrize("recorded", [True, False], ids=["record", "lost"])
def test_detach_keeps_a_command_that_somebody_changed_in_the_drop_in(bench: Bench, recorded: bool) -> None:
    bench.node.kubeadm()
    bench.attach()
    if not recorded:
        (bench.node.root / STATE[1:]).unlink()
    bench.node.write(DROPIN, (bench.node.text(DROPIN) or "").replace("/usr/bin/kubelet $", "/usr/bin/kubelet --mine $"))
    assert bench.detach() == 0
    text = bench.node.text(DROPIN) or ""
    assert text.endswith("$KUBELET_EXTRA_ARGS\n")
    assert "--mine" in text
    assert bench.node.endpoint == ON_RUNTIME


def test_detach_keeps_what_somebody_changed_in_the_configuration(bench: Bench) -> None:
    shell_node(bench.node, f"--config={KUBELET_CONFIG}")
    bench.attach()
    edited = (bench.node.text(KUBELET_CONFIG) or "") + "maxPods: 30  # mine\n"
    bench.node.write(KUBELET_CONFIG, edited)
    assert bench.detach() == 0
    assert bench.node.text(KUBELET_CONFIG) == edited.replace(LISTEN, RUNTIME)
    assert f"{KUBELET_CONFIG} names criproxy's socket, and is not as `criproxy attach` has left it" in bench.out


def test_detach_keeps_what_somebody_added_to_the_drop_in_of_the_configuration(bench: Bench) -> None:
    shell_node(bench.node, f"--config={KUBELET_CONFIG} --config-dir=/etc/kubelet.d")
    bench.attach()
    edited = (bench.node.text("/etc/kubelet.d/zz-criproxy.conf") or "") + "maxPods: 30\n"
    bench.node.write("/etc/kubelet.d/zz-criproxy.conf", edited)
    assert bench.detach() == 0
    assert bench.node.text("/etc/kubelet.d/zz-criproxy.conf") == edited.replace(LISTEN, RUNTIME)


def test_detach_leaves_an_endpoint_that_somebody_else_set_since(bench: Bench) -> None:
    shell_node(bench.node, f"--config={KUBELET_CONFIG}")
    bench.attach()
    other = f"{CONFIG}containerRuntimeEndpoint: unix:///run/other.sock\n"
    bench.node.write(KUBELET_CONFIG, other)
    bench.node.served.add("/run/other.sock")
    assert bench.detach() == 0
    assert bench.node.text(KUBELET_CONFIG) == other


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (FLAGS, f'KUBELET_KUBEADM_ARGS="--container-runtime-endpoint={ON_PROXY} --v=2"  \n# end\n'),
        ("/etc/default/kubelet", f"# mine\nKUBELET_EXTRA_ARGS=--container-runtime-endpoint={ON_PROXY}\n"),
        (KUBELET_CONFIG, f"{CONFIG}containerRuntimeEndpoint: {ON_PROXY}  # by hand\n"),
        (f"/etc/systemd/system/{UNIT}.d/20.conf", DROPIN_WITH_FLAG.replace(RUNTIME, LISTEN)),
    ],
    ids=["kubeadm-flags", "extra-args", "config", "drop-in"],
)  # fmt: skip
def test_an_endpoint_that_was_set_by_hand_is_attached_and_can_be_detached(bench: Bench, path: str, text: str) -> None:
    bench.node.kubeadm("--v=2")
    bench.node.write(path, text)
    bench.node.boot()
    assert bench.attach() == 0
    assert bench.out.startswith(f"already attached: kubelet uses {ON_PROXY}, by ")
    assert path in bench.out
    assert bench.detach() == 0, bench.err
    assert bench.node.text(path) == text.replace(LISTEN, RUNTIME)
    assert bench.node.endpoint == ON_RUNTIME


def test_detach_of_an_endpoint_that_no_file_spells_out_says_that_kubelet_still_uses_criproxy(bench: Bench) -> None:
    other_spelling = LISTEN.replace("criproxy/", "criproxy/./")
    bench.node.served.add(other_spelling)
    bench.node.kubeadm(f"--container-runtime-endpoint=unix://{other_spelling}")
    before = bench.node.files()
    assert bench.detach() == 1
    assert "kubelet is still sent to criproxy by a flag of its command line: set its runtime's endpoint" in bench.err
    assert bench.node.files() == before


LINK = f"/var{LISTEN}"


def linked(bench: Bench) -> None:
    """A node with /var/run as a link to /run, as all have it, whose kubelet finds criproxy by that link."""
    (bench.node.root / "var").mkdir(exist_ok=True)
    (bench.node.root / "var/run").symlink_to("../run")
    bench.node.served.add(LINK)
    bench.node.kubeadm()
    bench.node.write(FLAGS, f'KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix://{LINK}"\n')
    bench.node.boot()


def test_detach_of_an_endpoint_that_is_a_link_to_criproxy(bench: Bench) -> None:
    linked(bench)
    assert bench.detach() == 0, bench.err
    assert bench.node.endpoint == ON_RUNTIME


def test_endpoint_that_is_a_link_to_criproxy_is_attached(bench: Bench) -> None:
    linked(bench)
    assert bench.attach() == 0, bench.err
    assert bench.out.startswith(f"already attached: kubelet uses unix://{LINK}, by ")
    assert bench.detach() == 0, bench.err
    assert bench.node.endpoint == ON_RUNTIME


def test_attach_by_the_plain_path_takes_up_a_new_command_of_a_node_attached_by_a_link(bench: Bench) -> None:
    linked(bench)
    bench.node.write(FLAGS, f'KUBELET_KUBEADM_ARGS="--container-runtime-endpoint={ON_RUNTIME}"\n')
    bench.node.boot()
    bench.config.write_text(f'[proxy]\nlisten = "{LINK}"\n')
    assert bench.attach() == 0, bench.err
    assert bench.node.endpoint == f"unix://{LINK}"
    bench.config.write_text("")
    package = KUBEADM_DROPIN.replace("/usr/bin/kubelet $", "/usr/bin/kubelet --v=3 $")
    bench.node.write(KUBEADM, package)
    bench.node.boot()
    before = bench.node.ran.count(f"restart {UNIT}")
    assert bench.attach() == 0, bench.err
    assert bench.node.ran.count(f"restart {UNIT}") == before + 1
    assert "--v=3" in (bench.node.text(DROPIN) or "")
    assert bench.node.endpoint == ON_PROXY
    assert bench.attach() == 0
    assert bench.out.startswith(f"already attached: kubelet uses {ON_PROXY}, by ")
    assert bench.detach() == 0, bench.err
    assert (bench.node.endpoint, bench.node.text(DROPIN), bench.node.text(KUBEADM)) == (ON_RUNTIME, None, package)


def test_detach_of_a_node_that_is_not_attached_says_so(bench: Bench) -> None:
    bench.node.kubeadm()
    ran = list(bench.node.ran)
    assert bench.detach() == 0
    assert bench.out == "not attached: kubelet does not use criproxy\n"
    assert bench.node.ran == ran


def test_detach_of_a_kubelet_that_cannot_start_takes_the_drop_in_out(bench: Bench) -> None:
    bench.node.kubeadm()
    bench.attach()
    bench.node.write(KUBELET_CONFIG, "[")
    bench.node.dies = lambda _endpoint: True
    assert bench.detach() == 1
    assert "kubelet's files no longer name criproxy, but" in bench.err
    assert bench.node.text(DROPIN) is None
    assert bench.detach() == 0
    assert bench.out == "not attached: kubelet does not use criproxy\n"


def test_detach_without_any_kubelet_is_no_failure(bench: Bench) -> None:
    assert bench.detach() == 0
    assert bench.out == "not attached: there is no kubelet.service\n"


CALLS = {"state": "yes", "where": "it calls, whatever is found of its settings: no kubelet.service runs"}


def _microk8s(bench: Bench, endpoint: str) -> None:
    """Its kubelet is a part of its own process, which has kubelet's arguments from a file."""
    arguments = "/var/snap/microk8s/6364/args/kubelet"
    bench.node.write(arguments, f"--root-dir=${{SNAP_COMMON}}/x\n--container-runtime-endpoint={endpoint}\n")
    bench.node.write("/proc/7/comm", "kubelite\n")
    bench.node.write("/proc/7/cmdline", f"/snap/microk8s/6364/kubelite\0--kubelet-args-file={arguments}\0")
    bench.node.write("/proc/7/cgroup", "0::/system.slice/snap.microk8s.daemon-kubelite.service\n")


def _old_k3s(bench: Bench) -> None:
    """Before Kubernetes 1.32: no directory of kubelet's configuration, and k3s hides its arguments."""
    bench.node.rancher("k3s", "k3s.service")
    (bench.node.root / "var/lib/rancher/k3s/agent/etc/kubelet.conf.d/00-k3s-defaults.conf").unlink()
    bench.node.write(f"/proc/{bench.node.pid}/cgroup", "0::/system.slice/k3s.service\n")


def test_detach_of_microk8s_that_was_attached_by_hand_says_how_to_take_it_back(bench: Bench) -> None:
    _microk8s(bench, ON_PROXY)
    assert bench.detach() == 1
    assert "/var/snap/microk8s/6364/args/kubelet names criproxy's socket" in bench.err
    back = "--container-runtime-endpoint=unix:///var/snap/microk8s/common/run/containerd.sock"
    assert f"by hand:\n  in /var/snap/microk8s/current/args/kubelet set {back}\n  then `snap restart" in bench.err


def test_detach_of_k3s_that_was_attached_by_hand_says_how_to_take_it_back(bench: Bench) -> None:
    _old_k3s(bench)
    file = "/etc/rancher/k3s/config.yaml.d/criproxy.yaml"
    bench.node.write(file, f'kubelet-arg+: ["container-runtime-endpoint={ON_PROXY}"]\n')
    before, ran = bench.node.files(), list(bench.node.ran)
    assert bench.detach() == 1
    assert f"{file} names criproxy's socket" in bench.err
    assert f"out of kubelet-arg in {file}, " in bench.err
    assert "systemctl restart k3s.service" in bench.err
    assert (bench.node.files(), bench.node.ran) == (before, ran)


@pytest.mark.parametrize("prepare", [_old_k3s, lambda bench: _microk8s(bench, ON_RUNTIME)], ids=["k3s", "microk8s"])
def test_detach_of_another_kubelet_that_calls_criproxy_says_so(bench: Bench, prepare: Callable[[Bench], None]) -> None:
    prepare(bench)
    bench.node.shown = {"attached": CALLS}
    assert bench.detach() == 1
    assert "`criproxy status` says that it is attached: it calls" in bench.err
    bench.node.shown = {}
    assert bench.detach() == 0, bench.err


@pytest.mark.parametrize(
    ("endpoint", "shown", "said"),
    [
        (ON_PROXY, {}, "names criproxy's socket"),
        (ON_RUNTIME, {"attached": CALLS}, "`criproxy status` says that it is attached: it calls"),
    ],
    ids=["files", "calls"],
)
@pytest.mark.parametrize("active", ["inactive", "activating"])
def test_detach_of_another_kubelet_beside_an_unused_kubelet_service_says_so(
    bench: Bench, endpoint: str, shown: dict[str, object], said: str, active: str
) -> None:
    bench.node.kubeadm()
    bench.node.stop()
    bench.node.active = active
    _microk8s(bench, endpoint)
    bench.node.shown = shown
    assert bench.detach() == 1
    assert said in bench.err


def test_detach_that_is_repeated_on_a_running_kubelet_goes_by_no_earlier_calls(bench: Bench) -> None:
    bench.node.kubeadm()
    bench.node.shown = {"attached": CALLS}
    assert bench.detach() == 0, bench.err


def test_detach_of_an_old_k3s_after_one_that_was_killed_goes_by_no_earlier_calls(bench: Bench) -> None:
    _old_k3s(bench)
    bench.node.write(STATE, to_json(AttachRecord("attached", LISTEN, ON_RUNTIME, ())).decode())
    bench.node.shown = {"attached": CALLS}
    assert bench.detach() == 0, bench.err
    assert bench.node.ran[-1] == "restart k3s.service"
    assert bench.record() is None


def test_detach_of_k3s_whose_config_names_criproxy_in_a_comment_is_no_failure(bench: Bench) -> None:
    _old_k3s(bench)
    bench.node.write("/etc/rancher/k3s/config.yaml.d/x.yaml", f'# kubelet-arg+: ["x={ON_PROXY}"]\n')
    assert bench.detach() == 0, bench.err


ON_A_DEAD_DISK = "unix:///mnt/dead/x.sock"


@pytest.mark.parametrize(
    ("arguments", "cgroup", "asked"),
    [
        (["kubejob", "/mnt/dead/x", "--out=/net/y"], "0::/system.slice/k.service\n", []),
        (["kubejob", "--container-runtime-endpoint", ON_A_DEAD_DISK], "0::/kubepods.slice/x.scope\n", []),
        (["kubejob", ON_A_DEAD_DISK], "1:cpu:/kubepods/burstable/podx/y\n", []),
        (["kubejob", ON_A_DEAD_DISK], "0::/offline.slice/offline-podx.slice/y.scope\n", []),
        (["kubelet", "--container-runtime-endpoint", "/run/k.sock"], "0::/k.service\n", ["/run/k.sock"]),
        (["k3s", "--kubelet-arg=container-runtime-endpoint=unix:/run/k.sock"], "0::/", ["unix:/run/k.sock"]),
        (["k0s", "unix:///run/k.sock"], "0::/docker/0\n", ["unix:///run/k.sock"]),
    ],
    ids=["paths", "flag-in-a-pod", "argument-in-a-pod", "in-the-box", "flag", "in-a-flag", "argument"],
)
def test_detach_asks_only_for_what_may_be_kubelet_s_endpoint(
    arguments: list[str], cgroup: str, asked: list[str]
) -> None:
    """To ask for a path on a file system that is away may take for ever."""
    found: list[str] = []

    def leads(endpoint: str) -> bool:
        found.append(endpoint)
        return False

    assert not byhand.is_sent_to(leads, [(arguments[0], arguments, cgroup)])
    assert found == asked


def test_detach_after_kubelet_was_removed_takes_the_drop_in_away(bench: Bench) -> None:
    bench.node.kubeadm()
    bench.attach()
    bench.node.stop()
    (bench.node.root / "usr/lib/systemd/system/kubelet.service").unlink()
    bench.node.reload()
    assert bench.detach() == 0
    assert (bench.node.text(DROPIN), bench.record()) == (None, None)
    assert not (bench.node.root / DROPIN[1:]).parent.exists()


def test_detach_tells_of_offline_pods_and_how_they_are_released(bench: Bench) -> None:
    bench.node.kubeadm()
    bench.attach()
    bench.node.offline = [("batch", "job")]
    assert bench.detach() == 0
    assert "1 offline pods are in the box still" in bench.out
    assert "\n  batch/job\n" in bench.out
    assert "colocation.enabled = false" in bench.out


def test_detach_is_not_taken_back_when_the_runtime_is_ill(bench: Bench) -> None:
    bench.node.kubeadm()
    bench.attach()
    bench.node.served = {LISTEN}
    assert bench.detach() == 1
    assert "kubelet's files no longer name criproxy, but kubelet has ended" in bench.err
    assert bench.node.text(DROPIN) is None


def test_detach_that_cannot_write_leaves_kubelet_attached(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.node.kubeadm()
    bench.attach()
    attached = bench.node.files()

    def refuse(_self: Path, missing_ok: bool = False) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as read_only:
        read_only.setattr("pathlib.Path.unlink", refuse)
        assert bench.detach() == 1
    assert "Read-only file system" in bench.out
    assert (bench.node.files(), bench.node.endpoint) == (attached, ON_PROXY)


def test_a_changed_listen_asks_for_a_detach_first(bench: Bench) -> None:
    bench.node.kubeadm()
    bench.attach()
    bench.config.write_text('[proxy]\nlisten = "/run/criproxy/new.sock"\n')
    assert bench.attach() == 1
    assert "`criproxy detach` first" in bench.err
    assert bench.detach() == 0
    assert bench.node.endpoint == ON_RUNTIME


def test_files_keep_owner_and_mode(bench: Bench) -> None:
    shell_node(bench.node, f"--config={KUBELET_CONFIG}")
    file = bench.node.root / KUBELET_CONFIG[1:]
    file.chmod(0o640)
    bench.attach()
    assert file.stat().st_mode & 0o7777 == 0o640
    assert (bench.node.root / STATE[1:]).stat().st_mode & 0o077 == 0o044


def _script(bench: Bench) -> None:
    """A script that is no file of the unit starts kubelet, with criproxy's socket in it."""
    bench.node.write(f"/etc/systemd/system/{UNIT}", "[Service]\nExecStart=/opt/start-node\n")
    bench.node.boot()
    words = ("/usr/bin/kubelet", f"--container-runtime-endpoint={ON_PROXY}")
    bench.node.write(f"/proc/{bench.node.pid}/cmdline", "\0".join(words))


def test_attach_where_a_script_names_criproxy_already_says_so(bench: Bench) -> None:
    _script(bench)
    ran = list(bench.node.ran)
    assert bench.attach() == 0, bench.err
    assert bench.out.startswith(f"already attached: kubelet uses {ON_PROXY}, by ")
    assert bench.node.ran == ran


def test_detach_where_a_script_names_criproxy_is_refused_before_anything_is_restarted(bench: Bench) -> None:
    _script(bench)
    ran = list(bench.node.ran)
    assert bench.detach() == 1
    assert "set its runtime's endpoint by hand where it is from" in bench.err
    assert bench.node.ran == ran


def test_detach_where_a_variable_is_the_endpoint_sets_it_to_the_runtime(bench: Bench) -> None:
    bench.node.write("/etc/default/kubelet", f"RUNTIME_ENDPOINT={ON_PROXY}\n")
    command = "/usr/bin/kubelet --container-runtime-endpoint=${RUNTIME_ENDPOINT}"
    unit = f"[Service]\nEnvironmentFile=-/etc/default/kubelet\nExecStart={command}\n"
    bench.node.write(f"/etc/systemd/system/{UNIT}", unit)
    bench.node.boot()
    assert bench.node.endpoint == ON_PROXY
    assert bench.detach() == 0, bench.err
    assert bench.node.text("/etc/default/kubelet") == f"RUNTIME_ENDPOINT={ON_RUNTIME}\n"
    assert bench.node.endpoint == ON_RUNTIME
