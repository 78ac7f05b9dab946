"""A log that is a list."""

from dataclasses import dataclass, field


@dataclass
class FakeLog:
    """Takes structlog's calls; `events` has the level, the event and its fields."""

    events: list = field(default_factory=list)

    def __getattr__(self, level):
        return lambda event, **fields: self.events.append((level, event, fields))

    def names(self) -> list[str]:
        return [event for _, event, _ in self.events]
