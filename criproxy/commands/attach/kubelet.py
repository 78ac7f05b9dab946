"""The node's kubelet as it is: the command of its unit, the words that it runs by, and the runtime that it uses.

What a kubelet uses is read from its process, whose command line systemd has put together: a flag wins over the drop-in
directory of kubelet's configuration, that over the configuration file, that over the default; of a flag that is given
twice, the last one counts. Source: kubelet, cmd/kubelet/app/server.go.

Of unit files only ExecStart= is read here, as it is written: `systemctl show` gives it without its quotes, and never
without our own drop-in.
"""

import contextlib
import posixpath
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from criproxy.commands.attach.host import Host, UnitState
from criproxy.commands.attach.machine import NodeError
from criproxy.kubelet.attachment import DROPIN, ENDPOINT_KEY, commands
from criproxy.kubelet.flags import ENDPOINT_FLAG, flag, socket_path
from criproxy.kubelet.process import UNIT, configuration, configured

DEFAULT_ENDPOINT: Final = "unix:///run/containerd/containerd.sock"
UNNAMED: Final = "a flag of its command line"
"""Where an endpoint is from whose flag no file names, such as one that was taken out since kubelet has started."""

DEFAULT_HEALTHZ: Final = ("127.0.0.1", 10248)
_PREFIXES: Final = "@-:+!|"
_KUBELET: Final = re.compile(r"kubelet([._-].*)?")
_SHELLS: Final = ("sh", "bash", "dash", "ash", "busybox", "env", "su", "runuser")
_DEFAULT: Final = re.compile(r'\(default "([^"]*)"\)')
_VARIABLE: Final = re.compile(r"\$(\w+)")
_BRACED: Final = re.compile(r"\$\{(\w+)\}")
_ASSIGNMENT: Final = re.compile(r"^[ \t]*(\w+)=(.*)$", re.MULTILINE)
_KEYS: Final = (
    r"(?:--(?:container[-_]runtime|image[-_]service)[-_]endpoint|containerRuntimeEndpoint|imageServiceEndpoint"
    r"|(?<![\w-])[A-Z_][A-Z0-9_]*(?==))"
)
"""Flags, keys of kubelet's configuration, and environment variables whose whole value is an endpoint or its path."""


class Program(Struct, frozen=True):
    """What a kubelet's --help says of it. `needs_remote`: without --container-runtime=remote it uses dockershim."""

    has_flag: bool = True
    default_endpoint: str = DEFAULT_ENDPOINT
    has_runtime_flag: bool = False
    needs_remote: bool = False


class Command(Struct, frozen=True):
    """An ExecStart= as it is written, its continued lines joined, and the file that it is in."""

    text: str
    file: str

    def words(self) -> list[str]:
        """Its words before variables are put in. Raises ValueError for a quote that is never closed."""
        return shlex.split(self.text)

    def takes_a_flag(self) -> bool:
        """Whether a flag added at the end is kubelet's: the command is kubelet, no shell is before it. ValueError."""
        words = self.words()
        names = [posixpath.basename(word.lstrip(_PREFIXES)) for word in words]
        before_flags = next((at for at, word in enumerate(words) if at and word.startswith("-")), len(words))
        at = next((at for at, name in enumerate(names[:before_flags]) if _KUBELET.fullmatch(name)), None)
        return at is not None and not set(names[:at]) & set(_SHELLS) and ";" not in words


class Use(Struct, frozen=True):
    """What a kubelet uses: its endpoint, from where, and by which configuration files.

    `image_endpoint` "": that of the runtime. `healthz` is a host and a port; port 0: it serves none.
    """

    endpoint: str
    origin: str
    by_flag: bool
    image_endpoint: str
    healthz: tuple[str, int]
    config_file: str
    config_dir: str
    remote: bool


class NodeKubelet(Struct, frozen=True):
    """This node's kubelet.

    `command` is the unit's without our drop-in, None: it has none, or several. `files` are those that may name the
    endpoint, the last one with the last word.
    """

    unit: UnitState
    command: Command | None
    program: Program
    use: Use
    files: tuple[str, ...]


def look(host: Host) -> NodeKubelet | None:
    """The kubelet of this node's unit; None: there is no such unit. Raises NodeError."""
    unit = host.unit(UNIT)
    if not unit.loaded or not unit.files:
        return None
    environment_files = [path for pattern in unit.environment_files for path in host.matching(pattern)]
    running = host.command_line(unit.pid)
    words = running if _is_kubelet(running) else _to_be_started(host, unit, environment_files)
    program = program_of(host.help_text(_program_path(words)))
    files = (*configuration(words, host.root), *environment_files, *unit.files)
    try:
        use = _use(host, words, program, files)
    except OSError as error:
        raise NodeError(f"{error.filename}: {error.strerror}: run this as root, and check the file") from error
    command = command_of(host, [path for path in unit.files if path != DROPIN])
    return NodeKubelet(unit, command, program, use, files)


def command_of(host: Host, paths: Iterable[str]) -> Command | None:
    """The command of a unit file and its drop-ins in systemd's order; None: there is none, or several.

    Source: systemd.unit(5), drop-ins.
    """
    held: list[Command] = []
    for path in paths:
        for text in commands(host.read(path) or b""):
            held = [*held, Command(text, path)] if text else []
    return held[0] if len(held) == 1 else None


def expanded(command: Command, variables: Mapping[str, str]) -> list[str]:
    """A command's words with their variables put in. Source: systemd.service(5), COMMAND LINES. Raises ValueError."""
    words: list[str] = []
    for word in command.words():
        if alone := _VARIABLE.fullmatch(word):
            words += shlex.split(variables.get(alone[1], ""))
        else:
            filled = _BRACED.sub(lambda found: variables.get(found[1], ""), word)
            words.append(filled.replace("%%", "%").replace("$$", "$"))
    return words


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


def renamed(text: str, socket: str, new: str) -> str:
    """`text`, a unit, environment or configuration file, with `new` where a kubelet's endpoint is `socket`."""
    pattern = re.compile(rf"""({_KEYS}["']?[ \t]*[=: \t][ \t]*["']?(?:unix:/*)?){re.escape(socket)}(?![\w./-])""")
    return "".join(
        line if line.lstrip().startswith(("#", ";")) else pattern.sub(lambda found: f"{found[1]}{new}", line)
        for line in text.splitlines(keepends=True)
    )


def _to_be_started(host: Host, unit: UnitState, environment_files: Sequence[str]) -> tuple[str, ...]:
    """The words that systemd would start kubelet by, near enough to find its flags; () when they are not known."""
    variables: dict[str, str] = {}
    with contextlib.suppress(ValueError):
        variables |= dict(word.partition("=")[::2] for word in shlex.split(unit.environment))
    for path in environment_files:
        text = host.text(path).replace("\\\n", "")
        for name, value in _ASSIGNMENT.findall(text):
            with contextlib.suppress(ValueError):
                variables[name] = " ".join(shlex.split(value))
    command = command_of(host, unit.files)
    with contextlib.suppress(ValueError):
        return tuple(expanded(command, variables)) if command else ()
    return ()


def _is_kubelet(words: Sequence[str]) -> bool:
    """Whether a process is kubelet by now: until it is, the unit's process is systemd's, with words of its own."""
    return any(_KUBELET.fullmatch(posixpath.basename(word)) for word in words[:2])


def _program_path(words: Sequence[str]) -> str:
    path = words[0].lstrip(_PREFIXES) if words else ""
    return path if path.startswith("/") and _KUBELET.fullmatch(posixpath.basename(path)) else ""


def _use(host: Host, words: Sequence[str], program: Program, files: Sequence[str]) -> Use:
    given, kind = flag(words, ENDPOINT_FLAG), flag(words, "--container-runtime")
    endpoint, origin = program.default_endpoint, "kubelet's default"
    reads_files = not program.has_runtime_flag  # since 1.27
    if given is not None:
        endpoint, origin = given, _named_by(host, files, socket_path(given)) or UNNAMED
    elif reads_files and (found := configured(words, host.root, ENDPOINT_KEY))[0]:
        endpoint, origin = found[0], f"{ENDPOINT_KEY} in {found[1]}"
    config, directory = flag(words, "--config"), flag(words, "--config-dir")
    return Use(
        endpoint=endpoint,
        origin=origin,
        by_flag=given is not None,
        image_endpoint=_value_of(
            host, words, "--image-service-endpoint", "imageServiceEndpoint" if reads_files else ""
        ),
        healthz=_healthz(host, words),
        config_file=posixpath.join("/", config) if config else "",
        config_dir=posixpath.join("/", directory) if directory else "",
        remote=not program.needs_remote if kind is None else kind == "remote",
    )


def _named_by(host: Host, files: Sequence[str], socket: str | None) -> str:
    """The last of the files that names the endpoint; "": none does."""
    texts = ((path, host.text(path)) for path in reversed(files))
    return next((path for path, text in texts if socket and renamed(text, socket, "") != text), "")


def _value_of(host: Host, words: Sequence[str], name: str, key: str) -> str:
    given = flag(words, name)
    return given if given is not None else configured(words, host.root, key)[0] if key else ""


def _healthz(host: Host, words: Sequence[str]) -> tuple[str, int]:
    name = _value_of(host, words, "--healthz-bind-address", "healthzBindAddress")
    port = _value_of(host, words, "--healthz-port", "healthzPort")
    return (
        DEFAULT_HEALTHZ[0] if name in ("", "0.0.0.0", "::") else name,
        int(port) if port.isdigit() else DEFAULT_HEALTHZ[1],
    )
