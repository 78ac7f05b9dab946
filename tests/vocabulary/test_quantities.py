"""Amounts as Kubernetes writes them."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.vocabulary.quantities import MOST, MOST_CHARACTERS, amount, parse_quantity, rounded_up
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


@pytest.mark.parametrize(
    ("quantity", "value"),
    [
        ("0", 0),
        ("-3", -3),
        ("-1.5Ki", -1536),
        (0, 0),
        (2.5, Fraction(5, 2)),
        ("0.5", Fraction(1, 2)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("0.1", Fraction(1, 10)),
        ("200m", Fraction(1, 5)),
        ("4k", 4000),
        ("1M", 10**6),
        ("8Gi", 8 * 2**30),
        ("12e6", 12 * 10**6),
        ("15e-1", Fraction(3, 2)),
        ("2n", Fraction(2, 10**9)),
        ("7E", 7 * 10**18),
        ("8Ei", MOST),
        ("1" * 40, MOST),
        ("-1e999", -MOST),
        ("0e999999", 0),
    ],
)
def test_an_amount_is_exact_and_no_more_than_kubernetes_keeps(quantity: str | float, value: Fraction) -> None:
    assert amount(quantity) == value


@given(st.text(max_size=MOST_CHARACTERS + 2))
def test_any_text_is_an_amount_that_kubernetes_takes_or_an_error(text: str) -> None:
    try:
        found = amount(text)
    except ValueError:
        return
    assert amount(str(rounded_up(found))) == rounded_up(found) >= found


@pytest.mark.parametrize("value", [True, "x", "1ee3", "--1", "1e-", ".", "+", "१", "True", "None", "1K"])
def test_what_is_no_amount_is_refused(value: str | float) -> None:
    with pytest.raises(ValueError, match="is no quantity"):
        amount(value)


def test_null_is_said_to_be_empty() -> None:
    with pytest.raises(ValueError, match="the value is empty"):
        amount(None)


@pytest.mark.parametrize("text", ["", "-1", "1 Gi", "Gi", "1gi", "1e", "0x1", "1_0", "٣", "nan", "inf", "1K"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no quantity"):
        parse_quantity(text)


@given(st.integers(min_value=MOST_CHARACTERS + 1), st.sampled_from(["1", ".", "1.", "1e1"]))
def test_what_is_longer_than_any_quantity_is_refused_by_its_length(length: int, piece: str) -> None:
    length = min(length, LONGEST)
    text = (piece * length)[:length]

    with pytest.raises(ValueError, match=f"has {length} characters"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("text", "value"), [("1500", 1500), ("+1.5k", 1500), ("0", 0), (".5", Fraction(1, 2)), ("-2", -2)]
)
def test_leading_zeros_of_any_number_count_for_nothing_as_the_api_server_keeps_them(text: str, value: Fraction) -> None:
    sign = text[0] if text[0] in "+-" else ""
    assert amount(f"{sign}{'0' * 1000}{text.removeprefix(sign)}") == value


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
