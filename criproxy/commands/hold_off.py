"""How long an operator asks criproxy to leave its hands off: `2h`, `90m`, `1h30m`."""

import re
from typing import Final

_UNITS_S: Final = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_TERM: Final = r"\d{1,9}(?:\.\d{1,9})?"
_DURATION: Final = re.compile(rf"(?:{_TERM}[dhms])+", re.ASCII)
_PART: Final = re.compile(rf"({_TERM})([dhms])", re.ASCII)


def parse_seconds(text: str) -> float:
    """A sum of days, hours, minutes and seconds, in s. Raises ValueError."""
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is no duration: write 2h, 90m, 45s, 1d or 1h30m")
    return sum(float(amount) * _UNITS_S[unit] for amount, unit in _PART.findall(text))
