"""However watches break, end and are forgotten: no change is lost, and the view never goes back for good."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.vocabulary import watching
from criproxy.vocabulary.watching import (
    LASTED_S,
    LIST_AFTER,
    Item,
    LineReader,
    Unread,
    UnreadableError,
    WatchError,
    WatchState,
    read_event,
    read_page,
)


class Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    resource_version: str = ""


class Thing(msgspec.Struct):
    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: dict[str, int] = {}


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
            self.state = watching.failed(self.state)
            return
        if not self.state.version:
            page = read_page(self.server.list(), Thing)
            self.view = next((int(item.version) for item in page.items), None)
            self.state, self.lists = watching.listed(self.state, page.version), self.lists + 1
            return
        lines = self.server.watch(self.state.version)
        if bookmark and cut is None and b"ERROR" not in b"".join(lines):
            lines = [*lines, self.server.bookmark()]
        for line in lines[:cut]:
            try:
                item = read_event(line, Thing)
            except WatchError as error:
                self.state = watching.refused(self.state, error.code)
                return
            if item.event != "BOOKMARK":
                self.view = None if item.event == "DELETED" else int(item.version)
            self.state = watching.happened(self.state, item, 1.0)
        self.state = watching.ended(self.state, 300.0)


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


# --- what is read ----------------------------------------------------------------------------------------------------


def line(kind, name="n", version="7", **fields):
    thing = {"metadata": {"name": name, "resourceVersion": version, "generation": 3}, **fields}
    return json.dumps({"type": kind, "object": thing}, ensure_ascii=False).encode()


def nested(levels):
    return b'{"a":' * levels + b"1" + b"}" * levels


def deep(name, levels=1100):
    return b'{"metadata":{"name":"%s","resourceVersion":"8","generation":4},"spec":%s}' % (name, nested(levels))


@pytest.mark.parametrize("event", ["ADDED", "MODIFIED", "DELETED"])
def test_an_event_has_the_object_and_its_version(event):
    item = read_event(line(event, spec={"a": 1}), Thing)
    assert (item.event, item.name, item.version, item.value.spec, item.problem) == (event, "n", "7", {"a": 1}, "")


@pytest.mark.parametrize("event", ["BOOKMARK", "WHATEVER"])
def test_what_is_no_change_carries_a_version_alone(event):
    assert read_event(line(event, spec="?"), Thing) == Item("BOOKMARK", "n", "7")


@pytest.mark.parametrize("text", ["{", "[]", '{"type":"ADDED"}', "\xff"])
def test_a_line_that_is_no_event_is_an_item_without_a_version(text):
    item = read_event(text.encode("latin-1"), Thing)
    assert item.problem
    state = watching.happened(WatchState("3"), item, 0.0)
    assert watching.ended(state, 300.0).version == "", "a list goes past it"
    later = watching.happened(state, read_event(line("BOOKMARK"), Thing), 0.0)
    assert watching.ended(later, 300.0).version == "7", "the watch is past it"


@pytest.mark.parametrize("levels", [1100, 9000])
def test_an_event_nested_too_deeply_has_its_name_and_version(levels):
    item = read_event(b'{"type":"MODIFIED","object":%s}' % deep(b"n", levels), Thing)
    assert (item.event, item.name, item.version, item.generation, item.value) == ("MODIFIED", "n", "8", 4, None)
    assert "nested" in item.problem


def test_one_item_of_a_list_that_cannot_be_read_holds_up_no_other():
    good = b'{"metadata":{"name":"good","resourceVersion":"5"},"spec":{"a":1}}'
    wrong = b'{"metadata":{"name":"wrong","resourceVersion":"6"},"spec":{"a":"]}"}}'
    items = b",".join((wrong, deep(b"d"), b'{"metadata":5}', b"{}", good))
    page = read_page(b'{"metadata":{"resourceVersion":"9","continue":"x"},"items":[%s]}' % items, Thing)
    assert (page.version, page.more) == ("9", "x")
    names = [(item.name, item.version) for item in page.items]
    assert names == [("wrong", "6"), ("d", "8"), ("", ""), ("", ""), ("good", "5")]
    assert [bool(item.problem) for item in page.items] == [True, True, True, True, False]
    assert page.items[4].value.spec == {"a": 1}


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"metadata":{},"items":[]}', b"<html>", b"\xff", nested(2000)])
def test_what_is_no_list_is_an_error(body):
    with pytest.raises(UnreadableError):
        read_page(body, Thing)


@pytest.mark.parametrize("odd", ["\u0085", "\u2028", "\x0b", "\x0c", "\x1c", "\r"])
def test_a_line_ends_at_a_newline_alone(odd):
    whole = line("ADDED", name=f"a{odd}b")
    raw = whole if odd in "\u0085\u2028" else whole.replace(json.dumps(odd)[1:-1].encode(), odd.encode())
    assert LineReader().feed(raw + b"\n") == [raw]


@given(st.lists(st.binary(max_size=10).filter(lambda line: b"\n" not in line and line.strip())), st.data())
def test_lines_come_whole_however_they_are_cut(expected, data):
    sent = b"".join(line + b"\n" for line in expected)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=6)))
    reader, found = LineReader(100), []
    for start, end in zip((0, *cuts), (*cuts, len(sent)), strict=True):
        found += reader.feed(sent[start:end])
    assert found == expected


def test_of_an_endless_line_little_is_kept_and_the_next_one_is_read():
    reader = LineReader(10)
    assert reader.feed(b"123456789") == []
    assert reader.feed(b"0a" * 1000) == []
    assert reader.feed(b"\nb\n") == [b"1234567890", b"b"]


def test_what_cannot_be_read_is_told_of_once():
    unread = Unread()
    problems = ["it is odd", "it is odd", "it is worse", "", "it is odd"]
    items = [Item[Thing]("MODIFIED", "n", str(number), problem=problem) for number, problem in enumerate(problems)]
    assert [unread.is_news(item) for item in items] == [True, False, True, False, True]


# --- what is asked next ----------------------------------------------------------------------------------------------


def test_a_watch_is_asked_for_with_bookmarks_and_for_a_random_time():
    assert watching.asked(WatchState(), 0.5) == {}
    times = [watching.asked(WatchState("9"), jitter)["timeoutSeconds"] for jitter in (0.0, 1.0)]
    assert times == ["300", "600"]
    assert (
        watching.asked(WatchState("9"), 0.0).items() >= {"resourceVersion": "9", "allowWatchBookmarks": "true"}.items()
    )


@pytest.mark.parametrize("code", [400, 401, 403, 404, 410, 500, 504])
def test_whatever_is_refused_is_listed_next(code):
    assert watching.refused(WatchState("3"), code) == WatchState("", 1)


def test_a_busy_server_is_asked_for_the_same_until_that_has_failed_often():
    state = WatchState("3")
    for failures in range(1, LIST_AFTER):
        state = watching.refused(state, 429)
        assert state == WatchState("3", failures)
    assert watching.refused(state, 429) == WatchState("", LIST_AFTER)


@pytest.mark.parametrize("how", [watching.failed, lambda state: watching.ended(state, LASTED_S - 0.1)])
def test_what_fails_again_and_again_is_listed(how):
    state = WatchState("3")
    for failures in range(1, LIST_AFTER):
        state = how(state)
        assert state == WatchState("3", failures)
    assert how(state) == WatchState("", LIST_AFTER)


def test_a_watch_that_lasted_is_no_failure_however_it_ended():
    before = WatchState("3", failures=2)
    assert watching.ended(before, LASTED_S) == WatchState("3")
    assert watching.refused(before, 410, LASTED_S) == WatchState("", 1)
    assert watching.happened(before, Item("ADDED", "n", "4"), LASTED_S) == WatchState("4")
    assert watching.happened(before, Item("ADDED", "n", "4"), 0.1) == WatchState("4", 2)
    assert watching.listed(before, "5") == WatchState("5", 2), "a list between two broken watches is no recovery"
