"""An unbroken view of Kubernetes' objects: reading lists and watches, and what to ask next. Pure.

How it works
------------
    LIST ──▶ the objects, and a resource version ──▶ WATCH from that version ──▶ changes, each with a version
     ▲                                                │ ends, as the server does each few minutes; or breaks
     │ refused, or failed again and again             └──▶ WATCH again from the last version that came
     └──────── what came since that version

- Versions are opaque: none is computed with, and none is compared by size.
- Objects are read one by one. One that can't be read has its name and a `problem`, and holds up no other. Its version
  counts as any other's, so it is not asked for again. Where not even its version can be read, the next look is a list.
- A bookmark only carries a version. It keeps the next watch from asking for one that is long forgotten, and it shows
  that the connection lives: one that has said nothing for `SILENCE_S` is dead, and the watch begins again.
- A version counts once its event was handed on. So no change is skipped; one may come twice, which does no harm, as
  each event carries the whole object.
- A watch of `LASTED_S` was one, however it ended. One that ended before is a failure, or a broken server would get
  requests without a pause. After `LIST_AFTER` failures in a row only lists count: what the watch says may
  never come.
- Whatever the server refuses, it may refuse as of the version: the next look is a list. 429 alone says to wait.

Source: Kubernetes API concepts, "Efficient detection of changes", "410 Gone responses", "Watch bookmarks".
"""

import re
from contextlib import suppress
from functools import cache
from typing import Final, Generic, Protocol, TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

WATCH_S: Final = 300.0
"""The server keeps a watch for so long, or up to twice as long: clients must not all come back at once."""

LASTED_S: Final = 5.0
SILENCE_S: Final = 90.0
"""The API server sends a bookmark each minute. Source: k8s.io/apiserver, storage/cacher, bookmarkFrequency."""

LIST_AFTER: Final = 3
MAX_LINE_BYTES: Final = 10 << 20
"""etcd keeps no object of more than 1.5 MiB, of which each byte may be six of JSON: API servers write `<` as \\u003c.
Source: etcd, --max-request-bytes; Go, encoding/json, HTMLEscape.
"""

MOST_DEEP: Final = 48
"""Levels of nesting that are kept of what is nested too deeply for our stack. A Node has about ten."""

_CHANGES: Final = ("ADDED", "MODIFIED", "DELETED")
_TOO_DEEP: Final = f"it is nested more than {MOST_DEEP} levels deep"
_CUT: Final = b'"<nested too deeply>"'
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)
_BUSY: Final = 429


class UnreadableError(ValueError):
    """What came is no list, or no event."""


class WatchError(Exception):
    """The server ended the watch with an error. `named_s`: the seconds that it asks to wait; None: it names none."""

    def __init__(self, code: int, words: str, named_s: float | None) -> None:
        super().__init__(f"{code} {words}"[:300])
        self.code: Final = code
        self.named_s: Final = named_s


class _HasName(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def resource_version(self) -> str: ...


class KubernetesObject(Protocol):
    """Whatever is read of an object, with its metadata."""

    @property
    def metadata(self) -> _HasName: ...


T = TypeVar("T", bound=KubernetesObject)
U = TypeVar("U")


class Item(Struct, Generic[T], frozen=True):
    """What a list or an event says of one object. `value` None: it says nothing of it, or `problem` has why not.

    `event` is "LISTED", "ADDED", "MODIFIED", "DELETED" or "BOOKMARK". `name` and `version` "": they can't be read.
    `generation` is there with a problem only.
    """

    event: str
    name: str
    version: str
    value: T | None = None
    problem: str = ""
    generation: int = 0


class Page(Struct, Generic[T], frozen=True):
    """A part of a list. `more` asks for the next one; "": it is the last."""

    version: str
    more: str
    items: tuple[Item[T], ...]


class WatchState(Struct, frozen=True):
    """`version` "": a list comes next, else a watch from this version. `failures`: so many in a row.

    `missed`: something came whose version is not known.
    """

    version: str = ""
    failures: int = 0
    missed: bool = False


# --- what comes ------------------------------------------------------------------------------------------------------


class _ItemMeta(Struct, frozen=True, rename="camel"):
    name: str = ""
    resource_version: str = ""
    generation: int = 0


class _AnyObject(Struct, frozen=True):
    metadata: _ItemMeta = _ItemMeta()


class _ListMeta(Struct, frozen=True):
    resource_version: str = msgspec.field(name="resourceVersion", default="")
    more: str = msgspec.field(name="continue", default="")


class _ObjectList(Struct, frozen=True):
    metadata: _ListMeta = _ListMeta()
    items: tuple[Raw, ...] | None = None


class _WatchLine(Struct, frozen=True):
    type: str
    object: Raw


class _PageOf(Struct, Generic[T], frozen=True):
    """As `_ObjectList`, all of it readable, as it nearly always is: in one go."""

    items: tuple[T, ...]
    metadata: _ListMeta = _ListMeta()


class _LineOf(Struct, Generic[T], frozen=True):
    type: str
    object: T


@cache
def _page_of(kind: type[T]) -> msgspec.json.Decoder[_PageOf[T]]:
    return msgspec.json.Decoder(_PageOf[kind])  # type: ignore[valid-type]


@cache
def _line_of(kind: type[T]) -> msgspec.json.Decoder[_LineOf[T]]:
    return msgspec.json.Decoder(_LineOf[kind])  # type: ignore[valid-type]


class _FailureDetails(Struct, frozen=True, rename="camel"):
    retry_after_seconds: float = 0.0


class _WatchFailure(Struct, frozen=True):
    code: int = 0
    reason: str = ""
    message: str = ""
    details: _FailureDetails | None = None


def shallow(data: bytes | bytearray) -> bytes:
    """JSON with a text in the place of whatever is nested more than `MOST_DEEP` levels deep."""
    kept, depth, begun = [], 0, 0
    for token in _TOKEN.finditer(data):
        match token[0]:
            case b"{" | b"[":
                depth += 1
                if depth == MOST_DEEP + 1:
                    kept.append(data[begun : token.start()])
            case b"}" | b"]":
                if depth == MOST_DEEP + 1:
                    kept.append(_CUT)
                    begun = token.end()
                depth -= 1
    return b"".join([*kept, data[begun:]])


def read_page(body: bytes | bytearray, kind: type[T]) -> Page[T]:
    """A list's answer. Raises UnreadableError, also for one without a version: nothing could be watched from it."""
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        whole = _page_of(kind).decode(body)
        if whole.metadata.resource_version:
            read = tuple(_read("LISTED", value) for value in whole.items)
            return Page(whole.metadata.resource_version, whole.metadata.more, read)
    try:
        found = _decoded(body, _ObjectList)
    except RecursionError:
        found = _decoded(shallow(body), _ObjectList)
    if not found.metadata.resource_version:
        raise UnreadableError("a list without a resourceVersion")
    items = tuple(_item("LISTED", bytes(raw), kind) for raw in found.items or ())
    return Page(found.metadata.resource_version, found.metadata.more, items)


def read_event(line: bytes, kind: type[T]) -> Item[T]:
    """One line of a watch. Raises WatchError."""
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        whole = _line_of(kind).decode(line)
        if whole.type in _CHANGES:
            return _read(whole.type, whole.object)
    try:
        event = _decoded(line, _WatchLine)
    except RecursionError:
        event = _decoded_or(shallow(line), _WatchLine("", Raw(b"{}")))
    except UnreadableError as error:
        return Item("", "", "", problem=str(error))
    if event.type == "ERROR":
        status = _decoded_or(bytes(event.object), _WatchFailure())
        named_s = status.details.retry_after_seconds if status.details else 0.0
        raise WatchError(status.code, f"{status.reason}: {status.message}", named_s or None)
    if event.type in _CHANGES:
        return _item(event.type, bytes(event.object), kind)
    meta = _decoded_or(bytes(event.object), _AnyObject()).metadata  # a bookmark, or what later servers may add
    return Item("BOOKMARK", meta.name, meta.resource_version)


def _decoded(data: bytes | bytearray, kind: type[U]) -> U:
    """Raises UnreadableError; RecursionError for what is nested more deeply than this stack can follow."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnreadableError(str(error)[:200]) from error


def _decoded_or(data: bytes, otherwise: U) -> U:
    try:
        return _decoded(data, type(otherwise))
    except (UnreadableError, RecursionError):
        return otherwise


def _read(event: str, value: T) -> Item[T]:
    name, version = value.metadata.name, value.metadata.resource_version
    return Item(event, name, version, value) if name else Item(event, "", version, problem="it has no name")


def _item(event: str, raw: bytes, kind: type[T]) -> Item[T]:
    problem = _TOO_DEEP
    if _CUT not in raw:
        try:
            value = _decoded(raw, kind)
        except RecursionError:
            raw = shallow(raw)
        except UnreadableError as error:
            problem = str(error)
        else:
            return _read(event, value)
    meta = _decoded_or(raw, _AnyObject()).metadata
    return Item(event, meta.name, meta.resource_version, problem=problem, generation=meta.generation)


class LineReader:
    """Splits what comes into lines, without their ends. Of a line, no more than `most_bytes` are kept.

    The separator is the byte alone: JSON may hold whatever else is taken for the end of a line.
    """

    def __init__(self, most_bytes: int = MAX_LINE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._held = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        first, *others = data.split(b"\n")
        self._hold(first)
        lines = []
        for part in others:
            lines.append(bytes(self._held))
            self._held.clear()
            self._hold(part)
        return [line for line in lines if line.strip()]

    def _hold(self, part: bytes) -> None:
        self._held += part[: self._most_bytes - len(self._held)]


# --- what to ask next ------------------------------------------------------------------------------------------------


def next_limit(limit: int, most: int, size_bytes: int, most_bytes: int) -> int:
    """How many objects to ask for after a page of `limit` objects that had this size, of the `most_bytes` that it may.

    Twice as many, up to `most`, where such ones would fit: one large object does not make all pages after it small.
    """
    return min(2 * limit, most) if 2 * size_bytes <= most_bytes else limit


def asked(state: WatchState, jitter: float) -> dict[str, str]:
    """What the query of the next request has of a watch. `jitter` is a random number from 0 to 1.

    A list without a version asks for the present, not for what a cache has: nothing must go back in time.
    """
    if not state.version:
        return {}
    return {
        "watch": "1",
        "resourceVersion": state.version,
        "allowWatchBookmarks": "true",
        "timeoutSeconds": str(round(WATCH_S * (1.0 + jitter))),
    }


def listed(state: WatchState, version: str) -> WatchState:
    """A list has come as a whole. One between two broken watches is no recovery."""
    return WatchState(version, state.failures)


def happened(state: WatchState, item: Item[T], lasted_s: float) -> WatchState:
    """An event has come and was handed on, so long after the answer began."""
    failures = 0 if lasted_s >= LASTED_S else state.failures
    return WatchState(item.version or state.version, failures, missed=not item.version)


def ended(state: WatchState, lasted_s: float) -> WatchState:
    """A watch has ended, so long after its answer began (0.0: there was none), in order or not."""
    version = "" if state.missed else state.version
    if lasted_s >= LASTED_S:
        return WatchState(version)
    return failed(replace(state, version=version, missed=False))


def failed(state: WatchState) -> WatchState:
    """No answer, or one that can't be read."""
    failures = state.failures + 1
    return WatchState(state.version if failures < LIST_AFTER else "", failures)


def refused(state: WatchState, code: int, lasted_s: float = 0.0) -> WatchState:
    """The server answered with an error, at once or after so long.

    Whatever it refuses for good may be allowed later (a role, the kind itself), so that is tried again as well.
    """
    after = failed(WatchState(state.version, 0 if lasted_s >= LASTED_S else state.failures))
    return after if code == _BUSY else replace(after, version="")


class Unread:
    """What could not be read, so that each is logged once."""

    def __init__(self) -> None:
        self._problems: dict[str, str] = {}

    def is_news(self, item: Item[T]) -> bool:
        """Whether it can't be read, and nobody has said so yet."""
        if not item.problem:
            self._problems.pop(item.name, None)
            return False
        before = self._problems.get(item.name)
        self._problems[item.name] = item.problem
        return before != item.problem
