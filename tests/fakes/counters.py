"""The metrics' counters, as the parts see them."""

from dataclasses import dataclass, field


@dataclass
class FakeCounters:
    """Keeps what was counted: name, labels and by how much."""

    status_calls: int = 0
    counted: list[tuple[str, tuple[str, ...], float]] = field(default_factory=list)

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        self.counted.append((name, labels, by))

    def of(self, name: str) -> list[float]:
        """By how much, each time."""
        return [by for counted, _, by in self.counted if counted == name]

    def labelled(self, name: str) -> list[str]:
        """The last label, each time."""
        return [labels[-1] for counted, labels, _ in self.counted if counted == name]
