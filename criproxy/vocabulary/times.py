"""Times as the API has them: RFC 3339, UTC, whole seconds."""

from datetime import UTC, datetime


def rfc3339(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def wall_s(text: str) -> float:
    """Seconds since 1970. Raises ValueError."""
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
