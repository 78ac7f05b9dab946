"""An unbroken view of one object: what to ask next, from what came. Pure.

How it works
------------
    LIST ──▶ the object, and a resource version ──▶ WATCH from that version ──▶ its changes, each with a version
     ▲                                                │ ends, as the server does each few minutes; or breaks
     │ 410 Gone: the server has forgotten             └──▶ WATCH again from the last version that came
     └──────── what came since that version

- Versions are opaque: none is computed with, and none is compared by size.
- A bookmark only carries a version. It keeps the next watch from asking for one that is long forgotten.
- A version counts once its event was handed on. So no change is skipped; one may come twice, which does no harm, as
  each event carries the whole object.
- Whatever fails is tried again for ever, after the pauses of `retry`. An event, or a watch that lasted, ends a row of
  failures; a watch that ends at once without a word is a failure, or a broken server would be asked without a pause.

Source: Kubernetes API concepts, "Efficient detection of changes", "410 Gone responses", "Watch bookmarks".
"""

from enum import Enum
from typing import Final
from urllib.parse import urlencode

from msgspec import Struct
from msgspec.structs import replace

from criproxy.kube.objects import ApiStatus, Meta, Node, NodeList, WatchEvent, decoded
from criproxy.kube.retry import Meaning, meaning, pause_s

WATCH_S: Final = 300.0
"""So long the server is asked to keep a watch, or up to twice as long: nodes must not all come back at once."""

LASTED_S: Final = 5.0
"""A watch of so long was one, even when nothing came."""


class WatchState(Struct, frozen=True):
    """`version` "": a list comes next, else a watch from this version. `failures`: so many in a row."""

    version: str = ""
    failures: int = 0


class Seen(Enum):
    """What an event says of the object."""

    CHANGED = "changed"
    GONE = "gone"
    NOTHING = "nothing"


class Bookmark(Struct, frozen=True):
    """All that is read of a bookmark's object, whatever kind it has."""

    metadata: Meta = Meta()


class WatchError(Exception):
    """The server ended the watch with an error. `status` has its code and reason."""

    def __init__(self, status: ApiStatus) -> None:
        super().__init__(f"{status.code} {status.reason}: {status.message}"[:300])
        self.status: Final = status


def query(state: WatchState, name: str, luck: float) -> str:
    """The query of the next request to /api/v1/nodes. `luck` is a random number from 0 to 1.

    A list without a version asks for the present, not for what a cache has: a policy must not go back in time.
    """
    chosen = {"fieldSelector": f"metadata.name={name}"}
    if state.version:
        chosen |= {
            "watch": "1",
            "resourceVersion": state.version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(round(WATCH_S * (1.0 + luck))),
        }
    return urlencode(chosen)


def listed(state: WatchState, body: bytes) -> tuple[WatchState, Node | None]:
    """The object as it is now; None: there is none. Raises ObjectError."""
    found = decoded(body, NodeList)
    return replace(state, version=found.metadata.resource_version), next(iter(found.items), None)


def happened(state: WatchState, line: bytes) -> tuple[WatchState, Seen, Node | None]:
    """What one line of a watch says. Raises WatchError, or ObjectError for what is no event."""
    event = decoded(line, WatchEvent)
    if event.type == "ERROR":
        raise WatchError(decoded(bytes(event.object), ApiStatus))
    if event.type not in ("ADDED", "MODIFIED", "DELETED"):  # BOOKMARK, or what later servers may add
        return _at(state, decoded(bytes(event.object), Bookmark).metadata), Seen.NOTHING, None
    node = decoded(bytes(event.object), Node)
    after = _at(state, node.metadata)
    return (after, Seen.GONE, None) if event.type == "DELETED" else (after, Seen.CHANGED, node)


def _at(state: WatchState, metadata: Meta) -> WatchState:
    return WatchState(metadata.resource_version or state.version)


def ended(state: WatchState, lasted_s: float, events: int, luck: float) -> tuple[WatchState, float]:
    """The server ended a watch in order. Returns the seconds to wait, too."""
    if events or lasted_s >= LASTED_S:
        return replace(state, failures=0), luck
    return failed(state, luck)


def failed(state: WatchState, luck: float, named_s: float | None = None) -> tuple[WatchState, float]:
    """No answer, a broken one, or one that says to try again. Returns the seconds to wait, too."""
    after = replace(state, failures=state.failures + 1)
    return after, pause_s(after.failures, luck, named_s)


def refused(state: WatchState, status: int, luck: float, named_s: float | None = None) -> tuple[WatchState, float]:
    """The server answered with an error's status, at the start of a watch or within. Returns the seconds to wait, too.

    Whatever it refuses for good may be allowed later (a role, the Node itself), so that is tried again as well. A
    version that it does not take is given up, whatever the code: 410, or 400 and 404 from servers behind a proxy.
    """
    given_up = meaning(status) in (Meaning.STALE, Meaning.REFUSED)
    return failed(replace(state, version="") if given_up else state, luck, named_s)
