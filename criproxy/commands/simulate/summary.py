"""Many scores as one: the mean per family, the mean of the families, and how many nodes hold their alpha."""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from criproxy.commands.simulate.score import Score, mean_score
from criproxy.commands.simulate.trace import Trace

HOLDS: Final = 1.5
"""A node holds its alpha when its own violation is within so many times of it."""


class Group(Struct, frozen=True):
    """Several nodes: the unweighted mean of their scores, and how many of them hold their alpha."""

    score: Score
    nodes: int
    holding: int


class Summary(Struct, frozen=True):
    """`overall.score` is the unweighted mean over families, so that a family of many nodes does not outvote another."""

    overall: Group
    families: dict[str, Group]


def summarise(scored: Iterable[tuple[Trace, Score]], alpha_ratio: float) -> Summary:
    """Raises ValueError without any score."""
    by_family: dict[str, list[Score]] = {}
    for trace, score in scored:
        by_family.setdefault(trace.family, []).append(score)
    families = {
        name: Group(mean_score(scores), len(scores), sum(one.violation_ratio <= HOLDS * alpha_ratio for one in scores))
        for name, scores in by_family.items()
    }
    overall = Group(
        mean_score(group.score for group in families.values()),
        sum(group.nodes for group in families.values()),
        sum(group.holding for group in families.values()),
    )
    return Summary(overall, families)
