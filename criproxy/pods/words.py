"""Times and amounts in words, for people."""

import time


def moment(wall_s: float) -> str:
    """In local time; what no calendar has, as it is."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall_s))
    except (ValueError, OverflowError, OSError):
        return f"{wall_s:g} s after 1970"


def duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = ((days, "d"), (hours, "h"), (minutes, "min"), (rest, "s"))
    return " ".join([f"{count} {unit}" for count, unit in parts if count][:2]) or "0 s"


def megabytes(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e6:.2f} MB/s"
