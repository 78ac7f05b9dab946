"""Which runtime endpoint a kubelet uses, and where it has it from, in kubelet's own order of precedence.

A flag wins over the drop-in directory of its configuration, that over the configuration file, that over the default;
of a flag that is given twice, the last one counts. Source: kubelet, cmd/kubelet/app/server.go.
"""

import posixpath
import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from criproxy.commands.attach import kubeletconfig
from criproxy.commands.attach.edits import Files
from criproxy.commands.attach.unitfile import Service, Setting, merge
from criproxy.commands.attach.words import expand, parse_environment, split_words
from criproxy.kubelet.flags import ENDPOINT_FLAG, Argument, flag

DEFAULT_ENDPOINT: Final = "unix:///run/containerd/containerd.sock"
DEFAULT_HEALTHZ: Final = ("127.0.0.1", 10248)
_PREFIXES: Final = "@-:+!|"
_KUBELET: Final = re.compile(r"kubelet([._-].*)?")
_SHELLS: Final = ("sh", "bash", "dash", "ash", "busybox", "env", "su", "runuser")
_DEFAULT: Final = re.compile(r'\(default "([^"]*)"\)')


class Program(Struct, frozen=True):
    """What a kubelet's --help tells of it. `needs_remote`: without --container-runtime=remote it uses dockershim."""

    has_flag: bool = True
    default_endpoint: str = DEFAULT_ENDPOINT
    has_runtime_flag: bool = False
    needs_remote: bool = False


class Use(Struct, frozen=True):
    """What a kubelet uses. `file` is what to read or edit for the endpoint, "" for the default.

    `image_endpoint` "": that of the runtime. `healthz` is a host and a port; port 0: it serves none.
    """

    endpoint: str
    origin: str
    file: str
    image_endpoint: str
    image_file: str
    healthz: tuple[str, int]
    config_file: str
    config_dir: str
    by_flag: bool
    remote: bool


def program_of(help_text: str) -> Program:
    """Read a kubelet's --help; "" (it could not be asked) is taken for a current one."""
    if not help_text:
        return Program()
    lines = {line.split()[0]: line for line in help_text.splitlines() if line.lstrip().startswith("--")}
    endpoint, runtime = lines.get(ENDPOINT_FLAG, ""), lines.get("--container-runtime", "")
    default = _DEFAULT.search(endpoint)
    return Program(
        has_flag=bool(endpoint),
        default_endpoint=default[1] if default else DEFAULT_ENDPOINT,
        has_runtime_flag=bool(runtime),
        needs_remote='(default "docker")' in runtime,
    )


# --- the command -----------------------------------------------------------------------------------------------------


def command(service: Service) -> Setting | None:
    """The one command of a service; None when it has none, or several (kubelet's cannot)."""
    found = service.of("ExecStart")
    return found[0] if len(found) == 1 else None


def runs_kubelet(setting: Setting) -> bool:
    """Whether a flag that is added at the end of the command is kubelet's: it is kubelet, and no shell is before it."""
    try:
        words = split_words(setting.value)
    except ValueError:
        return False
    at = _program(words)
    shells = at is not None and any(posixpath.basename(word.lstrip(_PREFIXES)) in _SHELLS for word in words[:at])
    return at is not None and not shells and ";" not in words


def program_path(setting: Setting) -> str:
    """The path of the kubelet that the command runs; "" when it cannot be told."""
    words = split_words(setting.value)
    at = _program(words)
    path = "" if at is None else words[at].lstrip(_PREFIXES)
    return path if path.startswith("/") else ""


def _program(words: Sequence[str]) -> int | None:
    """Where among a command's words kubelet's own name is: before its first flag."""
    for at, word in enumerate(words):
        if at and word.startswith("-"):
            return None
        if _KUBELET.fullmatch(posixpath.basename(word.lstrip(_PREFIXES))):
            return at
    return None


def arguments(service: Service, files: Files) -> list[Argument]:
    """The command's words as the process gets them. Raises ValueError when systemd would refuse the command."""
    setting = command(service)
    if setting is None:
        return []
    variables = environment(service, files)
    prefix = setting.value[: len(setting.value) - len(setting.value.lstrip(_PREFIXES))]
    found = []
    for word in split_words(setting.value):
        name = word[1:].strip("{}") if word.startswith("$") else ""
        values = [word] if ":" in prefix else expand(word, {key: one.text for key, one in variables.items()})
        source = variables.get(name)
        for value in values:
            text = value.replace("%%", "%")
            found.append(Argument(text, source.file, name) if source else Argument(text, setting.file))
    return found


def environment(service: Service, files: Files) -> dict[str, Argument]:
    """The variables that the command may name, with their files. Files win over Environment=, the later wins."""
    found: dict[str, Argument] = {}
    for setting in service.of("Environment"):
        for word in split_words(setting.value, relaxed=False):
            name, equals, value = word.partition("=")
            if equals:
                found[name] = Argument(value.replace("%%", "%"), setting.file, name)
    for setting in service.of("EnvironmentFile"):
        for path in files.matching(setting.value.removeprefix("-")):
            text = (files.read(path) or b"").decode(errors="surrogateescape")
            found |= {name: Argument(value, path, name) for name, value in parse_environment(text).items()}
    for setting in service.of("UnsetEnvironment"):
        for word in split_words(setting.value):
            name, equals, value = word.partition("=")
            if name in found and (not equals or found[name].text == value):
                del found[name]
    return found


# --- all of it -------------------------------------------------------------------------------------------------------


def use(words: Sequence[Argument], files: Files, program: Program) -> Use:
    """What the kubelet of this command line uses. Raises ValueError for a configuration that it could not read."""
    config, directory = _path(flag(words, "--config")), _path(flag(words, "--config-dir"))
    settings = _configured(config, directory, files)
    given = flag(words, ENDPOINT_FLAG)
    by_file = None if program.has_runtime_flag else settings.get("containerRuntimeEndpoint")  # since 1.27
    endpoint = given or by_file or Argument(program.default_endpoint, "")
    image = flag(words, "--image-service-endpoint")
    if image is None and not program.has_runtime_flag:
        image = settings.get("imageServiceEndpoint")
    kind = flag(words, "--container-runtime")
    return Use(
        endpoint=endpoint.text,
        origin=_origin(endpoint),
        file=endpoint.file,
        image_endpoint=image.text if image else "",
        image_file=image.file if image else "",
        healthz=_healthz(words, settings),
        config_file=config,
        config_dir=directory,
        by_flag=given is not None,
        remote=kind.text == "remote" if kind else not program.needs_remote,
    )


def _origin(endpoint: Argument) -> str:
    return endpoint.origin if endpoint.file else "kubelet's default"


def _path(given: Argument | None) -> str:
    return posixpath.join("/", given.text) if given and given.text else ""


def _configured(config: str, directory: str, files: Files) -> dict[str, Argument]:
    """The keys of the configuration that matter here, each from the file that has the last word."""
    paths = [config] if config else []
    if directory:
        paths += [path for path in files.below(directory) if path.endswith(".conf")]
    found: dict[str, Argument] = {}
    for path in paths:
        content = files.read(path)
        if content is None:
            continue
        try:
            values = kubeletconfig.values(content.decode())
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        found |= {key: Argument(value, path, key) for key, value in values.items() if value}
    return found


def _healthz(words: Sequence[Argument], settings: dict[str, Argument]) -> tuple[str, int]:
    host = flag(words, "--healthz-bind-address") or settings.get("healthzBindAddress")
    port = flag(words, "--healthz-port") or settings.get("healthzPort")
    name = host.text if host else DEFAULT_HEALTHZ[0]
    if name in ("0.0.0.0", "::"):
        name = DEFAULT_HEALTHZ[0]
    return name, int(port.text) if port and port.text.isdigit() else DEFAULT_HEALTHZ[1]


def resolve(
    unit_files: Sequence[str], files: Files, program: Program, running: Sequence[str] = ()
) -> tuple[Service, Use]:
    """The service of these unit files (in systemd's order), and what the kubelet that it starts will use.

    Where a script or a shell starts it, its flags are those of the one that is `running`, if any. Raises ValueError
    for what systemd or kubelet could not read.
    """
    texts = [(path, content.decode(errors="surrogateescape")) for path in unit_files if (content := files.read(path))]
    service = merge(texts)
    words, setting = arguments(service, files), command(service)
    if running and setting is not None and not runs_kubelet(setting):
        words = [Argument(word, setting.file) for word in running]
    return service, use(words, files, program)


def of_process(words: Sequence[str], files: Files, program: Program) -> Use:
    """What a running kubelet of this command line uses; its configuration files as they are now. Raises ValueError."""
    return use([Argument(word, "its command line") for word in words], files, program)
