"""How gogo's generated code reads a RunPodSandboxRequest: the runtime's view of bytes that no kubelet writes.

It takes more than our protobuf does: tags and lengths in up to ten bytes, groups that any group's end closes, and in a
map's entry any wire type for the key and the value, whose text may run on behind the entry.
Source: gogo/protobuf v1.3.2, plugin/unmarshal and plugin/generator/helper.go, as in k8s.io/cri-api's api.pb.go.
"""

from collections.abc import Callable, Iterator

from msgspec import Struct, field


class GogoError(Exception):
    """gogo refuses the message, and so does the runtime."""


class Read(Struct):
    """What the runtime has of the pod."""

    name: bytes = b""
    uid: bytes = b""
    namespace: bytes = b""
    cgroup_parent: bytes = b""
    labels: dict[bytes, bytes] = field(default_factory=dict)
    annotations: dict[bytes, bytes] = field(default_factory=dict)


def run_pod_sandbox(data: bytes) -> Read:
    """Raises GogoError."""
    read = Read()
    for number, payload in _fields(data, {1, 2}):
        if number == 1:
            _config(payload, read)
    return read


def _config(data: bytes, read: Read) -> None:
    def entry_at(number: int, start: int, end: int) -> None:
        key, value = _entry(data, start, end)
        (read.labels if number == 6 else read.annotations)[key] = value

    for number, payload in _fields(data, {1, 2, 3, 4, 5, 6, 7, 8}, maps={6, 7}, on_entry=entry_at):
        if number == 1:
            _metadata(payload, read)
        elif number == 8:
            for inner, text in _fields(payload, {1, 2, 3, 4, 5}, maps={3}):
                if inner == 1:
                    read.cgroup_parent = text


def _metadata(data: bytes, read: Read) -> None:
    for number, text in _fields(data, {1, 2, 3}, numbers={4}):
        if number == 1:
            read.name = text
        elif number == 2:
            read.uid = text
        elif number == 3:
            read.namespace = text


def _fields(
    data: bytes,
    known: set[int],
    *,
    maps: frozenset[int] | set[int] = frozenset(),
    numbers: frozenset[int] | set[int] = frozenset(),
    on_entry: Callable[[int, int, int], None] = lambda number, start, end: None,
) -> Iterator[tuple[int, bytes]]:
    """The fields of one message, with their bytes. `known` have a length, `numbers` are varints; others are skipped."""
    at = 0
    while at < len(data):
        start = at
        wire, at = _varint(data, at)
        number, kind = _int32(wire >> 3), wire & 7
        if kind == 4 or number <= 0:
            raise GogoError(f"wire type {kind}, field {number}")
        if number in known:
            if kind != 2:
                raise GogoError(f"wrong wire type {kind} for field {number}")
            begin, at = _length(data, at)
            if number in maps:
                on_entry(number, begin, at)
            else:
                yield number, data[begin:at]
        elif number in numbers:
            if kind != 0:
                raise GogoError(f"wrong wire type {kind} for field {number}")
            _, at = _varint(data, at)
        else:
            at = _skipped(data, start)


def _entry(data: bytes, at: int, end: int) -> tuple[bytes, bytes]:
    """A map's entry: the wire types are not looked at, and texts end with the message, not with the entry."""
    key = value = b""
    while at < end:
        start = at
        wire, at = _varint(data, at)
        number = _int32(wire >> 3)
        if number == 1:
            begin, at = _length(data, at)
            key = data[begin:at]
        elif number == 2:
            begin, at = _length(data, at)
            value = data[begin:at]
        else:
            at = _skipped(data, start)
            if at > end:
                raise GogoError("unexpected end")
    return key, value


def _length(data: bytes, at: int) -> tuple[int, int]:
    size, at = _varint(data, at)
    if size >= 1 << 63 or at + size > len(data):
        raise GogoError("a length beyond the end")
    return at, at + size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise GogoError("unexpected end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & ((1 << 64) - 1), at
    raise GogoError("overflow")


def _int32(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def _skipped(data: bytes, at: int) -> int:
    """Where the unknown field that begins here ends."""
    depth = 0
    while at < len(data):
        wire, at = _varint(data, at)
        match wire & 7:
            case 0:
                _, at = _varint(data, at)
            case 1:
                at += 8
            case 2:
                _, at = _length(data, at)
            case 3:
                depth += 1
            case 4:
                if not depth:
                    raise GogoError("the end of no group")
                depth -= 1
            case 5:
                at += 4
            case _:
                raise GogoError("an illegal wire type")
        if not depth:
            if at > len(data):
                raise GogoError("unexpected end")
            return at
    raise GogoError("unexpected end")
