"""The record of an attachment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.commands.attach.record import finished, to_json
from criproxy.kubelet.attachment import AttachRecord, SavedFile, from_json, sha256

OURS, THEIRS = b"ours", b"theirs"
BASE = AttachRecord("changing", "kubelet.service", "/l", "unix:///r", "/u", ())


@given(st.lists(st.builds(SavedFile, st.text(), st.none() | st.binary(), st.text())), st.none() | st.just(BASE))
def test_record_comes_back_as_it_went(saved: list[SavedFile], previous: AttachRecord | None) -> None:
    record = AttachRecord("changing", "u", "/l", "e", "o", tuple(saved), "c", "/f", "h", previous)
    assert from_json(to_json(record)) == record


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", to_json(BASE).replace(b'"version": 1', b'"version": 2')])
def test_what_is_no_record_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_json(content)


@pytest.mark.parametrize(
    ("before", "original"),
    [(OURS, THEIRS), (b"changed since", b"changed since"), (None, None)],
    ids=["as-we-left-it", "changed", "gone"],
)
def test_renewal_goes_back_to_what_was_there_first(before: bytes | None, original: bytes | None) -> None:
    first = AttachRecord(
        "attached", "u", "/l", "e", "o", (SavedFile("/a", THEIRS, sha256(OURS)), SavedFile("/b", None, "h"))
    )
    renewed = AttachRecord("changing", "u", "/l", "e", "o", (SavedFile("/a", before, "new"),), previous=first)
    done = finished(renewed)
    assert (done.phase, done.previous) == ("attached", None)
    assert done.saved == (SavedFile("/a", original, "new"), SavedFile("/b", None, "h"))


def test_renewal_that_changed_no_file_keeps_the_record() -> None:
    first = AttachRecord("attached", "u", "/l", "e", "o", (SavedFile("/a", None, "h"),), "c")
    assert finished(AttachRecord("changing", "u", "/l", "e2", "o", (), previous=first)) == first
