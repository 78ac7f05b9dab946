"""How long an operator asks for."""

import pytest

from criproxy.commands.hold_off import parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("45s", 45.0), ("90m", 5400.0), ("2h", 7200.0), ("1d", 86400.0), ("1h30m", 5400.0), ("0.5h", 1800.0)],
)
def test_duration_is_the_sum_of_its_parts(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "h", "2 h", "2w", "-2h", "1e3s", "2h30", "٢h", "9" * 10 + "s"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration: write 2h"):
        parse_seconds(text)
