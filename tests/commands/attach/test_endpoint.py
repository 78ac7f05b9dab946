"""Which endpoint a kubelet uses, by every place that it may have it from."""

import fnmatch
from collections.abc import Sequence

import pytest

from criproxy.commands.attach.endpoint import Program, Use, of_process, program_of, program_path, resolve, runs_kubelet
from criproxy.commands.attach.unitfile import Setting
from criproxy.kubelet.flags import socket_path

MODERN, OLD = Program(), Program(True, "unix:///var/run/dockershim.sock", has_runtime_flag=True, needs_remote=True)
FLAG = "--container-runtime-endpoint"
UNIT = "/u/kubelet.service"


class FakeFiles(dict[str, str]):
    """The node's files, by path."""

    def read(self, path: str) -> bytes | None:
        return self[path].encode() if path in self else None

    def matching(self, pattern: str) -> Sequence[str]:
        return sorted(fnmatch.filter(self, pattern))

    def below(self, directory: str) -> Sequence[str]:
        return [path for path in self if path.startswith(f"{directory}/")]


def unit(*lines: str) -> str:
    return "\n".join(("[Service]", *lines))


def used(files: dict[str, str], program: Program = MODERN) -> Use:
    return resolve([UNIT], FakeFiles(files), program)[1]


CONFIG = {"/k.yaml": "containerRuntimeEndpoint: unix:///config\nhealthzPort: 1\n"}
DROPINS = {
    "/d/10.conf": "containerRuntimeEndpoint: unix:///ten\n",
    "/d/20/x.conf": "containerRuntimeEndpoint: unix:///twenty\n",
    "/d/30.yaml": "containerRuntimeEndpoint: unix:///no\n",
    "/d/40.conf": "healthzPort: 2\n",
}
ALL = {**CONFIG, **DROPINS}
RUN, KEY = "ExecStart=/bin/kubelet", "containerRuntimeEndpoint"
BY_CONFIG = ("unix:///config", f"{KEY} in /k.yaml")
NOTHING = ("unix:///run/containerd/containerd.sock", "kubelet's default")
IN_UNIT, FROM_FILE = f"Environment=A={FLAG}=unix:///env", "EnvironmentFile=-/e"
ENV_1, ENV_2 = {"/e1.env": f"A={FLAG}=unix:///1"}, {"/e2.env": f"A={FLAG}=unix:///2"}


@pytest.mark.parametrize(
    ("lines", "files", "found"),
    [
        pytest.param([RUN], {}, NOTHING, id="default"),
        pytest.param([f"{RUN} --config=/k.yaml"], ALL, BY_CONFIG, id="config"),
        pytest.param(
            [f"{RUN} --config /k.yaml --config-dir /d"],
            ALL,
            ("unix:///twenty", f"{KEY} in /d/20/x.conf"),
            id="config-dir",
        ),
        pytest.param([f"{RUN} --config=/k.yaml --config-dir=/d"], CONFIG, BY_CONFIG, id="no-config-dir"),
        pytest.param(
            [f"{RUN} {FLAG}=unix:///flag --config=/k.yaml --config-dir=/d"],
            ALL,
            ("unix:///flag", UNIT),
            id="flag-over-all",
        ),
        pytest.param([f"{RUN} {FLAG}=unix:///1 {FLAG} unix:///2"], {}, ("unix:///2", UNIT), id="last-flag"),
        pytest.param([f"{RUN} --container_runtime_endpoint=unix:///a"], {}, ("unix:///a", UNIT), id="underscores"),
        pytest.param([IN_UNIT, f"{RUN} {FLAG}=unix:///a $A"], {}, ("unix:///env", f"A in {UNIT}"), id="environment"),
        pytest.param(
            [IN_UNIT, FROM_FILE, f"{RUN} $A"],
            {"/e": f'A="--v=2 {FLAG}=unix:///file"'},
            ("unix:///file", "A in /e"),
            id="file-over-environment",
        ),
        pytest.param([IN_UNIT, FROM_FILE, f"{RUN} $A"], {}, ("unix:///env", f"A in {UNIT}"), id="missing-file"),
        pytest.param(
            ["EnvironmentFile=/e*.env", f"{RUN} $A"], {**ENV_2, **ENV_1}, ("unix:///2", "A in /e2.env"), id="later-file"
        ),
        pytest.param([IN_UNIT, "UnsetEnvironment=A", f"{RUN} $A"], {}, NOTHING, id="unset"),
        pytest.param([IN_UNIT, "ExecStart=:/bin/kubelet $A"], {}, NOTHING, id="no-expansion"),
        pytest.param(["Environment=S=/s", f"{RUN} {FLAG}=unix://${{S}}"], {}, ("unix:///s", UNIT), id="inside-a-word"),
        pytest.param([f"{RUN} -- {FLAG}=unix:///a"], {}, NOTHING, id="after-the-end"),
    ],
)
def test_endpoint_is_found_in_kubelet_s_order(lines: list[str], files: dict[str, str], found: tuple[str, str]) -> None:
    use = used({UNIT: unit(*lines), **files})
    assert (use.endpoint, use.origin) == found


def test_configuration_does_not_name_an_old_kubelet_s_endpoint() -> None:
    files = {UNIT: unit("ExecStart=/bin/kubelet --container-runtime=remote --config=/k.yaml"), **CONFIG}
    use = used(files, OLD)
    assert (use.endpoint, use.remote) == ("unix:///var/run/dockershim.sock", True)


@pytest.mark.parametrize(
    ("flags", "program", "remote"),
    [
        ("", OLD, False),
        ("--container-runtime=docker", OLD, False),
        ("--container-runtime=remote", OLD, True),
        ("", MODERN, True),
    ],
    ids=["old-default", "docker", "remote", "current"],
)
def test_dockershim_is_told_from_a_remote_runtime(flags: str, program: Program, remote: bool) -> None:
    assert used({UNIT: unit(f"ExecStart=/bin/kubelet {flags}")}, program).remote == remote


@pytest.mark.parametrize(
    ("flags", "config", "image"),
    [
        ("", "", ""),
        ("--image-service-endpoint=unix:///flag", "imageServiceEndpoint: unix:///i\n", "unix:///flag"),
        ("", "imageServiceEndpoint: unix:///i\n", "unix:///i"),
    ],
    ids=["none", "flag", "config"],
)
def test_image_endpoint_is_found(flags: str, config: str, image: str) -> None:
    use = used({UNIT: unit(f"ExecStart=/bin/kubelet --config=/k {flags}"), "/k": config})
    assert use.image_endpoint == image


@pytest.mark.parametrize(
    ("flags", "config", "healthz"),
    [
        ("", "", ("127.0.0.1", 10248)),
        ("", "healthzPort: 5\nhealthzBindAddress: 10.0.0.1\n", ("10.0.0.1", 5)),
        ("--healthz-port=0", "healthzPort: 5\n", ("127.0.0.1", 0)),
        ("", "healthzBindAddress: 0.0.0.0\n", ("127.0.0.1", 10248)),
    ],
    ids=["default", "config", "none-by-flag", "all-addresses"],
)
def test_healthz_is_found(flags: str, config: str, healthz: tuple[str, int]) -> None:
    assert used({UNIT: unit(f"ExecStart=/bin/kubelet --config=/k {flags}"), "/k": config}).healthz == healthz


def test_configuration_that_kubelet_could_not_read_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"/k: is no YAML"):
        used({UNIT: unit("ExecStart=/bin/kubelet --config=/k"), "/k": "["})


def test_process_tells_what_it_uses() -> None:
    use = of_process(["/bin/kubelet", f"{FLAG}=unix:///a", "--v=2"], FakeFiles(), MODERN)
    assert (use.endpoint, use.by_flag) == ("unix:///a", True)


@pytest.mark.parametrize(
    ("command", "is_kubelet", "path"),
    [
        ("/usr/bin/kubelet $ARGS", True, "/usr/bin/kubelet"),
        ("-/usr/local/bin/kubelet-1.30 --v=2", True, "/usr/local/bin/kubelet-1.30"),
        ('"/opt/my kubelets/kubelet"', True, "/opt/my kubelets/kubelet"),
        ("/usr/local/bin/kubenswrapper /usr/bin/kubelet --config=/x", True, "/usr/bin/kubelet"),
        ("/usr/bin/hyperkube kubelet --v=2", True, ""),
        ("/bin/sh -c 'exec kubelet'", False, ""),
        ("/usr/bin/env kubelet --v=2", False, ""),
        ("/opt/start-node", False, ""),
        ("/opt/start --run kubelet", False, ""),
        ("/usr/bin/kubelet ; /bin/true", False, "/usr/bin/kubelet"),
    ],
)
def test_command_that_a_flag_can_be_added_to_is_told(command: str, is_kubelet: bool, path: str) -> None:
    setting = Setting("ExecStart", command, UNIT)
    assert (runs_kubelet(setting), program_path(setting)) == (is_kubelet, path)


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


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("", MODERN),
        (HELP, OLD),
        (HELP.replace('"docker"', '"remote"'), Program(True, OLD.default_endpoint, True, False)),
        ('  --container-runtime-endpoint string  The endpoint (default "unix:///run/x")\n', Program(True, "unix:///run/x")),
        ("  --config string  The file\n", Program(has_flag=False)),
    ],
    ids=["not-asked", "1.20", "1.25", "current", "without-the-flag"],
)  # fmt: skip
def test_program_is_known_by_its_help(text: str, program: Program) -> None:
    assert program_of(text) == program
