"""Which rounds of the proxy's benchmark count, and what is made of them; nothing here is measured."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import proxy
from benchmarks.proxy import Case, Round, measure

CASE = Case("a call", (), 1)


class Bench:
    """Sides that take no time, and others who take these parts of all CPUs in the rounds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, others: list[float]) -> None:
        self.others = iter(others)
        self.sides: Any = [SimpleNamespace(name=name, pid=name != "direct", run=lambda _: (1.0, 1.0)) for name in "ab"]
        monkeypatch.setattr(proxy, "_round", lambda *_: Round({}, next(self.others)))

    def measure(self) -> tuple[list[float], int]:
        rounds, void = measure(CASE, self.sides, None)  # type: ignore[arg-type]
        return [one.others_ratio for one in rounds], void


def test_disturbed_rounds_are_void_and_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, [0.5, *[0.01] * 5, 0.06, *[0.02] * 5])
    assert bench.measure() == ([0.01] * 5 + [0.02] * 5, 2)


def test_least_disturbed_rounds_count_where_all_are_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, list(itertools.chain([0.9] * 5, [0.2] * 10)))
    assert bench.measure() == ([0.2] * 10, 5)


@pytest.mark.parametrize(("worst", "shown"), [(0.04, "4.0"), (0.2, "20.0!")])
def test_figure_is_of_medians_and_says_what_disturbed_it(worst: float, shown: str) -> None:
    rounds = [
        Round({"direct": (1e-4, 0.0), "go": (3e-4, 2e-4), "relay": (2e-4 + number * 1e-6, 1e-4)}, worst)
        for number in range(10)
    ]
    figure = proxy._figure(CASE, "relay", rounds, 3)
    assert (figure.direct_us, figure.added_us, figure.added_low_us, figure.added_high_us) == pytest.approx(
        (100.0, 104.5, 101.0, 108.0)
    )
    assert (figure.cpu_us, figure.cpu_to_go) == pytest.approx((100.0, 0.5))
    assert (figure.rounds, figure.void, figure.others_percent) == (10, 3, shown)
