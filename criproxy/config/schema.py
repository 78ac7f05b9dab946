"""The settings as a list, and what must hold between them."""

import ipaddress
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args

import msgspec
from msgspec import Meta, Struct

from criproxy.config.settings import Config, WindowTable
from criproxy.control.resources import RESOURCES, Resource
from criproxy.vocabulary.policy import NODES_OWN

MAX_SOCKET_PATH_BYTES: Final = 107
"""Source: unix(7), sun_path less its closing zero."""

_MOST_LINKS: Final = 40
"""Source: path_resolution(7)."""

_PID_SUFFIX_BYTES: Final = len(".4194304")
"""The socket itself lies beside its stable name, with the process's id. Source: kernel, PID_MAX_LIMIT."""


class Setting(Struct, frozen=True):
    """One key of one section, as the loader and the example see it."""

    section: str
    name: str
    type: Any
    bounds: Meta
    description: str
    extra: Mapping[str, str | bool]
    default: Any

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def item_type(self) -> Any:
        """The type of a list's items; None when the setting is no list."""
        inner = get_args(self.type)[0]
        return get_args(inner)[0] if getattr(inner, "__origin__", None) is tuple else None

    @property
    def item_example(self) -> str:
        """A valid item of a list of tables; "" when the setting is none."""
        return str(self.extra.get("example", ""))

    @property
    def needs_restart(self) -> bool:
        return bool(self.extra.get("restart"))

    @property
    def of_the_node(self) -> bool:
        """Whether no ColocationPolicy may set it."""
        return self.needs_restart or self.key in NODES_OWN

    @property
    def expects(self) -> str:
        """What a valid value is, in words."""
        if words := self.extra.get("expects"):
            return str(words)
        inner = self.item_type or get_args(self.type)[0]
        if choices := [c for c in get_args(inner) if isinstance(c, str)]:
            listed = ", ".join(f'"{choice}"' for choice in choices)
            return f"a list of any of {listed}" if self.item_type else f"one of {listed}"
        if inner is bool:
            return "true or false"
        kind = "a whole number" if int in (inner, *get_args(inner)) else "a number"
        return f"{kind} from {_number(self.bounds.ge)} to {_number(self.bounds.le)}"


def settings() -> tuple[Setting, ...]:
    """Every key, in the order of the file."""
    return tuple(
        _setting(section.name, field)
        for section in msgspec.structs.fields(Config)
        for field in msgspec.structs.fields(section.type)
    )


def _setting(section: str, field: msgspec.structs.FieldInfo) -> Setting:
    # An optional setting's type is `Annotated[...] | None`; a file can't say None.
    kind = field.type if hasattr(field.type, "__metadata__") else get_args(field.type)[0]
    first, last = kind.__metadata__[0], kind.__metadata__[-1]  # the type's bounds, if any, and what `doc` makes
    extra = {**(first.extra or {}), **last.extra}
    return Setting(section, field.name, kind, first, last.description, extra, field.default)


class Conflict(Struct, frozen=True):
    """Keys (the first is the one to blame) whose values don't go together."""

    keys: tuple[str, ...]
    problem: str
    remedy: str


def conflicts(config: Config) -> Iterator[Conflict]:
    """What must hold beyond the single values. With all of a conflict's keys at their defaults, it is gone.

    Follows links, so it may block on the disk.
    """
    proxy = config.proxy
    for key, path, most in (
        ("proxy.listen", proxy.listen_path, MAX_SOCKET_PATH_BYTES - _PID_SUFFIX_BYTES),
        ("proxy.runtime", proxy.runtime_path, MAX_SOCKET_PATH_BYTES),
    ):
        if len(path.encode()) > most:
            yield Conflict((key,), f"the path has more than {most} bytes", "the kernel's limit: use a shorter one")
    sockets = ("proxy.listen", "proxy.runtime")
    if _leads_to(proxy.runtime_path, proxy.listen_path):
        problem = "this is proxy.runtime as well, so criproxy would call itself"
        yield Conflict(sockets, problem, "give criproxy a socket of its own")
    if _leads_to(proxy.runtime_path, proxy.status_path):
        problem = "the socket of criproxy's status, beside this one, would be proxy.runtime"
        yield Conflict(sockets, problem, "give criproxy a socket of another name")
    for row in RESOURCES.values():
        keys = _key("min", row), _key("max", row)
        low, high = (value_of(config, key) for key in keys)
        if high is not None and low > high:
            yield Conflict(keys, f"is above {keys[1]} ({high:_})", f"lower it, or raise {keys[1]}")
    if config.control.policy == "static":
        for key in (_key("static", row) for row in RESOURCES.values()):
            if value_of(config, key) is None:
                yield Conflict(("control.policy", key), f"needs {key}", f'set {key}, or use policy = "dynamic"')
    if config.control.policy == "schedule":
        yield from _schedule_conflicts(config)
    yield from _address_conflicts(config)


def placed(path: str) -> str:
    """The path by which one file has one name: its directory is without links. The file itself may be a link."""
    directory, name = os.path.split(path)
    return os.path.join(os.path.realpath(directory), name)


def _leads_to(path: str, target: str) -> bool:
    """Whether a path is `target`, or is a link that leads there. `target` may lead elsewhere for now, or be nowhere."""
    path, target = placed(path), placed(target)
    for _ in range(_MOST_LINKS):
        if path == target:
            return True
        try:
            path = placed(os.path.join(os.path.dirname(path), os.readlink(path)))
        except OSError:
            return False
    return False


def _key(what: str, row: Resource) -> str:
    """`cpu.min_cores`."""
    return f"{row.name}.{what}_{row.unit}"


def _schedule_conflicts(config: Config) -> Iterator[Conflict]:
    schedule = config.schedule
    static = {_key("static", row): row.unit for row in RESOURCES.values()}
    lacking = [unit for key, unit in static.items() if value_of(config, key) is None]
    if not schedule.windows:
        keys = ("control.policy", "schedule.windows")
        yield Conflict(keys, "needs schedule.windows", 'add windows, or use policy = "dynamic"')
    try:
        _ = schedule.zone
    except (KeyError, ValueError, OSError):
        remedy = "correct it, or install the system's tzdata package"
        yield Conflict(("schedule.time_zone",), "there is no such time zone on this machine", remedy)
    outside = [WindowTable(start="00:00", end="24:00", policy=schedule.outside)]
    for key, tables in (("schedule.windows", schedule.windows), ("schedule.outside", outside)):
        for table in tables:
            if table.policy == "static" and any(getattr(table, unit) is None for unit in lacking):
                which = f"{table.window.name} is static and " if key == "schedule.windows" else ""
                yield Conflict((key, "control.policy"), f"{which}has no limits", f"set {' and '.join(static)}")


def _address_conflicts(config: Config) -> Iterator[Conflict]:
    yield from _port_conflicts("observe.address", config.observe.host_port)
    address = _ip_address(config.observe.host_port[0])
    if address is None or not address.is_loopback:
        problem = "is not a loopback address, and the endpoints have no authentication"
        yield Conflict(("observe.address",), problem, "use 127.0.0.1 or [::1] with a port")
    yield from _remote_conflicts(config)
    key, server = "interference.prometheus", config.interference.prometheus_server
    if server is not None:
        yield from _port_conflicts(key, server)
        if _ip_address(server[0]) is None:
            yield Conflict((key,), "is no IP address", "use one with a port: no resolver is asked")


def _remote_conflicts(config: Config) -> Iterator[Conflict]:
    """Nobody may call over the network without TLS and authentication."""
    observe, key = config.observe, "observe.remote_address"
    if observe.remote_host_port is None:
        return
    yield from _port_conflicts(key, observe.remote_host_port)
    if _ip_address(observe.remote_host_port[0]) is None:
        yield Conflict((key,), "is no IP address", "use one of this machine, or 0.0.0.0 or [::], with a port")
    if observe.tls_certificate is None or observe.tls_key is None:
        keys = (key, "observe.tls_certificate", "observe.tls_key")
        yield Conflict(keys, "needs a certificate and its key", "set observe.tls_certificate and observe.tls_key")
    if observe.token_file is None and observe.client_ca is None:
        keys = (key, "observe.token_file", "observe.client_ca")
        problem = "would let everybody on the network in"
        yield Conflict(keys, problem, "set observe.token_file or observe.client_ca, or both")


def _port_conflicts(key: str, server: tuple[str, int]) -> Iterator[Conflict]:
    if not 0 < server[1] < 65536:
        yield Conflict((key,), "has no valid port", "use a port from 1 to 65535")


def _ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def value_of(config: Config, key: str) -> Any:
    """The value at `section.name`."""
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def restart_keys(old: Config, new: Config) -> tuple[str, ...]:
    """The changed keys that take effect only after a restart."""
    return tuple(s.key for s in settings() if s.needs_restart and value_of(old, s.key) != value_of(new, s.key))


def _number(bound: float | None) -> str:
    return f"{bound:_}" if isinstance(bound, int) else f"{bound:g}"
