"""Amounts as Kubernetes writes them."""

import math

import pytest

from criproxy.model.quantity import parse_quantity


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
        ("9" * 500, math.inf),
    ],
)
def test_quantity_has_the_value_that_kubernetes_gives_it(text: str, value: float) -> None:
    assert parse_quantity(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "-1", "1 Gi", "Gi", "1gi", "1e", "0x1", "1_0", "٣", "nan", "inf", "1K"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no quantity"):
        parse_quantity(text)
