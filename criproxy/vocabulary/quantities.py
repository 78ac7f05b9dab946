"""Amounts as Kubernetes writes them: `1500m`, `2`, `100Mi`, `1e3`. Pure. Source: apimachinery, resource.Quantity."""

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Final

MOST_CHARACTERS: Final = 64
"""Of a quantity without leading zeros, of it or its exponent, all of which Kubernetes keeps. Of digits it keeps some
19: a longer text is a mistake, or hostile.
"""

MOST: Final = Fraction(2**63 - 1)
"""Kubernetes makes this of all that is more."""

_FORM: Final = re.compile(r"([+-]?)(\d+(?:\.\d*)?|\.\d+)(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?\d+))?", re.ASCII)
_LEADING_ZEROS: Final = re.compile(r"([eE]?[+-]?)0+(?=\d)", re.ASCII)
"""Of the number or of its exponent; the group is what comes before them."""
_FACTORS: Final[Mapping[str, tuple[int, int]]] = {
    "": (1, 1),
    **{suffix: (1, 1000**power) for power, suffix in enumerate("mun", 1)},
    **{suffix: (1000**power, 1) for power, suffix in enumerate("kMGTPE", 1)},
    **{f"{suffix}i": (1024**power, 1) for power, suffix in enumerate("KMGTPE", 1)},
}
"""By which a suffix multiplies and divides."""
_MOST_EXPONENT: Final = 99
"""Beyond it, whatever the digits are, a value is above `MOST` or next to nothing."""

_REMEMBERED: Final = 1024
"""Pods and nodes write the same few quantities again and again."""


def amount(quantity: str | float | None) -> Fraction:
    """The exact value of a quantity, which may be a bare number; of more than `MOST`, that. Raises ValueError.

    None is YAML's null.
    """
    if quantity is None:
        raise ValueError("the value is empty")
    if isinstance(quantity, bool):
        raise ValueError(f"{str(quantity)!r} is no quantity")
    text = str(quantity)
    if len(text) > MOST_CHARACTERS:
        text = _without_leading_zeros(text)
    if len(text) > MOST_CHARACTERS:
        raise ValueError(
            f"{text[:40]!r} and so on has {len(text)} characters, and a quantity at most {MOST_CHARACTERS}"
        )
    return _amount(text)


def _without_leading_zeros(text: str) -> str:
    """Of the number and of its exponent."""
    exponent_at = min((at for at in (text.find("e"), text.find("E")) if at >= 0), default=len(text))
    return _shortened(text[:exponent_at]) + _shortened(text[exponent_at:])


def _shortened(part: str) -> str:
    zeros = _LEADING_ZEROS.match(part)
    return part if zeros is None else zeros[1] + part[zeros.end() :]


@lru_cache(_REMEMBERED)
def _amount(text: str) -> Fraction:
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is no quantity")
    sign, digits, suffix, exponent = match.groups()
    whole, _, part = digits.partition(".")
    if exponent:
        if not -(2**63) <= int(exponent) < 2**63:
            raise ValueError(f"{text[:40]!r} is no quantity")
        power = (int(exponent) + 2**31) % 2**32 - 2**31  # Kubernetes keeps 32 bits of it: 1e4294967299 is 1000
        power = max(-_MOST_EXPONENT, min(power, _MOST_EXPONENT))
        above, below = 10 ** max(power, 0), 10 ** max(-power, 0)
    else:
        above, below = _FACTORS[suffix or ""]
    value = min(Fraction(int(whole + part) * above, 10 ** len(part) * below), MOST)
    return -value if sign == "-" else value


def parse_quantity(text: str) -> float:
    """The value of one that may not be negative, as a float; inf is more than any node has. Raises ValueError."""
    value = amount(text)
    if value < 0:
        raise ValueError(f"{text[:40]!r} is no quantity that is not negative")
    return float(value) if value < MOST else math.inf


def rounded_up(value: Fraction) -> int:
    """As Kubernetes rounds what can't be divided further."""
    return -(-value.numerator // value.denominator)
