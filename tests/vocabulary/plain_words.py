"""Plain words of YAML, and what kubectl takes each for (cluster/integration/test_kubectl.py asks it)."""

import math
from typing import Any, Final

MEANINGS: Final[dict[str, Any]] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "on", "On", "ON", "true", "True", "TRUE"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "off", "Off", "OFF", "false", "False", "FALSE"), False),
    **dict.fromkeys(("~", "null", "Null", "NULL"), None),
    **{word: word for word in ("nULL", "tRue", "yES", "oN", "None", "none", "nil")},
    "0": 0, "1": 1, "-1": -1, "+1": 1, "01": 1, "007": 7, "0777": 511, "08": 8, "09": 9,
    "0o7": 7, "0o777": 511, "-0o7": -7, "0o8": "0o8", "0o": "0o",
    "0x1F": 31, "0X1f": 31, "-0x10": -16, "+0x1": 1, "0x_1": 1, "0x": "0x", "0xg": "0xg",
    "0b11": 3, "-0b11": -3, "0b12": "0b12", "0b": "0b",
    "1_000": 1000, "1__0": 10, "1_": 1, "+_1": 1, "_1": "_1",
    "9223372036854775808": 9223372036854775808,
    "123456789012345678901234567890": 1.2345678901234568e29,
    "1.0": 1, "1.": 1, ".5": 0.5, "-.5": -0.5, "+.5": 0.5, "1_0.5": 10.5, "+1.5": 1.5,
    "1e3": 1000, "1E3": 1000, "1e+3": 1000, "1.5e-3": 0.0015, ".5e3": 500, "00e1": 0, "1234e56": 1.234e59,
    "1e": "1e", "1e400": "1e400", "1e3x": "1e3x", ".": ".", "..": "..", "._5": "._5", "+": "+", "++1": "++1",
    "inf": "inf", "nan": "nan", "NaN": "NaN", "Infinity": "Infinity",
    **{word: word for word in ("12:30:00", "190:20:30", "53:53", "1:30", "20:30:40.5", "1:2:3")},
    **{word: word for word in ("2024-01-01", "2024-01-01T00:00:00Z", "2024-1-1", "=", "<<", "1.2.3", "v1.0")},
}  # fmt: skip

NO_JSON: Final = {
    ".inf": math.inf, ".Inf": math.inf, ".INF": math.inf, "+.inf": math.inf, "-.inf": -math.inf, "-.INF": -math.inf,
}  # fmt: skip
"""What kubectl refuses, as JSON has no such number; NaN besides."""
