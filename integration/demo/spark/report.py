"""What came of the demo of Spark, in words. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from integration.demo import DemoError
from integration.demo.cluster.report import at
from integration.lab.spark import Work

COUNTED: Final = "Exit Caused By App"
"""By this, an executor's end counts as a failure of its tasks. Source: Spark, JsonProtocol, ExecutorLostFailure."""


@dataclass(frozen=True)
class Run:
    """One run of the job. `removed`: why executors were, each for the first time; `tasks`: how its tasks ended."""

    answer: Mapping[str, Any]
    removed: Mapping[str, str]
    tasks: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, answer: Mapping[str, Any], removed: Sequence[Mapping[str, Any]], ended: Sequence[Any]) -> "Run":
        """From Spark's events."""
        first = {one["Executor ID"]: " ".join(one["Removed Reason"].split()) for one in reversed(removed)}
        return cls(answer, first, [one["Task End Reason"] for one in ended])

    @property
    def counted(self) -> int:
        """Tasks whose loss counts as a failure."""
        return sum(bool(one.get(COUNTED)) for one in self.tasks)

    @property
    def lost(self) -> int:
        """Tasks that were run in vain."""
        return sum(one["Reason"] not in ("Success", "Resubmitted") for one in self.tasks)

    @property
    def again(self) -> int:
        """Tasks whose output went with their executor, so that they were run again."""
        return sum(one["Reason"] == "Resubmitted" for one in self.tasks)


def check(work: Work, alone: Run, beside: Run) -> None:
    """Raises DemoError when an answer is wrong."""
    for run in (alone, beside):
        if not work.is_answered_by(run.answer) or run.answer["hashes"] != alone.answer["hashes"]:
            raise DemoError(f"The answer is wrong: {run.answer}, where the job alone found {alone.answer}.")


def in_words(
    alone: Run, beside: Run, evicted: Sequence[str], killed: str, latencies: Mapping[str, Sequence[float]]
) -> Iterator[str]:
    """The figures, a line each. `latencies` are online's, in s and in order, by when."""
    first, second = alone.answer["seconds"], beside.answer["seconds"]
    yield f"Both runs have the right answer: {alone.answer['rows']} rows, their sum, and the same hash of all of them."
    yield (
        f"On a node of its own the job took {first:.1f} s, in what online left {second:.1f} s: {second / first:.2f} x. "
        f"Evicted: {len(evicted)} of its executors; killed: {killed}."
    )
    decommissioned = [number for number, why in beside.removed.items() if "decommission" in why]
    yield (
        f"Spark's driver counted {len(decommissioned)} as decommissioned; {beside.lost} tasks were run in vain, "
        f"{beside.again} again as their output was lost, {beside.counted} counted as failures."
    )
    yield f"{'online latency':24} {'requests':>8} {'p50':>8} {'p99':>8}"
    for name, found in latencies.items():
        shown = (f"{1000 * at(found, q):5.0f} ms" if found else f"{'–':>8}" for q in (0.5, 0.99))
        yield f"{name:24} {len(found):8} {' '.join(shown)}"
