"""How much notice a pod asks for; nonsense is none, and nobody gets more than a minute."""

import pytest

from criproxy.hooks.notice import notice_asked_s
from criproxy.vocabulary.names import NOTICE_SECONDS


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("30", 30), ("0", 0), ("60", 60), ("61", 60), ("999999999", 60)),
        *(("", 0), ("-5", 0), ("1.5", 0), ("30s", 0), ("٣", 0), ("30\n", 0), ("9" * 5000, 0)),
    ],
)
def test_notice_is_a_number_of_seconds_and_at_most_a_minute(text: str, seconds: int) -> None:
    assert notice_asked_s({NOTICE_SECONDS: text}) == seconds


def test_pod_without_the_annotation_asks_for_none() -> None:
    assert notice_asked_s({}) == 0
