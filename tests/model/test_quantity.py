"""Amounts as Kubernetes writes them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.model.quantity import MOST_CHARACTERS, parse_quantity
from tests.cost import LONGEST, assert_cheap


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0.0),
        ("+2", 2.0),
        ("1.5", 1.5),
        (".5", 0.5),
        ("5.", 5.0),
        ("250m", 0.25),
        ("2k", 2000.0),
        ("1Ki", 1024.0),
        ("3Gi", float(3 << 30)),
        ("1e3", 1000.0),
        ("1E3", 1000.0),
        ("1E", 1e18),
        ("9Ei", math.inf),
        ("1e999999", math.inf),
        ("9" * MOST_CHARACTERS, math.inf),
        ("." + "9" * (MOST_CHARACTERS - 1), 1.0),
    ],
)
def test_quantity_has_the_value_that_kubernetes_gives_it(text: str, value: float) -> None:
    assert parse_quantity(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "-1", "1 Gi", "Gi", "1gi", "1e", "0x1", "1_0", "٣", "nan", "inf", "1K"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no quantity"):
        parse_quantity(text)


@given(st.integers(min_value=MOST_CHARACTERS + 1), st.sampled_from(["1", "0", ".", "1.", "1e1"]))
def test_what_is_longer_than_any_quantity_is_refused_by_its_length(length: int, piece: str) -> None:
    length = min(length, LONGEST)
    text = (piece * length)[:length]

    with pytest.raises(ValueError, match=f"has {length} characters"):
        parse_quantity(text)


@pytest.mark.parametrize(
    "text",
    [
        "1" * LONGEST,
        "1" * LONGEST + "x",
        "1" * (LONGEST // 2) + "." + "1" * (LONGEST // 2) + "x",
        "." + "1" * LONGEST + "x",
        "1e" + "1" * LONGEST + "x",
        "1." * (LONGEST // 2),
        " " * LONGEST,
    ],
    ids=["digits", "digits-x", "fraction-x", "point-digits-x", "exponent-x", "points", "blanks"],
)
def test_long_text_costs_next_to_nothing(text: str) -> None:
    assert_cheap(lambda: parse_quantity(text))
