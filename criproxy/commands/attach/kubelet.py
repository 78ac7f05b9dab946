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

from criproxy.commands.attach.edits import NodeError
from criproxy.commands.attach.host import Host, UnitState
from criproxy.kubelet import rancher, units
from criproxy.kubelet.attachment import DROPIN, ENDPOINT_KEY
from criproxy.kubelet.flags import EMBEDDING, ENDPOINT_FLAG, flag, socket_path
from criproxy.kubelet.process import command_line, configuration, configured
from criproxy.kubelet.wrappers import KUBELET, PREFIXES, is_called, program_at

DEFAULT_ENDPOINT: Final = "unix:///run/containerd/containerd.sock"
UNNAMED: Final = "a flag of its command line"
"""Where an endpoint is from whose flag no file names, such as one that was taken out since kubelet has started."""

_IMAGE_KEY: Final = "imageServiceEndpoint"
_HEALTHZ_KEYS: Final = ("healthzBindAddress", "healthzPort")
DEFAULT_HEALTHZ: Final = ("127.0.0.1", 10248)
_DEFAULT: Final = re.compile(r'\(default "([^"]*)"\)')
_KEYS: Final = (
    r"(?:(?:--|(?<![\w-]))(?:container[-_]runtime|image[-_]service)[-_]endpoint|containerRuntimeEndpoint|imageServiceEndpoint"
    r"|(?<![\w-])[A-Z_][A-Z0-9_]*(?==))"
)
"""Flags, keys of kubelet's configuration, and environment variables whose whole value is an endpoint or its path."""


class Command(Struct, frozen=True):
    """An ExecStart= as it is written, its continued lines joined, and the file that it is in."""

    text: str
    file: str

    def obstacle(self) -> str:
        """Why a flag that is added at the end would not be kubelet's; "": it would.

        Raises NodeError for a quote that is never closed.
        """
        try:
            words = shlex.split(self.text)
        except ValueError as error:
            raise NodeError(f"{self.file}: {error}: kubelet cannot start like this; correct it first") from error
        try:
            program_at(words)
        except ValueError as error:
            return str(error)
        return ""


class NodeKubelet(Struct, frozen=True):
    """This node's kubelet: the endpoint that it uses and from where, and by which files.

    `command` is the unit's without our drop-in, None: it has none, or several. `files` are those that may name the
    endpoint, the last one with the last word. `image_endpoint` "": that of the runtime. `healthz` is a host and a port;
    port 0: it serves none. `has_flag`: it knows the endpoint's flag; `reads_files`: its configuration may set it, too.
    `remote`: it does not use its built-in dockershim. `unread`: why its configuration is not understood, "": it is.
    """

    unit: UnitState
    command: Command | None
    files: tuple[str, ...]
    endpoint: str
    origin: str
    by_flag: bool
    image_endpoint: str
    healthz: tuple[str, int]
    config_file: str
    config_dir: str
    has_flag: bool
    reads_files: bool
    remote: bool
    unread: str = ""


def look(host: Host) -> NodeKubelet | None:
    """The kubelet of this node's unit; None: there is none, or one whose words can't be told. Raises NodeError."""
    unit = host.kubelet_unit()
    if not unit.loaded or not unit.files:
        return None
    environment_files = [path for pattern in unit.environment_files for path in host.matching(pattern)]
    try:
        words = command_line(host.root)
        if unit.name in EMBEDDING:
            words = words or rancher.kubelet_words(host.root, unit.name)
            environment_files = [*rancher.config_files(host.root, unit.name), *environment_files]
            if not words:
                return None  # as before Kubernetes 1.32, where no file of kubelet's can say it, and behind a shell
        return _kubelet(host, unit, words or _to_be_started(host, unit, environment_files), environment_files)
    except OSError as error:
        raise NodeError(f"{error.filename}: {error.strerror}: run this as root, and check the file") from error
    except ValueError as error:
        raise NodeError(f"{error}: correct it first") from error


def _kubelet(host: Host, unit: UnitState, words: Sequence[str], environment_files: Sequence[str]) -> NodeKubelet:
    """Raises OSError."""
    files = (*configuration(words, host.root), *environment_files, *unit.files)
    helps = {line.split()[0]: line for line in host.help_text(_program_path(words)) if line.lstrip().startswith("--")}
    runtime = helps.get("--container-runtime")  # until 1.26, before it read the endpoint from its configuration
    given, kind = flag(words, ENDPOINT_FLAG), flag(words, "--container-runtime")
    said, unread = _said(host, words)
    default = _DEFAULT.search(helps.get(ENDPOINT_FLAG, ""))
    endpoint, origin = default[1] if default else DEFAULT_ENDPOINT, "kubelet's default"
    if given is not None:
        endpoint, origin = given, _named_by(host, files, socket_path(given)) or UNNAMED
    elif runtime is None and (found := said[ENDPOINT_KEY])[0]:
        endpoint, origin = found[0], f"{ENDPOINT_KEY} in {found[1]}"
    config, directory = flag(words, "--config"), flag(words, "--config-dir")
    return NodeKubelet(
        unit,
        None if unit.name in EMBEDDING else command_of(host, [path for path in unit.files if path != DROPIN]),
        files,
        endpoint,
        origin,
        by_flag=given is not None,
        image_endpoint=_value_of(words, "--image-service-endpoint", said[_IMAGE_KEY]),
        healthz=_healthz(words, said),
        config_file=posixpath.join("/", config) if config else "",
        config_dir=posixpath.join("/", directory) if directory else "",
        has_flag=not helps or ENDPOINT_FLAG in helps,
        reads_files=runtime is None,
        remote=kind == "remote" if kind is not None else '(default "docker")' not in (runtime or ""),
        unread=unread,
    )


def command_of(host: Host, paths: Iterable[str]) -> Command | None:
    """The command of a unit file and its drop-ins in systemd's order; None: there is none, or several.

    Source: systemd.unit(5), drop-ins.
    """
    held: list[Command] = []
    for path in paths:
        for text in units.commands(host.read(path) or b""):
            held = [*held, Command(text, path)] if text else []
    return held[0] if len(held) == 1 else None


def renamed(text: str, socket: str, new: str) -> str:
    """`text`, a unit, environment or configuration file, with `new` where a kubelet's endpoint is `socket`."""
    pattern = re.compile(rf"""({_KEYS}["']?[ \t]*[=: \t][ \t]*["']?(?:unix:/*)?){re.escape(socket)}(?![\w./-])""")
    return "".join(
        line if line.lstrip().startswith(("#", ";")) else pattern.sub(lambda found: f"{found[1]}{new}", line)
        for line in text.splitlines(keepends=True)
    )


def _to_be_started(host: Host, unit: UnitState, environment_files: Sequence[str]) -> list[str]:
    """The words that systemd would start kubelet by, near enough to find its flags; [] when they are not known."""
    variables: dict[str, str] = {}
    with contextlib.suppress(ValueError):
        variables |= dict(word.partition("=")[::2] for word in shlex.split(unit.environment))
    for path in environment_files:
        variables |= units.assignments(host.text(path))
    command = command_of(host, unit.files)
    with contextlib.suppress(ValueError):
        words = units.words(command.text if command else "", variables)
        with contextlib.suppress(ValueError):  # what stands before kubelet may have flags of its own
            at = program_at(words)
            return [words[at].lstrip(PREFIXES), *words[at + 1 :]]
        return words
    return []


def _program_path(words: Sequence[str]) -> str:
    path = words[0] if words else ""
    return path if path.startswith("/") and is_called(path, KUBELET) else ""


def _named_by(host: Host, files: Sequence[str], socket: str | None) -> str:
    """The last of the files that names the endpoint; "": none does."""
    texts = ((path, host.text(path)) for path in reversed(files))
    return next((path for path, text in texts if socket and renamed(text, socket, "") != text), "")


def _said(host: Host, words: Sequence[str]) -> tuple[Mapping[str, tuple[str, str]], str]:
    """What kubelet's configuration says, and in which file, by key; and why one of the keys can't be read."""
    said, unread = {}, ""
    for key in (ENDPOINT_KEY, _IMAGE_KEY, *_HEALTHZ_KEYS):
        try:
            said[key] = configured(words, host.root, key)
        except ValueError as error:
            said[key], unread = ("", ""), unread or str(error)
    return said, unread


def _value_of(words: Sequence[str], name: str, said: tuple[str, str]) -> str:
    given = flag(words, name)
    return said[0] if given is None else given


def _healthz(words: Sequence[str], said: Mapping[str, tuple[str, str]]) -> tuple[str, int]:
    name = _value_of(words, "--healthz-bind-address", said[_HEALTHZ_KEYS[0]])
    port = _value_of(words, "--healthz-port", said[_HEALTHZ_KEYS[1]])
    return (
        DEFAULT_HEALTHZ[0] if name in ("", "0.0.0.0", "::") else name,
        int(port) if port.isdigit() else DEFAULT_HEALTHZ[1],
    )
