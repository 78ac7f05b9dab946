"""Times and intervals as Kubernetes writes them."""

import pytest

from criproxy.vocabulary.times import interval, interval_s, rfc3339, wall_s


def test_a_time_is_read_as_it_was_written() -> None:
    assert rfc3339(1_700_000_000.9) == "2023-11-14T22:13:20Z"
    assert wall_s("2023-11-14T22:13:20Z") == 1_700_000_000.0


def test_an_interval_is_read_as_it_was_written() -> None:
    text = interval(1_700_000_000.0, 1_700_000_300.0)
    assert text == "2023-11-14T22:13:20Z/2023-11-14T22:18:20Z"
    assert interval_s(text) == (1_700_000_000.0, 1_700_000_300.0)


@pytest.mark.parametrize("text", ["", "/", "2023-11-14T22:13:20Z", "2023-11-14T22:13:20Z/", "a/b", "1/2/3"])
def test_what_is_no_interval_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="time data"):
        interval_s(text)
