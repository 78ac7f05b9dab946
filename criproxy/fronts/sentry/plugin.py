"""What the runtime itself starts of criproxy, before it answers its first call: the launcher and the sentry.

`criproxy sentry on` puts this file, as it is, under two names into the runtime's directory of NRI plugins. The runtime
starts each once, on a socket of its own.

- The **launcher** (`95-criproxy`) hands its socket to criproxy, which then is a plugin from the runtime's first call
  on. Where no criproxy answers in time it ends, and the runtime goes on without it.
- The **sentry** (`99-criproxy-sentry`) is a plugin by itself as long as its runtime lives, and the last one that is
  asked about a container, when criproxy has said where it goes. It refuses the containers of offline pods that nobody
  has placed, and lets all others by. So none gets past a criproxy that is dead, not back yet, or was too slow.

The sentry needs no criproxy, and writes nothing. It refuses a container when all of this holds:

- its pod is offline by the rules that criproxy has left in `RULES`;
- its cgroup is below kubelet's: a placed one is below the box;
- the pod is none of those that `RULES` lets by, as they ran outside the box before these rules held.

What can't be read or decoded is let by: online pods come first. This imports but os, sys and json (the launcher socket,
too), as the runtime's start waits for it.

Source: github.com/containerd/nri, pkg/adaptation/plugin.go, pkg/net/multiplex, pkg/api/api.proto; containerd/ttrpc,
PROTOCOL.md; unix(7), SCM_RIGHTS.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

RULES = "/var/lib/criproxy/nri-sentry.json"
"""As `criproxy.fronts.sentry.rules.SentryOrders` has them; without the file, nobody is offline."""

HANDED = "/run/criproxy/nri-launcher.sock"
"""Where criproxy takes sockets over: `criproxy.fronts.nri.handed` has the protocol."""

TAKEN = b"1"

SENTRY = "criproxy-sentry"
"""By this name the runtime starts the sentry; by any other the launcher."""

CREATE_CONTAINER = 1 << 3
"""The one event that it subscribes to. Every runtime knows it."""

FAILED_PRECONDITION = 9
UNIMPLEMENTED = 12

_PLUGIN, _RUNTIME = 1, 2
_REQUEST, _RESPONSE = 1, 2
_API = "nri.pkg.api.v1alpha1"
_CHUNK = 1 << 16
_RULE = ("subject", "key", "test", "value")
_ANSWERS_S = 0.5
"""How long criproxy has to be dialled, and to answer: the runtime's start waits. It gives a plugin 5 s to register."""


class Rules:
    """What is offline, by the file at `path`, which is read again once it has changed.

    A file that can't be read or decoded leaves the rules as they are.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._rules: list[tuple[dict[str, str], list[str]]] = []
        self._let_by: frozenset[str] = frozenset()

    def why(self, sandbox_id: str, namespace: str, labels: dict[str, str], annotations: dict[str, str]) -> str:
        """By which rule a pod is offline, in words; "" when it is online, or let by."""
        self._refresh()
        if sandbox_id in self._let_by:
            return ""
        if namespace == "kube-system" and annotations.get("kubernetes.io/config.source", "api") != "api":
            return ""  # a static pod of the node itself
        for rule, not_in in self._rules:
            if namespace in not_in:
                continue
            subject, key = rule["subject"], rule["key"]
            found = {"label": labels, "annotation": annotations}.get(subject, {"": namespace}).get(key)
            if found is not None and _matches(rule["test"], rule["value"], found):
                return f"by its {subject} {key}".rstrip()
        return ""

    def _refresh(self) -> None:
        try:
            state = os.stat(self._path)
            seen = state.st_ino, state.st_mtime_ns, state.st_size
            if seen != self._seen:
                with open(self._path, "rb") as file:
                    self._rules, self._let_by = _checked(json.loads(file.read()))
                self._seen = seen
        except FileNotFoundError:
            self._seen, self._rules = None, []
        except (OSError, ValueError):
            pass


def _checked(orders: object) -> tuple[list[tuple[dict[str, str], list[str]]], frozenset[str]]:
    """Each rule with the namespaces that it is not for. Raises ValueError for what is no SentryOrders."""
    if not isinstance(orders, dict):
        raise ValueError("no object")
    rules, let_by = orders.get("rules"), orders.get("let_by")
    if not isinstance(rules, list) or not isinstance(let_by, list):
        raise ValueError("no lists")
    for rule in rules:
        if not isinstance(rule, dict) or not all(isinstance(rule.get(key), str) for key in _RULE):
            raise ValueError("no rule")
        if not isinstance(rule.get("not_in", []), list):  # an older criproxy writes none
            raise ValueError("no list of namespaces")
    return [(rule, list(map(str, rule.get("not_in", [])))) for rule in rules], frozenset(map(str, let_by))


def _matches(test: str, value: str, found: str) -> bool:
    return test == "present" or (test == "equals" and found == value) or (test == "prefix" and found.startswith(value))


class SentrySession:
    """The plugin's end of the connection, without its socket: bytes in, bytes out.

    The connection is cut into chunks (number of an inner connection, length, payload), and what the chunks of one inner
    connection hold into frames of ttrpc (length, stream, kind, flags, payload), all with numbers in network order.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._came = bytearray()
        self._frames = bytearray()

    def begin(self, name: str, index: str) -> bytes:
        """The registration."""
        register = (
            _text(1, f"{_API}.Runtime") + _text(2, "RegisterPlugin") + _bytes(3, _text(1, name) + _text(2, index))
        )
        return _frame(_RUNTIME, 1, _REQUEST, register)

    def receive(self, data: bytes) -> bytes:
        """What is to be answered to what came. Raises ValueError when it is no NRI."""
        self._came += data
        while len(self._came) >= 8 and len(self._came) >= (end := 8 + int.from_bytes(self._came[4:8], "big")):
            if int.from_bytes(self._came[:4], "big") == _PLUGIN:  # on the other is but the answer to our registration
                self._frames += self._came[8:end]
            del self._came[:end]
        answers = b""
        while len(self._frames) >= 10 and len(self._frames) >= (end := 10 + int.from_bytes(self._frames[:4], "big")):
            if self._frames[8] == _REQUEST:
                stream, message = int.from_bytes(self._frames[4:8], "big"), bytes(self._frames[10:end])
                answers += _frame(_PLUGIN, stream, _RESPONSE, self._answer(message))
            del self._frames[:end]
        return answers

    def _answer(self, request: bytes) -> bytes:
        method, payload = b"", b""
        for number, value in _fields(request):
            if isinstance(value, bytes):
                method, payload = (value if number == 2 else method), (value if number == 3 else payload)
        if method == b"CreateContainer":
            why = self._refusal(payload)
            return _status(FAILED_PRECONDITION, why) if why else b""
        if method == b"Configure":
            return _bytes(2, _number(2, CREATE_CONTAINER))
        if method == b"Synchronize":  # it may come in parts; each answer says whether more are welcome
            more = any(number == 3 and value for number, value in _fields(payload))
            return _bytes(2, _number(2, 1)) if more else b""
        return (
            b""
            if method == b"Shutdown"
            else _status(UNIMPLEMENTED, f"the sentry has no {method.decode(errors='replace')}")
        )

    def _refusal(self, payload: bytes) -> str:
        """Why the container is not made; "" when it is."""
        try:
            pod, container = (_last(payload, number) for number in (1, 2))
            if b"kubepods" not in _last(_last(container, 11), 5):
                return ""
            namespace, name = _last(pod, 4).decode(), _last(pod, 2).decode()
            why = self._rules.why(_last(pod, 1).decode(), namespace, _map(pod, 5), _map(pod, 6))
        except ValueError:
            return ""
        return why and (
            f"criproxy: pod {namespace}/{name} is offline {why}, and criproxy has not placed this container: it does "
            "not run, or has yet to come back to the runtime; kubelet tries again by itself"
        )


# --- protobuf ---------------------------------------------------------------------------------------------------------


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: numbers and bytes; others are passed over. Raises ValueError."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        length, at = _varint(message, at) if kind == 2 else ({1: 8, 5: 4}.get(kind, -1), at)
        if length < 0 or at + length > len(message):
            raise ValueError("no protobuf")
        if kind == 2:
            yield key >> 3, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    for byte in message[at : at + 10]:
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise ValueError("no varint")


def _last(message: bytes, number: int) -> bytes:
    """A field of bytes; b"" when it is not set."""
    found = b""
    for field, value in _fields(message):
        if field == number and isinstance(value, bytes):
            found = value
    return found


def _map(message: bytes, number: int) -> dict[str, str]:
    entries = [value for field, value in _fields(message) if field == number and isinstance(value, bytes)]
    return {_last(entry, 1).decode(): _last(entry, 2).decode() for entry in entries}


def _number(field: int, value: int) -> bytes:
    encoded = bytearray([field << 3])
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes(encoded) + bytes([value])


def _bytes(field: int, value: bytes) -> bytes:
    length = _number(field, len(value))
    return bytes([field << 3 | 2]) + length[1:] + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _status(code: int, message: str) -> bytes:
    return _bytes(1, _number(1, code) + _text(2, message))


def _frame(connection: int, stream: int, kind: int, payload: bytes) -> bytes:
    inner = len(payload).to_bytes(4, "big") + stream.to_bytes(4, "big") + bytes([kind, 0]) + payload
    return connection.to_bytes(4, "big") + len(inner).to_bytes(4, "big") + inner


# --- the process ------------------------------------------------------------------------------------------------------


def main() -> int:
    """Serve the runtime that has started us; the exit status is for nobody but a test."""
    try:
        socket, name, index = (os.environ[f"NRI_PLUGIN_{key}"] for key in ("SOCKET", "NAME", "IDX"))
    except KeyError:
        sys.stderr.write("the container runtime starts this, as a plugin of NRI: see `criproxy sentry --help`\n")
        return 2
    try:
        return watch(int(socket), name, index) if name == SENTRY else hand_over(int(socket), name, index)
    except (OSError, ValueError):
        return 1


def watch(runtime: int, name: str, index: str) -> int:
    """Be the sentry until the runtime ends, or hangs up. Raises OSError, and ValueError for what is no NRI."""
    session = SentrySession(Rules(RULES))
    answer = session.begin(name, index)
    while True:
        while answer:
            answer = answer[os.write(runtime, answer) :]
        if not (data := os.read(runtime, _CHUNK)):
            return 0
        answer = session.receive(data)


def hand_over(runtime: int, name: str, index: str) -> int:
    """Be the launcher, which stays until criproxy hangs up: as nobody waits for what ends, it would be left a zombie.

    Our own copy of the socket is closed before: when criproxy dies, the runtime shall know. Raises OSError.
    """
    import socket

    with socket.socket(fileno=runtime) as handed, socket.socket(socket.AF_UNIX) as criproxy:
        try:
            criproxy.settimeout(_ANSWERS_S)
            criproxy.connect(HANDED)
            said = json.dumps({"plugin_name": name, "plugin_index": index}).encode()
            socket.send_fds(criproxy, [said], [runtime])
            taken = criproxy.recv(1) == TAKEN
        except OSError:
            taken = False
        if not taken:
            handed.shutdown(socket.SHUT_RDWR)  # it may be under way to a criproxy that hangs, and the runtime waits
            return 1
        handed.close()
        criproxy.settimeout(None)
        criproxy.recv(1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
