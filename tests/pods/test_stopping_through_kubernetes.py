"""How pods leave: through the API where it can be had, else at the runtime; and whose budget is waited for."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import structlog
from structlog.testing import capture_logs

from criproxy.model import PodRef
from criproxy.pods.runtime import ListedContainer
from criproxy.pods.stopping import EVICT_S, ON_CLOSE, BudgetError, Holds, Leave, PodStopper, RefusedError
from tests.fakes.hold_offs import no_hold_offs

BUDGET, REFUSED, UNREACHABLE = "budget", "refused", None


def pod(name: str) -> PodRef:
    return PodRef(f"uid-{name}", "default", name)


def leave(name: str) -> Leave:
    return Leave(pod(name), "why", ON_CLOSE)


@dataclass
class Node:
    """Runtime, API and clock. `answers` of the API, by pod: seconds, BUDGET, REFUSED or UNREACHABLE."""

    answers: dict[str, float | str | None] = field(default_factory=dict)
    now_s: float = 1000.0
    notices: dict[str, int] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    asked: list[tuple[str, float, int | None]] = field(default_factory=list)

    def boottime_s(self) -> float:
        return self.now_s

    def notice_s(self, sandbox_id: str) -> int:
        return self.notices.get(sandbox_id, 0)

    def containers_of(self, sandbox_id: str) -> tuple[ListedContainer, ...]:
        return ()

    async def stop(self, sandbox_id: str) -> None:
        self.ended.append(sandbox_id)

    def promised_cores(self) -> float | None:
        return None

    def stopped(self, pod: PodRef, why: str) -> None:
        self.told.append(pod.name)

    async def evict(
        self, pod: PodRef, why: str, *, within_s: float, grace_s: int | None = None, still: Callable[[], bool] = bool
    ) -> float | None:
        self.asked.append((pod.name, within_s, grace_s))
        self.now_s += 1.0
        answer = self.answers.get(pod.name, UNREACHABLE)
        if answer == BUDGET:
            raise BudgetError("minAvailable 1")
        if answer == REFUSED:
            raise RefusedError("the node may not")
        assert answer is None or isinstance(answer, float)
        return answer

    def stopper(self, *, kubernetes: bool = True) -> PodStopper:
        holds = Holds(self, no_hold_offs(self), frozenset([ON_CLOSE]))  # type: ignore[arg-type]
        return PodStopper(self, structlog.get_logger(), self, holds, self if kubernetes else None, self)  # type: ignore[arg-type]


def stop(stopper: PodStopper, *names: str, patient: tuple[str, ...] = ()) -> None:
    asyncio.run(stopper.stop_all({name: leave(name) for name in names}, patient))


def test_pod_that_is_evicted_is_not_stopped_and_counts_as_stopped() -> None:
    node = Node({"a": 45.0})
    stopper = node.stopper()
    stop(stopper, "a")
    stop(stopper, "a")
    assert (node.ended, node.asked) == ([], [("a", EVICT_S, None)])
    assert stopper.stopped == {"a"}


def test_evicted_pod_that_is_there_after_its_time_is_stopped() -> None:
    node = Node({"a": 45.0})
    stopper = node.stopper()
    stop(stopper, "a")
    node.now_s += 44.0
    stop(stopper, "a")
    before = list(node.ended)
    node.now_s += 2.0
    stop(stopper, "a")
    assert (before, node.ended, len(node.asked)) == ([], ["a"], 1)


def test_pod_that_leaves_has_one_mark_in_the_day() -> None:
    node = Node({"a": 45.0, "b": REFUSED})
    stopper = node.stopper()
    stop(stopper, "a", "b")
    node.now_s += 46.0
    stop(stopper, "a", "b")
    marks = json.loads(stopper.day.to_json(node.now_s, node.now_s))["marks"]
    assert sorted((mark["kind"], mark["of"].rpartition("/")[2], mark["state"]) for mark in marks) == [
        ("leaving", "a", "evicted"),
        ("leaving", "b", "stopped"),
    ]


@pytest.mark.parametrize(
    ("answer", "kubernetes"),
    [
        pytest.param(UNREACHABLE, True, id="nobody-answers"),
        pytest.param(BUDGET, True, id="budget-of-one-that-must-not-wait"),
        pytest.param(REFUSED, True, id="refused"),
        pytest.param(45.0, False, id="without-kubernetes"),
    ],
)
def test_pod_that_cannot_be_evicted_is_stopped_at_the_runtime(answer: float | str | None, kubernetes: bool) -> None:
    node = Node({"a": answer})
    stop(node.stopper(kubernetes=kubernetes), "a")
    assert (node.ended, node.told) == (["a"], ["a"] if kubernetes else [])


def test_patient_pod_waits_for_its_budget_which_is_logged_once_and_goes_when_it_may() -> None:
    node = Node({"a": BUDGET, "b": 45.0})
    stopper = node.stopper()
    with capture_logs() as logs:
        stop(stopper, "a", "b", patient=("a", "b"))
        stop(stopper, "a", "b", patient=("a", "b"))
    waited = [entry for entry in logs if entry["event"] == "eviction_waits"]
    node.answers["a"] = 45.0
    stop(stopper, "a", "b", patient=("a", "b"))
    assert (node.ended, stopper.stopped) == ([], {"a", "b"})
    assert [(entry["pod"], entry["budget"]) for entry in waited] == [("default/a", "minAvailable 1")]


def test_patient_pod_is_stopped_where_nobody_answers() -> None:
    """A schedule that closes does so without an API server, too."""
    node = Node({"a": UNREACHABLE})
    stop(node.stopper(), "a", patient=("a",))
    assert node.ended == ["a"]


@pytest.mark.parametrize(
    ("answers", "first", "asked"),
    [
        pytest.param({"a": 16.0, "b": 16.0}, (0, True), "a", id="first-may-go"),
        pytest.param({"a": BUDGET, "b": 16.0}, (1, True), "ab", id="next-where-the-budget-holds-the-first"),
        pytest.param({"a": REFUSED, "b": 16.0}, (1, True), "ab", id="next-where-the-first-is-refused"),
        pytest.param({"a": BUDGET, "b": REFUSED, "c": 16.0}, (2, True), "abc", id="next-where-the-second-is-refused"),
        pytest.param({"a": BUDGET, "b": BUDGET, "c": BUDGET}, None, "abc", id="all-are-held"),
        pytest.param({"a": BUDGET, "b": REFUSED, "c": REFUSED}, (1, False), "abc", id="all-are-held-or-refused"),
        pytest.param({"a": UNREACHABLE, "b": 16.0}, (0, False), "a", id="nobody-answers-so-nobody-else-is-asked"),
        pytest.param({"a": BUDGET, "b": UNREACHABLE, "c": 16.0}, (1, False), "ab", id="nobody-answers-for-the-second"),
    ],
)
def test_first_victim_that_may_go_is_evicted(
    answers: dict[str, float | str | None], first: tuple[int, bool] | None, asked: str
) -> None:
    node = Node(answers)
    victims = [(name, leave(name)) for name in "abc"]
    assert asyncio.run(node.stopper().evict_first(victims, within_s=3.0, grace_s=1)) == first
    assert [name for name, _, _ in node.asked] == list(asked)
    assert node.asked[0][1:] == (3.0, 1)
    assert node.ended == []


def test_time_for_an_eviction_is_for_all_victims_together() -> None:
    node = Node(dict.fromkeys("abcde", BUDGET))
    victims = [(name, leave(name)) for name in "abcde"]
    asyncio.run(node.stopper().evict_first(victims, within_s=3.0, grace_s=1))
    assert [within_s for _, within_s, _ in node.asked] == [3.0, 2.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("answer", "said"), [(45.0, []), (UNREACHABLE, ["notice"]), (BUDGET, ["notice"])], ids=["evicted", "away", "budget"]
)
def test_notice_is_given_only_where_the_runtime_is_to_stop_the_pod(answer: float | str | None, said: list[str]) -> None:
    node = Node({"a": answer}, notices={"a": 30})

    async def test() -> None:
        stopper = node.stopper()
        await stopper.stop_all({"a": leave("a")})
        await stopper.stop_all({"a": leave("a")})

    with capture_logs() as logs:
        asyncio.run(test())
    assert ([entry["event"] for entry in logs][:1], len(node.asked)) == (said, 1)


def test_evicted_pod_that_is_there_after_its_time_has_no_notice_on_top() -> None:
    node = Node({"a": 45.0}, notices={"a": 30})
    stopper = node.stopper()
    stop(stopper, "a")
    node.now_s += 60.0
    stop(stopper, "a")
    assert node.ended == ["a"]
