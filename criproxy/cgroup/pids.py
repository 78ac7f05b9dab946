"""The pids controller: how many processes and threads a cgroup may have. Its files are alike in cgroup v1 and v2.

Source: Documentation/admin-guide/cgroup-v1/pids.rst; cgroup-v2.rst, PID.
"""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from criproxy.cgroup.driver import contested
from criproxy.cgroup.ledger import Ledger
from criproxy.cgroup.naming import parse_box
from criproxy.cgroup.places import checked_box, checked_path
from criproxy.cgroup.tree import Tree
from criproxy.model import UNLIMITED, LimitChange, Pids, type_unlimited

_NO_LIMIT: Final = "max"


class PidsController(Struct, frozen=True):
    """`mount`: the hierarchy that has the controller; None: there is none, and then nothing is limited."""

    mount: str | None
    tree: Tree
    proc: str
    ledger: Ledger

    def read(self, path: str) -> Pids | None:
        """What a cgroup has and may have. None: the controller is not there."""
        limit = self._limit(path)
        if limit is None:
            return None
        return Pids(int(self.tree.read(f"{self.mount}{checked_path(path)}/pids.current")), limit)

    def share(self, box: str, ratio: float) -> int | None:
        """So many may be in the box. None: the controller is not there.

        `ratio` is of what the kernel allows the node, or kubelet its pods, or a cgroup above the box what is in it,
        whichever is least.
        """
        if self._limit(box) is None:
            return None
        most = [int(self.tree.read(f"{self.proc}/sys/kernel/{name}")) for name in ("pid_max", "threads-max")]
        above = checked_box(box)
        beside = [parse_box(box).online]
        while above := above.rpartition("/")[0]:
            beside.append(above)
        limits = (self._limit(path) for path in beside)
        return max(1, int(ratio * min(*most, *(limit for limit in limits if isinstance(limit, int)))))

    def settle(self, path: str, want: int | type_unlimited) -> Iterator[LimitChange]:
        """Make this the limit of a cgroup of ours; below what is there, nothing ends, and nothing new starts.

        Does nothing where the controller is not there. Raises CgroupError.
        """
        old = self._limit(path)
        file = self._file(path)
        if old is None:
            return
        if old == want:
            self.ledger.kept(file, _text(old))
            return
        self.tree.write(file, _text(want))
        new = self._limit(path)
        if new != want:
            raise contested(file, _text(want), _text(new))
        yield self.ledger.changed(file, _text(old), _text(want))

    def _limit(self, path: str) -> int | type_unlimited | None:
        """None: there is no such file, as at the hierarchy's root."""
        if self.mount is None or not self.tree.exists(self._file(path)):
            return None
        text = self.tree.read(self._file(path))
        return UNLIMITED if text == _NO_LIMIT else int(text)

    def _file(self, path: str) -> str:
        return f"{self.mount}{checked_path(path)}/pids.max"


def _text(limit: int | type_unlimited | None) -> str:
    return _NO_LIMIT if limit is UNLIMITED else str(limit)
