"""Attach and detach on nodes of k3s and RKE2: a file in kubelet's directory, a restart of the unit, and both undone."""

import shutil
import signal

import pytest

from criproxy.commands.attach.edits import NodeError
from criproxy.kubelet.attachment import attachment
from tests.commands.attach.attach_bench import ON_PROXY, Bench
from tests.fakes.node import LISTEN, RANCHERS_RUNTIME, FakeNode

NODES = {
    "k3s": ("k3s", "k3s.service"),
    "k3s-agent": ("k3s", "k3s-agent.service"),
    "rke2-server": ("rke2", "rke2-server.service"),
    "rke2-agent": ("rke2", "rke2-agent.service"),
}
ON_RANCHERS = f"unix://{RANCHERS_RUNTIME}"


def own_file(product: str) -> str:
    return f"/var/lib/rancher/{product}/agent/etc/kubelet.conf.d/zz-criproxy.conf"


@pytest.fixture
def rancher(bench: Bench, request: pytest.FixtureRequest) -> Bench:
    bench.config.write_text(f'[proxy]\nruntime = "{RANCHERS_RUNTIME}"\n')
    bench.node.rancher(*NODES[getattr(request, "param", "k3s")])
    return bench


@pytest.mark.parametrize("rancher", NODES, indirect=True)
def test_attach_writes_one_file_that_detach_removes_and_the_unit_restarts(rancher: Bench) -> None:
    node, before = rancher.node, rancher.node.files()
    product = "k3s" if "k3s" in node.unit else "rke2"
    assert rancher.attach() == 0, rancher.err
    assert f"kubelet uses {ON_RANCHERS}, by containerRuntimeEndpoint in /var/lib/rancher/{product}/" in rancher.out
    assert f"note: {node.unit} is more than kubelet" in rancher.out
    assert node.endpoint == ON_PROXY
    assert {f"/{name}" for name, content in node.files().items() if before.get(name) != content} == {own_file(product)}
    assert node.ran[-1] == f"restart {node.unit}"
    said = attachment(LISTEN, node.root)
    assert (said.state, said.where) == ("yes", f"by containerRuntimeEndpoint in {own_file(product)}")
    assert rancher.attach() == 0
    assert rancher.out.startswith(f"already attached: kubelet uses {ON_PROXY}")
    assert rancher.detach() == 0, rancher.err
    assert (node.endpoint, node.files(), rancher.record()) == (ON_RANCHERS, before, None)
    assert node.ran[-1] == f"restart {node.unit}"


@pytest.mark.parametrize("rancher", NODES, indirect=True)
def test_dry_run_changes_nothing_and_names_the_unit(rancher: Bench) -> None:
    before, ran = rancher.node.files(), list(rancher.node.ran)
    assert rancher.attach(dry_run=True) == 0, rancher.err
    assert rancher.out.endswith(f"would run: systemctl restart {rancher.node.unit}\n")
    assert (rancher.node.files(), rancher.node.ran, rancher.record()) == (before, ran, None)


@pytest.mark.parametrize("rancher", NODES, indirect=True)
def test_unit_that_does_not_come_back_on_criproxy_gets_its_files_back(rancher: Bench) -> None:
    node, before = rancher.node, rancher.node.files()
    node.dies = lambda endpoint: endpoint == ON_PROXY
    assert rancher.attach() == 1
    assert rancher.err == "criproxy attach: rolled back: kubelet is as it was\n"
    assert (node.files(), node.active, node.endpoint, rancher.record()) == (before, "active", ON_RANCHERS, None)


@pytest.mark.parametrize("failing", ["daemon-reload", "restart", "reset-failed"])
def test_systemd_that_refuses_once_leaves_the_node_as_it_was(rancher: Bench, failing: str) -> None:
    node, before = rancher.node, rancher.node.files()

    def refuse(command: object) -> None:
        if isinstance(command, tuple) and command[1] == failing:
            node.before_run = lambda _command: None
            raise NodeError(f"systemctl {failing}: refused")

    node.before_run = refuse
    assert rancher.attach() == 1
    assert (node.files(), node.endpoint, rancher.record()) == (before, ON_RANCHERS, None)


def test_attach_that_is_interrupted_during_the_restart_is_undone(rancher: Bench) -> None:
    node, before = rancher.node, rancher.node.files()

    def interrupt(command: object) -> None:
        if isinstance(command, tuple) and command[1] == "restart":
            node.before_run = lambda _command: None
            signal.raise_signal(signal.SIGTERM)

    node.before_run = interrupt
    assert rancher.attach() == 1
    assert (node.files(), node.endpoint, rancher.record()) == (before, ON_RANCHERS, None)


def test_detach_without_its_record_goes_by_the_file(rancher: Bench) -> None:
    before = rancher.node.files()
    rancher.attach()
    (rancher.node.root / "var/lib/criproxy/attach.json").unlink()
    assert rancher.detach() == 0, rancher.err
    assert (rancher.node.files(), rancher.node.endpoint) == (before, ON_RANCHERS)


def test_node_whose_unit_does_not_run_gets_the_file_for_its_next_start(rancher: Bench) -> None:
    node = rancher.node
    node.stop()
    assert rancher.attach() == 0, rancher.err
    assert "kubelet does not run (inactive)" in rancher.out
    node.start()
    assert node.endpoint == ON_PROXY


def test_other_data_directory_and_later_files_are_found(rancher: Bench) -> None:
    node = rancher.node
    node.write("/etc/rancher/k3s/config.yaml.d/10-x.yaml", "data-dir: /srv/k3s\nkubelet-arg: [max-pods=50]\n")
    node.write("/etc/rancher/k3s/config.yaml.d/20-x.yml", "kubelet-arg+:\n- healthz-port=10248\n")
    node.boot()
    assert rancher.attach() == 0, rancher.err
    assert node.text("/srv/k3s/agent/etc/kubelet.conf.d/zz-criproxy.conf") is not None
    assert node.endpoint == ON_PROXY


def unit_with(node: FakeNode, product: str, arguments: str = "", environment: str = "") -> None:
    """The unit's command has these arguments, and the installers' file for its variables this line."""
    unit = f"/etc/systemd/system/{node.unit}"
    file = f"/etc/systemd/system/{node.unit}.env"
    node.write(unit, f"[Service]\nEnvironmentFile=-{file}\nExecStart=/usr/local/bin/{product} server {arguments}\n")
    if environment:
        node.write(file, f"{environment}\n")


@pytest.mark.parametrize("rancher", NODES, indirect=True)
@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        ("--config /srv/own.yaml", ""),
        ("-c /srv/own.yaml", ""),
        ("-c /srv/first.yaml", "{}_CONFIG_FILE=/srv/own.yaml"),
        ("$MORE", 'MORE="-c /srv/own.yaml"'),
        ("--data-dir /srv/data", ""),
        ("-d /srv/data", ""),
        ("", "{}_DATA_DIR=/srv/data"),
        ("-d /srv/data", "{}_DATA_DIR=/srv/elsewhere"),
        ("-c /srv/own.yaml", "{}_DATA_DIR=/srv/elsewhere"),
    ],
    ids=[
        *("config", "c", "variable", "variable-in-the-command", "data-dir", "d"),
        *("data-variable", "d-before-the-variable", "file-before-the-variable"),
    ],
)
@pytest.mark.parametrize("runs", [True, False], ids=["runs", "stopped"])
def test_configuration_and_data_are_where_the_unit_says(
    rancher: Bench, arguments: str, environment: str, runs: bool
) -> None:
    node, product = rancher.node, "k3s" if "k3s" in rancher.node.unit else "rke2"
    default = f"/var/lib/rancher/{product}/agent/etc/kubelet.conf.d/00-{product}-defaults.conf"
    (node.root / default[1:]).unlink()
    node.write("/srv/own.yaml", "data-dir: /srv/data\n")
    unit_with(node, product, arguments, environment.format(product.upper()))
    node.boot()
    if not runs:
        node.stop()
    assert rancher.attach() == 0, rancher.err
    node.start()
    assert node.text("/srv/data/agent/etc/kubelet.conf.d/zz-criproxy.conf") is not None
    assert node.endpoint == ON_PROXY
    assert attachment(LISTEN, node.root).state == "yes"


def attached_with_own_data(rancher: Bench) -> str:
    """Attaches a node whose configuration says where its data is; returns the file that was written."""
    shutil.rmtree(rancher.node.root / "var/lib/rancher")
    rancher.node.write("/etc/rancher/k3s/config.yaml", "data-dir: /data/k3s\n")
    rancher.node.boot()
    assert rancher.attach() == 0, rancher.err
    assert rancher.node.endpoint == ON_PROXY
    return "/data/k3s/agent/etc/kubelet.conf.d/zz-criproxy.conf"


def restart_by(node: FakeNode, command: str) -> None:
    node.write(f"/etc/systemd/system/{node.unit}", f"[Service]\nExecStart={command}\n")
    node.boot()


WRAPPED = ["/usr/bin/taskset -c 0-3 /usr/local/bin/k3s server", "/usr/bin/ionice -c 2 -n 0 /usr/local/bin/k3s server"]
IN_A_SHELL = "/bin/sh -c 'exec /usr/local/bin/k3s server'"


@pytest.mark.parametrize("command", [*WRAPPED, IN_A_SHELL], ids=["taskset", "ionice", "shell"])
def test_detach_finds_the_file_also_behind_another_program_of_the_unit(rancher: Bench, command: str) -> None:
    file = attached_with_own_data(rancher)
    restart_by(rancher.node, command)
    assert rancher.node.endpoint == ON_PROXY
    assert rancher.detach() == 0, rancher.err
    assert f"removed {file}" in rancher.out
    assert (rancher.node.endpoint, rancher.node.text(file), rancher.record()) == (ON_RANCHERS, None, None)


@pytest.mark.parametrize("command", WRAPPED, ids=["taskset", "ionice"])
def test_options_of_a_program_before_k3s_are_not_taken_for_its_own(rancher: Bench, command: str) -> None:
    file = attached_with_own_data(rancher)
    restart_by(rancher.node, command)
    assert attachment(LISTEN, rancher.node.root).where == f"by containerRuntimeEndpoint in {file}"


def test_detach_of_k3s_in_a_shell_goes_by_its_record_again_after_a_restart_that_failed(rancher: Bench) -> None:
    node, file = rancher.node, attached_with_own_data(rancher)
    restart_by(node, IN_A_SHELL)

    def refuse(command: object) -> None:
        if isinstance(command, tuple) and command[1] == "restart":
            node.before_run = lambda _command: None
            raise NodeError("systemctl restart: refused")

    node.before_run = refuse
    assert rancher.detach() == 1
    assert (node.text(file), node.endpoint) == (None, ON_PROXY)
    assert rancher.record() is not None
    assert rancher.detach() == 0, rancher.err
    assert (node.endpoint, rancher.record()) == (ON_RANCHERS, None)


def test_detach_of_k3s_in_a_shell_takes_its_socket_out_of_a_file_that_was_changed_since(rancher: Bench) -> None:
    node, file = rancher.node, attached_with_own_data(rancher)
    edited = f"{node.text(file)}maxPods: 30\n"
    node.write(file, edited)
    restart_by(node, IN_A_SHELL)
    assert rancher.detach() == 0, rancher.err
    assert (node.text(file), node.endpoint) == (edited.replace(LISTEN, RANCHERS_RUNTIME), ON_RANCHERS)


def test_detach_of_k3s_in_a_shell_that_was_never_attached_restarts_nothing(rancher: Bench) -> None:
    restart_by(rancher.node, IN_A_SHELL)
    before, ran = rancher.node.files(), list(rancher.node.ran)
    assert rancher.detach() == 0, rancher.err
    assert (rancher.node.files(), rancher.node.ran) == (before, ran)


def test_dry_run_of_a_detach_of_k3s_in_a_shell_changes_nothing(rancher: Bench) -> None:
    file = attached_with_own_data(rancher)
    restart_by(rancher.node, IN_A_SHELL)
    before, ran, record = rancher.node.files(), list(rancher.node.ran), rancher.record()
    assert rancher.detach(dry_run=True) == 0, rancher.err
    assert file in rancher.out
    assert rancher.out.splitlines()[-1] == f"would run: systemctl restart {rancher.node.unit}"
    assert (rancher.node.files(), rancher.node.ran, rancher.record()) == (before, ran, record)


def test_k3s_in_a_shell_is_told_by_hand(rancher: Bench) -> None:
    restart_by(rancher.node, IN_A_SHELL)
    rancher.node.write(f"/proc/{rancher.node.pid}/cgroup", "0::/system.slice/k3s.service\n")
    before = rancher.node.files()
    assert rancher.attach() == 1
    assert "in /etc/rancher/k3s/config.yaml.d/criproxy.yaml write" in rancher.err
    assert rancher.node.files() == before


def test_argument_that_names_the_runtime_itself_is_told_with_the_remedy(rancher: Bench) -> None:
    path = "/etc/rancher/k3s/config.yaml.d/x.yaml"
    rancher.node.write(path, f"kubelet-arg+:\n- container-runtime-endpoint={ON_RANCHERS}\n")
    rancher.node.boot()
    before = rancher.node.files()
    assert rancher.attach() == 1
    assert f"by {path}: take container-runtime-endpoint out of its kubelet-arg, restart it" in rancher.err
    assert rancher.node.files() == before


def test_argument_that_somebody_has_set_to_criproxy_is_known_and_taken_back(rancher: Bench) -> None:
    path = "/etc/rancher/k3s/config.yaml.d/criproxy.yaml"
    rancher.node.write(path, f'kubelet-arg+: ["container-runtime-endpoint={ON_PROXY}"]\n')
    rancher.node.boot()
    assert rancher.attach() == 0
    assert rancher.out.startswith(f"already attached: kubelet uses {ON_PROXY}, by {path}")
    assert rancher.detach() == 0, rancher.err
    assert rancher.node.text(path) == f'kubelet-arg+: ["container-runtime-endpoint={ON_RANCHERS}"]\n'


def test_configuration_that_is_not_understood_is_named(rancher: Bench) -> None:
    path = "/etc/rancher/k3s/config.yaml"
    rancher.node.write(path, "kubelet-arg: [a\n")
    assert rancher.attach() == 1
    assert rancher.err.startswith(f"criproxy attach: {path}: it is no YAML")
    assert attachment(LISTEN, rancher.node.root).state == "unknown"


def test_unit_of_an_earlier_kubelet_that_is_left_over_is_not_taken_for_the_node_s(rancher: Bench) -> None:
    show = rancher.node.run

    def with_leftover(command: object, timeout_s: float) -> tuple[int, str]:
        if isinstance(command, tuple) and command[:3] == ("systemctl", "show", "kubelet.service"):
            return 0, "LoadState=loaded\nActiveState=inactive\nMainPID=0\nFragmentPath=/etc/systemd/system/k.service\n"
        return show(command, timeout_s)  # type: ignore[arg-type]

    rancher.node.run = with_leftover  # type: ignore[method-assign]
    assert rancher.attach() == 0, rancher.err
    assert rancher.node.ran[-1] == "restart k3s.service"


def test_runtime_that_criproxy_is_not_set_to_is_told_with_its_remedy(bench: Bench) -> None:
    bench.node.rancher("k3s", "k3s.service")
    assert bench.attach() == 1
    assert f'set proxy.runtime = "{RANCHERS_RUNTIME}" in ' in bench.err


def test_k3s_before_its_directory_is_told_by_hand(rancher: Bench) -> None:
    node = rancher.node
    (node.root / "var/lib/rancher/k3s/agent/etc/kubelet.conf.d/00-k3s-defaults.conf").unlink()
    node.write(f"/proc/{node.pid}/cgroup", "0::/system.slice/k3s.service\n")
    assert rancher.attach() == 1
    assert "in /etc/rancher/k3s/config.yaml.d/criproxy.yaml write" in rancher.err
