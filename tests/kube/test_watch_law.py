"""However watches break, end and are forgotten: no change is lost, and the view never goes back for good."""

import json

from hypothesis import given
from hypothesis import strategies as st

from criproxy.kube import watch_law
from criproxy.kube.watch_law import Seen, WatchError, WatchState


class Server:
    """One object's history, as data. `version` 0: it is not there yet."""

    def __init__(self):
        self.events, self.version, self.oldest, self.present = [], 100, 100, None

    def change(self, gone):
        self.version += 1
        kind = "DELETED" if gone and self.present else "ADDED" if self.present is None else "MODIFIED"
        self.present = None if kind == "DELETED" else self.version
        self.events.append((self.version, self._line(kind, self.version)))

    def compact(self):
        self.oldest, self.events = self.version, []

    def list(self):
        items = [] if self.present is None else [self._object(self.present)]
        return json.dumps({"metadata": {"resourceVersion": str(self.version)}, "items": items}).encode()

    def watch(self, since):
        if int(since) < self.oldest:
            status = {"code": 410, "reason": "Expired", "message": "too old resource version"}
            return [json.dumps({"type": "ERROR", "object": status}).encode()]
        return [line for version, line in self.events if version > int(since)]

    def bookmark(self):
        return self._line("BOOKMARK", self.version)

    def _line(self, kind, version):
        return json.dumps({"type": kind, "object": self._object(version)}).encode()

    def _object(self, version):
        return {"metadata": {"name": "n", "resourceVersion": str(version)}}


class Viewer:
    """Does what the law says, as the part does it."""

    def __init__(self, server):
        self.server, self.state, self.view, self.lists = server, WatchState(), None, 0

    def step(self, cut=None, fails=False, bookmark=False):
        """One request; `cut`: it breaks after so many lines."""
        if fails:
            self.state, wait_s = watch_law.failed(self.state, 0.5)
            assert wait_s > 0.0
            return
        if not self.state.version:
            self.state, node = watch_law.listed(self.state, self.server.list())
            self.view, self.lists = node and int(node.metadata.resource_version), self.lists + 1
            return
        lines = self.server.watch(self.state.version)
        if bookmark and cut is None and b"ERROR" not in b"".join(lines):
            lines = [*lines, self.server.bookmark()]
        for line in lines[:cut]:
            try:
                self.state, seen, node = watch_law.happened(self.state, line)
            except WatchError as error:
                self.state, _ = watch_law.refused(self.state, error.status.code, 0.5)
                return
            if seen is not Seen.NOTHING:
                self.view = node and int(node.metadata.resource_version)
        self.state, _ = watch_law.ended(self.state, 300.0, len(lines), 0.5)


ACTIONS = st.one_of(
    st.tuples(st.just("change"), st.booleans()),
    st.tuples(st.just("compact"), st.none()),
    st.tuples(st.just("step"), st.fixed_dictionaries({"cut": st.none() | st.integers(0, 3), "fails": st.booleans()})),
    st.tuples(st.just("step"), st.just({"bookmark": True})),
)


@given(st.lists(ACTIONS, max_size=40))
def test_view_is_the_present_once_three_requests_succeed(actions):
    server = Server()
    viewer = Viewer(server)
    for kind, argument in actions:
        if kind == "change":
            server.change(argument)
        elif kind == "compact":
            server.compact()
        else:
            viewer.step(**argument)
    for _ in range(3):  # a watch that is told 410, a list, a watch
        viewer.step()
    assert viewer.view == server.present
    assert viewer.state.failures == 0


@given(st.lists(st.booleans(), min_size=1, max_size=20))
def test_bookmarks_make_another_list_needless(changes):
    server = Server()
    viewer = Viewer(server)
    viewer.step()
    for change in changes:
        if change:
            server.change(False)
        viewer.step(bookmark=True)
        server.compact()
    assert viewer.lists == 1
    assert viewer.view == server.present
