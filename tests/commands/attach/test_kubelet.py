"""The node's kubelet as it is: its command, the words that it runs by, and the endpoint by every place of it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.commands.attach.host import Host
from criproxy.commands.attach.kubelet import (
    UNNAMED,
    Command,
    NodeKubelet,
    command_of,
    look,
    renamed,
)
from criproxy.kubelet.flags import socket_path
from criproxy.kubelet.units import logical_lines
from tests.fakes.node import LISTEN, OLD_HELP, UNIT, FakeNode

FLAG = "--container-runtime-endpoint"
PATH = f"/etc/systemd/system/{UNIT}"
RUN, KEY = "ExecStart=/usr/bin/kubelet", "containerRuntimeEndpoint"
CONFIG = {"/k.yaml": f"{KEY}: unix:///config\nhealthzPort: 1\n"}
DROPINS = {
    "/d/10.conf": f"{KEY}: unix:///ten\n",
    "/d/20/x.conf": f"{KEY}: unix:///twenty\n",
    "/d/30.yaml": f"{KEY}: unix:///no\n",
    "/d/40.conf": "healthzPort: 2\n",
}
ALL = {**CONFIG, **DROPINS}
BY_CONFIG = ("unix:///config", f"{KEY} in /k.yaml")
DEFAULT = ("unix:///run/containerd/containerd.sock", "kubelet's default")
IN_UNIT, FROM_FILE = f"Environment=A={FLAG}=unix:///env", "EnvironmentFile=-/e"


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path / "root")


def seen(node: FakeNode, files: dict[str, str], *lines: str, active: str = "active") -> NodeKubelet:
    """The kubelet of a unit with these lines."""
    for path, text in {**files, PATH: "\n".join(("[Service]", *lines, ""))}.items():
        node.write(path, text)
    node.active = active
    node.dies = lambda _endpoint: False
    node.served |= {f"/{name}" for name in ("config", "twenty", "flag", "2", "a", "env", "file")}
    node.boot()
    found = look(Host(node, node.root))
    assert found is not None
    return found


@pytest.mark.parametrize("active", ["active", "inactive"])
@pytest.mark.parametrize(
    ("lines", "files", "found"),
    [
        pytest.param([RUN], {}, DEFAULT, id="default"),
        pytest.param([f"{RUN} --config=/k.yaml"], ALL, BY_CONFIG, id="config"),
        pytest.param(
            [f"{RUN} --config=/k.yaml --config-dir=/d"],
            ALL,
            ("unix:///twenty", f"{KEY} in /d/20/x.conf"),
            id="config-dir",
        ),
        pytest.param([f"{RUN} --config=/k.yaml --config-dir=/d"], CONFIG, BY_CONFIG, id="no-config-dir"),
        pytest.param([f"{RUN} {FLAG}=unix:///flag --config=/k.yaml"], ALL, ("unix:///flag", PATH), id="flag-over-all"),
        pytest.param([f"{RUN} {FLAG}=unix:///1 {FLAG}=unix:///2"], {}, ("unix:///2", PATH), id="last-flag"),
        pytest.param([IN_UNIT, f"{RUN} {FLAG}=unix:///a $A"], {}, ("unix:///env", PATH), id="environment"),
        pytest.param(
            [IN_UNIT, FROM_FILE, f"{RUN} $A"],
            {"/e": f'A="--v=2 {FLAG}=unix:///file"'},
            ("unix:///file", "/e"),
            id="file-over-environment",
        ),
        pytest.param([IN_UNIT, FROM_FILE, f"{RUN} $A"], {}, ("unix:///env", PATH), id="missing-file"),
        pytest.param(
            [FROM_FILE, f"{RUN} {FLAG}=${{A}}"],
            {"/e": "A=unix:///file"},
            ("unix:///file", "/e"),
            id="variable-alone",
        ),
    ],
)
def test_endpoint_is_found_in_kubelet_s_order_whether_it_runs_or_not(
    node: FakeNode, lines: list[str], files: dict[str, str], found: tuple[str, str], active: str
) -> None:
    kubelet = seen(node, files, *lines, active=active)
    assert (kubelet.endpoint, kubelet.origin) == found


def test_flag_that_no_file_names_any_more_is_known_by_the_process(node: FakeNode) -> None:
    seen(node, {}, f"{RUN} {FLAG}=unix:///a")
    node.write(PATH, f"[Service]\n{RUN}\n")
    node.reload()
    found = look(Host(node, node.root))
    assert found is not None
    assert (found.endpoint, found.origin) == ("unix:///a", UNNAMED)


def test_value_that_goes_on_in_the_next_line_of_an_environment_file_is_read(node: FakeNode) -> None:
    files = {"/e": f'A="--v=2 \\\n  {FLAG}=unix:///file"\n'}
    kubelet = seen(node, files, FROM_FILE, f"{RUN} $A", active="inactive")
    assert (kubelet.endpoint, kubelet.origin) == ("unix:///file", "/e")


class OldSystemd(FakeNode):
    """Its `systemctl show` spells the property in the singular."""

    def _environment(self) -> str:
        return super()._environment().replace("EnvironmentFiles=", "EnvironmentFile=")


def test_environment_files_of_an_older_systemd_are_read(tmp_path: Path) -> None:
    files = {"/e": f"A={FLAG}=unix:///file"}
    kubelet = seen(OldSystemd(tmp_path / "root"), files, FROM_FILE, f"{RUN} $A", active="inactive")
    assert (kubelet.endpoint, kubelet.origin) == ("unix:///file", "/e")


@pytest.mark.parametrize("name", ["(kubelet)", "systemd-executo"], ids=["bookworm", "executor"])
def test_process_that_systemd_has_not_made_kubelet_yet_is_not_asked(node: FakeNode, name: str) -> None:
    seen(node, CONFIG, f"{RUN} --config=/k.yaml")
    node.write(f"/proc/{node.pid}/comm", f"{name}\n")
    node.write(f"/proc/{node.pid}/cmdline", name)
    found = look(Host(node, node.root))
    assert found is not None
    assert (found.endpoint, found.healthz) == ("unix:///config", ("127.0.0.1", 1))


def test_configuration_does_not_name_an_old_kubelet_s_endpoint(node: FakeNode) -> None:
    node.help = OLD_HELP
    kubelet = seen(node, CONFIG, f"{RUN} --container-runtime=remote --config=/k.yaml")
    assert (kubelet.endpoint, kubelet.remote) == ("unix:///var/run/dockershim.sock", True)


@pytest.mark.parametrize(
    ("flags", "help_text", "remote"),
    [
        ("", OLD_HELP, False),
        ("--container-runtime=docker", OLD_HELP, False),
        ("--container-runtime=remote", OLD_HELP, True),
        ("", "", True),
    ],
    ids=["old-default", "docker", "remote", "current"],
)
def test_dockershim_is_told_from_a_remote_runtime(node: FakeNode, flags: str, help_text: str, remote: bool) -> None:
    node.help = help_text
    assert seen(node, {}, f"{RUN} {flags}").remote == remote


@pytest.mark.parametrize(
    ("flags", "config", "image"),
    [
        ("", "", ""),
        ("--image-service-endpoint=unix:///flag", "imageServiceEndpoint: unix:///i\n", "unix:///flag"),
        ("", "imageServiceEndpoint: unix:///i\n", "unix:///i"),
    ],
    ids=["none", "flag", "config"],
)
def test_image_endpoint_is_found(node: FakeNode, flags: str, config: str, image: str) -> None:
    assert seen(node, {"/k": config}, f"{RUN} --config=/k {flags}").image_endpoint == image


@pytest.mark.parametrize(
    ("flags", "config", "healthz"),
    [
        ("", "", ("127.0.0.1", 10248)),
        ("", "healthzPort: 5\nhealthzBindAddress: 10.0.0.1\n", ("10.0.0.1", 5)),
        ("", "healthzPort:\nhealthzBindAddress: # none\n", ("127.0.0.1", 10248)),
        ("--healthz-port=0", "healthzPort: 5\n", ("127.0.0.1", 0)),
        ("", "healthzBindAddress: 0.0.0.0\n", ("127.0.0.1", 10248)),
        ("", 'healthzBindAddress: "::"\n', ("127.0.0.1", 10248)),
    ],
    ids=["default", "config", "null", "none-by-flag", "all-addresses", "all-addresses-v6"],
)
def test_healthz_is_found(node: FakeNode, flags: str, config: str, healthz: tuple[str, int]) -> None:
    assert seen(node, {"/k": config}, f"{RUN} --config=/k {flags}").healthz == healthz


@pytest.mark.parametrize(
    "command",
    [
        "/usr/bin/kubelet $ARGS",
        "-/usr/local/bin/kubelet-1.30 --v=2",
        '"/opt/my kubelets/kubelet"',
        "@/usr/bin/kubelet kubelet --v=2",
        "/usr/local/bin/kubenswrapper /usr/bin/kubelet --config=/x",
        "/usr/bin/hyperkube kubelet --v=2",
        "/usr/bin/nice -n -5 /usr/bin/kubelet $ARGS",
        "/usr/bin/nice -n-5 kubelet --v=2",
        "nice --adjustment=-5 kubelet --v=2",
        "nice --adjustment -5 kubelet",
        "nice -5 kubelet",
        "/usr/bin/numactl --interleave=all /usr/bin/kubelet --v=2",
        "numactl -l -C 0-3 --membind 0 kubelet",
        "+/usr/bin/chrt -r 1 /usr/bin/kubelet --v=2",
        "chrt --deadline -T 1000 -P 2000 0 kubelet",
        "/usr/bin/ionice -c 2 -n0 -t kubelet",
        "taskset -c 0-3 kubelet --v=2",
        "taskset 0xf kubelet",
        "/usr/bin/env kubelet --v=2",
        "/usr/bin/env -i -u HOME GOGC=50 'A=b c' /usr/bin/kubelet --v=2",
        "systemd-inhibit --what=shutdown --who kubelet --mode=delay kubelet --v=2",
        "choom -n -999 -- kubelet --root-dir /var/lib/kubelet",
        "nice -n -5 ionice -c2 env A=b taskset -c 1 kubelet",
        "prlimit --nofile=65536 kubelet",
    ],
)
def test_command_that_ends_with_kubelet_takes_a_flag(command: str) -> None:
    assert Command(command, PATH).obstacle() == ""


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("/bin/sh -c 'exec kubelet'", "sh starts kubelet"),
        ("/usr/bin/sudo -u root kubelet", "sudo starts kubelet"),
        ("/usr/bin/systemd-run --scope kubelet", "systemd-run starts kubelet"),
        ("/usr/bin/env -S 'kubelet --v=2'", "env -S is before kubelet"),
        ("/usr/bin/env --split-string='kubelet --v=2'", "env --split-string=kubelet --v=2 is before kubelet"),
        ("nice -n 5 bash -c kubelet", "bash starts kubelet"),
        ("/opt/start-node", "it does not start kubelet itself"),
        ("nice -n -5 /opt/start-node", "it does not start kubelet itself"),
        ("taskset -p 1 kubelet", "taskset -p is before kubelet"),
        ("/opt/start --run kubelet", "it begins with start and options of it that criproxy does not know (--run …)"),
        ("/usr/bin/kubelet ; /bin/true", "it starts several commands"),
        ("", "it does not start kubelet itself"),
    ],
)
def test_command_that_takes_no_flag_says_why(command: str, why: str) -> None:
    assert Command(command, PATH).obstacle() == why


def test_flags_of_what_stands_before_a_kubelet_that_does_not_run_are_not_taken_for_its_own(node: FakeNode) -> None:
    kubelet = seen(node, CONFIG, f"ExecStart=/usr/bin/choom -n 5 -- {RUN[10:]} --config=/k.yaml", active="inactive")
    assert (kubelet.endpoint, kubelet.origin) == BY_CONFIG


TEXT = """\
[Unit]
ExecStart=/not/here
# a comment
[Service]
 ExecStart = /usr/bin/kubelet \\
# between
; and this
  --v=2 \\
  $ARGS
Restart=always
[Install]
ExecStart=/nor/here
"""


@pytest.mark.parametrize(
    ("texts", "command"),
    [
        ([TEXT], ("/usr/bin/kubelet --v=2 $ARGS", "/0")),
        (["[Service]\nExecStart=/a\n", "[Service]\nExecStart=\nExecStart=/b\n", "[Service]\nX=1\n"], ("/b", "/1")),
        (["[Service]\nExecStart=/a\n", "[Service]\nExecStart=/b\n"], None),
        (["[Service]\nExecStart=/a\n", "[Service]\nExecStart=\n"], None),
    ],
    ids=["joined-lines", "reset", "two", "none"],
)
def test_command_is_that_of_the_unit_with_its_drop_ins(
    node: FakeNode, texts: list[str], command: tuple[str, str] | None
) -> None:
    for number, text in enumerate(texts):
        node.write(f"/{number}", text)
    found = command_of(Host(node, node.root), [f"/{number}" for number in range(len(texts))])
    assert (found and (" ".join(found.text.split()), found.file)) == command


@given(st.text())
def test_any_text_gives_lines_without_comments(text: str) -> None:
    assert all(line.strip() == line and line for line in logical_lines(text))


@pytest.mark.parametrize(
    ("text", "new"),
    [
        (f'A="{FLAG}=unix://{LISTEN} --v=2"', f'A="{FLAG}=unix:///r --v=2"'),
        (f"ExecStart=k {FLAG} {LISTEN} --image-service-endpoint={LISTEN}",
         f"ExecStart=k {FLAG} /r --image-service-endpoint=/r"),
        (f'{{"{KEY}": "unix://{LISTEN}"}}', f'{{"{KEY}": "unix:///r"}}'),
        (f"{KEY}: unix:{LISTEN}  # mine", f"{KEY}: unix:/r  # mine"),
        (f'RUNTIME_ENDPOINT="unix://{LISTEN}"', 'RUNTIME_ENDPOINT="unix:///r"'),
        (f"Environment=SOCKET={LISTEN}", "Environment=SOCKET=/r"),
        (f"ConditionPathExists={LISTEN}", None),
        (f"# {FLAG}=unix://{LISTEN}", None),
        (f"{FLAG}=unix://{LISTEN}.old", None),
        (f"ExecStartPre=/bin/wait-for {LISTEN}", None),
    ],
    ids=["flag", "two", "json", "yaml", "variable", "in-a-unit", "condition", "comment", "longer-path", "no-endpoint"],
)  # fmt: skip
def test_socket_is_exchanged_where_it_is_an_endpoint_alone(text: str, new: str | None) -> None:
    assert renamed(text, LISTEN, "/r") == (text if new is None else new)


@pytest.mark.parametrize(
    ("endpoint", "path"),
    [
        ("unix:///run/a.sock", "/run/a.sock"),
        ("unix:/run//a.sock", "/run/a.sock"),
        ("/run/./a.sock", "/run/a.sock"),
        ("unix:////run/a.sock", "/run/a.sock"),
        ("tcp://1.2.3.4:5", None),
        ("npipe:////./pipe/x", None),
        ("", None),
    ],
)
def test_socket_of_an_endpoint_is_its_path(endpoint: str, path: str | None) -> None:
    assert socket_path(endpoint) == path


HELP = """\
      --config string                     The file
      --container-runtime string          Possible values: 'docker', 'remote'. (default "docker")
      --container-runtime-endpoint string [Experimental] 'unix:///x' (default "unix:///var/run/dockershim.sock")
"""
DOCKERSHIM = "unix:///var/run/dockershim.sock"


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("", (DEFAULT[0], True, True, True)),
        (HELP, (DOCKERSHIM, True, False, False)),
        (HELP.replace('"docker"', '"remote"'), (DOCKERSHIM, True, False, True)),
        ('  --container-runtime-endpoint string  The (default "unix:///run/x")\n', ("unix:///run/x", True, True, True)),
        ("  --config string  The file\n", (DEFAULT[0], False, True, True)),
    ],
    ids=["not-asked", "1.20", "1.25", "current", "without-the-flag"],
)  # fmt: skip
def test_kubelet_is_known_by_its_help(node: FakeNode, text: str, known: tuple[str, bool, bool, bool]) -> None:
    node.help = text
    kubelet = seen(node, {}, RUN)
    assert (kubelet.endpoint, kubelet.has_flag, kubelet.reads_files, kubelet.remote) == known
