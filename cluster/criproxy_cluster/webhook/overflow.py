"""Which pods are made for virtual nodes: what this replica knows of owners, and what follows for one pod. Pure.

Whatever is missing, pods are converted as if no policy said anything: no book yet, none for `STALE_S` although the
leader writes one each minute, one that can't be read, no virtual node.

The book is a few seconds late. So that a burst of pods does not go past the most that a namespace may have on virtual
nodes, this replica adds those that it has let overflow since the last book; other replicas do not know of them.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from criproxy_cluster.objects import Json
from criproxy_cluster.owners.history import Written, decoded
from criproxy_cluster.owners.pods import OwnerReference, asked_of, controller_of
from criproxy_cluster.owners.rules import NOTHING_YET, Past, overflows, rule_of

STALE_S: Final = 300.0


class Decides(Protocol):
    def why(self, pod: Json, namespace: str, *, counts: bool) -> str:
        """Why a pod that is made now is to overflow; "": it is converted. `counts`: it will be there."""


class NeverOverflows:
    """Of a webhook that knows nothing of owners."""

    def why(self, pod: Json, namespace: str, *, counts: bool) -> str:
        return ""


NEVER: Final = NeverOverflows()


class Overflow:
    """`now_s` is a clock that only grows, `wall_s` the time of day."""

    def __init__(self, now_s: Callable[[], float], wall_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._wall_s = wall_s
        self._book = Written()
        self._histories = {one.owner: one for one in self._book.histories}
        self._version = ""
        self._heard_s = float("-inf")
        self._since: Counter[str] = Counter()
        """By namespace, those that have overflowed since the book came."""

    def hear(self, text: str, version: str = "", written_s: float | None = None) -> None:
        """A book has come, which was written then (None: just now). A version that is known already changes nothing.

        Raises ValueError, and keeps the one before.
        """
        if version and version == self._version:
            return
        self._version = version
        self._book = decoded(text) if text else Written()
        self._histories = {one.owner: one for one in self._book.histories}
        self._heard_s = self._now_s() - (0.0 if written_s is None else max(0.0, self._wall_s() - written_s))
        self._since.clear()

    def forget(self) -> None:
        """There is none any more."""
        self.hear("")

    def why(self, pod: Json, namespace: str, *, counts: bool) -> str:
        book = self._book
        if not book.virtual or self._now_s() - self._heard_s > STALE_S:
            return ""
        rule = rule_of(book.rules, namespace)
        if rule is None or (said := rule.spec.overflow) is None:
            return ""
        if book.overflowed.get(namespace, 0) + self._since[namespace] >= said.pods:
            return ""
        meta = pod["metadata"]
        why = overflows(said, self._past(meta, namespace), asked_of(meta.get("annotations") or {}), self._wall_s())
        if why and counts:
            self._since[namespace] += 1
        return why

    def _past(self, meta: Json, namespace: str) -> Past:
        found = [one for one in meta.get("ownerReferences") or () if isinstance(one, dict)]
        owner = controller_of(namespace, [_reference(one) for one in found])
        history = self._histories.get(owner) if owner else None
        return history.past(self._wall_s()) if history else NOTHING_YET


def _reference(found: Json) -> OwnerReference:
    kind, name, uid = (str(found.get(key, "")) for key in ("kind", "name", "uid"))
    return OwnerReference(kind, name, uid, bool(found.get("controller")))
