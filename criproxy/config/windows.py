"""The schedule's settings: time windows as they are written in the config file."""

from datetime import UTC, tzinfo
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from criproxy.control.schedule import DAY_NAMES, Window, WindowMode

_TIME: Final = r"^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$"
_DAY: Final = f"({'|'.join(DAY_NAMES)})"
_DAYS: Final = f"^{_DAY}(-{_DAY})?(,{_DAY}(-{_DAY})?)*$"


class WindowTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A window as it is written. `cores` and `bytes`: its limits when it is static."""

    days: Annotated[str, Meta(pattern=_DAYS)] = "mon-sun"
    start: Annotated[str, Meta(pattern=_TIME)]
    end: Annotated[str, Meta(pattern=_TIME)]
    policy: WindowMode
    cores: Annotated[float, Meta(ge=0.01, le=4096.0)] | None = None
    bytes: Annotated[int, Meta(ge=4 << 20, le=1 << 44)] | None = None

    def __post_init__(self) -> None:
        if self.policy != "static" and (self.cores is not None or self.bytes is not None):
            raise ValueError(f'has limits of its own, which only policy = "static" uses, not "{self.policy}"')
        _ = self.window

    @property
    def window(self) -> Window:
        """Raises ValueError."""
        name = f"{self.days} {self.start}-{self.end}"
        return Window(name, _days(self.days), _minute(self.start), _minute(self.end), self.policy)


class Schedule(Struct, frozen=True, kw_only=True):
    """Time windows, for control.policy = "schedule"."""

    time_zone: Annotated[
        str,
        Meta(
            description="The clock that windows go by, daylight saving included.",
            extra={"expects": 'a name of the time zone database, such as "Europe/Berlin"'},
        ),
    ] = "UTC"
    windows: Annotated[
        tuple[WindowTable, ...],
        Meta(
            max_length=32,
            description="On days (not set: every day) from start to end, or into the next day, policy holds: dynamic, "
            "static (with cores and bytes, or cpu.static_cores and memory.static_bytes) or off. Of windows that "
            "overlap, the first.",
            extra={
                "expects": "a list of at most 32 tables",
                "example": '{ days = "mon-fri", start = "22:00", end = "06:00", policy = "dynamic" }',
            },
        ),
    ] = ()
    outside: Annotated[WindowMode, Meta(description="What holds outside of all windows.")] = "off"
    grace_s: Annotated[
        float,
        Meta(
            ge=0.0,
            le=86400.0,
            description="So long before the schedule turns off, new offline pods are refused already (kubelet tries "
            "again), and as long as it is off.",
        ),
    ] = 300.0
    on_close: Annotated[
        Literal["evict", "squeeze"],
        Meta(
            description="What becomes of running offline pods when the schedule turns off: they are stopped, and start "
            "again when it is on (evict), or stay with cpu.min_cores and what memory can't be reclaimed (squeeze)."
        ),
    ] = "evict"

    @property
    def zone(self) -> tzinfo:
        """Raises KeyError, ValueError or OSError when there is no such zone."""
        if self.time_zone == "UTC":
            return UTC
        from zoneinfo import ZoneInfo

        return ZoneInfo(self.time_zone)


def _days(text: str) -> frozenset[int]:
    days: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        start = DAY_NAMES.index(first)
        count = (DAY_NAMES.index(last or first) - start) % len(DAY_NAMES) + 1
        days.update((start + ahead) % len(DAY_NAMES) for ahead in range(count))
    return frozenset(days)


def _minute(text: str) -> int:
    hours, _, minutes = text.partition(":")
    return int(hours) * 60 + int(minutes)
