"""Times as Kubernetes writes them: RFC 3339, UTC, whole seconds. Pure."""

from datetime import UTC, datetime


def rfc3339(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def wall_s(text: str) -> float:
    """Seconds since 1970. Raises ValueError."""
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()


def interval(begins_s: float, ends_s: float) -> str:
    """FROM/UNTIL, as ISO 8601 writes an interval."""
    return f"{rfc3339(begins_s)}/{rfc3339(ends_s)}"


def interval_s(text: str) -> tuple[float, float]:
    """From when until when, in seconds since 1970. Raises ValueError."""
    begins, _, ends = text.partition("/")
    return wall_s(begins), wall_s(ends)
