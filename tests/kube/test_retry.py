"""When a request is tried again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.kube.retry import MOST_NAMED_S, MOST_S, Meaning, meaning, named_pause_s, pause_s

LUCK = st.floats(0, 1)


@given(st.integers(-1, 10**9), LUCK)
def test_pause_grows_to_its_most_and_is_never_nothing(failures, jitter):
    assert 0.5 <= pause_s(failures, jitter) <= MOST_S
    assert pause_s(failures, jitter) <= pause_s(failures + 1, jitter)


@given(st.integers(1, 100), LUCK, st.floats(-1e9, 1e9))
def test_pause_is_at_least_what_the_server_names_within_reason(failures, jitter, named_s):
    found = pause_s(failures, jitter, named_s)
    assert min(named_s, MOST_NAMED_S) <= found <= max(MOST_S, MOST_NAMED_S * 1.25)


def test_pause_of_nodes_that_failed_together_is_spread_over_half_of_it():
    assert (pause_s(20, 0.0), pause_s(20, 1.0)) == (MOST_S / 2, MOST_S)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (200, Meaning.DONE),
        (201, Meaning.DONE),
        (301, Meaning.REFUSED),
        (400, Meaning.REFUSED),
        (401, Meaning.DENIED),
        (403, Meaning.REFUSED),
        (404, Meaning.REFUSED),
        (409, Meaning.AGAIN),
        (410, Meaning.STALE),
        (422, Meaning.REFUSED),
        (429, Meaning.AGAIN),
        (500, Meaning.AGAIN),
        (501, Meaning.REFUSED),
        (503, Meaning.AGAIN),
    ],
)
def test_meaning(status, expected):
    assert meaning(status) is expected


@pytest.mark.parametrize(
    ("header", "expected"),
    [(None, None), ("", None), (" 5 ", 5.0), ("-1", None), ("1e9", None), ("Fri, 31 Dec 1999 23:59:59 GMT", None)],
)
def test_named_pause(header, expected):
    assert named_pause_s(header) == expected
