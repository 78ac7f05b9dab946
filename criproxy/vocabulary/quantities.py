"""Amounts as Kubernetes writes them. Pure. Source: apimachinery, api/resource, Quantity."""

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Final

_FORM: Final = re.compile(r"([+-]?)([0-9]{1,25}(?:\.[0-9]{0,25})?|\.[0-9]{1,25})([eE][+-]?[0-9]{1,2}|[a-zA-Z]{0,2})")
_FACTORS: Final[Mapping[str, Fraction]] = {
    "": Fraction(1),
    **{suffix: Fraction(1000) ** power for power, suffix in enumerate(("n", "u", "m"), -3)},
    **{suffix: Fraction(1000) ** power for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{suffix: Fraction(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}

_REMEMBERED: Final = 1024
"""A cluster's pods and nodes write the same few quantities again and again."""


def amount(quantity: str | float) -> Fraction:
    """The value of a quantity, which may be a bare number. Raises ValueError."""
    if isinstance(quantity, bool):
        raise ValueError(f"{str(quantity)!r} is no quantity")
    return _amount(str(quantity))


@lru_cache(_REMEMBERED)
def _amount(text: str) -> Fraction:
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is no quantity")
    sign, digits, suffix = match.groups()
    if suffix in _FACTORS:
        factor = _FACTORS[suffix]
    elif suffix[0] in "eE" and suffix[1:].lstrip("+-").isdigit():
        factor = Fraction(10) ** int(suffix[1:])
    else:
        raise ValueError(f"{text[:40]!r} is no quantity")
    value = Fraction(f"0{digits.rstrip('.')}") * factor
    return -value if sign == "-" else value


def rounded_up(value: Fraction) -> int:
    """As Kubernetes rounds what can't be divided further."""
    return -(-value.numerator // value.denominator)
