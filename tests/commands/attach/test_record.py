"""The record of an attachment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.commands.attach.plan import finished
from criproxy.kubelet.attachment import AttachRecord, SavedFile, from_json, to_json

BASE = AttachRecord("changing", "/l", "unix:///r", ())


@given(st.lists(st.builds(SavedFile, st.text(), st.none() | st.binary(), st.text())), st.none() | st.just(BASE))
def test_record_comes_back_as_it_went(saved: list[SavedFile], previous: AttachRecord | None) -> None:
    record = AttachRecord("changing", "/l", "e", tuple(saved), "c", "/f", previous)
    assert from_json(to_json(record)) == record


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", to_json(BASE).replace(b'"version": 1', b'"version": 2')])
def test_what_is_no_record_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_json(content)


def test_renewal_remembers_what_was_changed_elsewhere_before() -> None:
    first = AttachRecord("attached", "/l", "e", (SavedFile("/a", None, "h1"), SavedFile("/b", None, "h2")))
    done = finished(AttachRecord("changing", "/l", "e", (SavedFile("/a", b"x", "h3"),), previous=first))
    assert (done.phase, done.previous) == ("attached", None)
    assert done.saved == (SavedFile("/a", b"x", "h3"), SavedFile("/b", None, "h2"))


def test_renewal_that_changed_no_file_keeps_the_record() -> None:
    first = AttachRecord("attached", "/l", "e", (SavedFile("/a", None, "h"),), "c")
    assert finished(AttachRecord("changing", "/l", "e2", (), previous=first)) == first
