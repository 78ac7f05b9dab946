"""A pod's claim in an annotation counts no further than what the scheduler was told of it."""

from collections.abc import Mapping
from typing import Any, cast

import pytest

from criproxy.daemon.register import PARTS
from criproxy.model import Asked, PodRef, Sandbox
from criproxy.pods.runtime import Running
from criproxy.pods.stopping import KnownPod
from criproxy.pods.told_weights import ANSWER_S, GAP_S, ToldWeights
from tests.fakes.bench import PartBench
from tests.fakes.box import FakeBox
from tests.fakes.pods import FakeInventory


def sandbox(uid: str, cpu_shares: int, id: str = "") -> Sandbox:
    containers = {"main": Asked(cpu_shares)} if cpu_shares else {}
    return Sandbox(id or f"s-{uid}", PodRef(uid, "batch", uid), f"/offline/pod{uid}", cpu_shares, containers=containers)


FORGED, HONEST, PLAIN = sandbox("f", 262144), sandbox("h", 2048), sandbox("p", 0)
SPECS = {"f": KnownPod(cpu_shares=1), "h": KnownPod(cpu_shares=2048), "p": KnownPod(cpu_shares=0)}


class Api:
    """Kubernetes, which knows `pods`."""

    def __init__(self, pods: Mapping[str, KnownPod]) -> None:
        self.pods, self.asked = pods, list[float]()

    async def known(self, *, within_s: float) -> Mapping[str, KnownPod]:
        self.asked.append(within_s)
        return self.pods


class Bench(PartBench):
    def __init__(
        self, *placed: Sandbox, pods: Mapping[str, KnownPod] | None = None, held_off: str | None = None
    ) -> None:
        super().__init__(uids=() if held_off is None else (held_off,))
        self.box, self.inventory, self.api = FakeBox("/offline"), FakeInventory(placed), Api(pods or {})
        shared = self.shared(inventory=self.inventory, evicts=self.api)
        self.part = ToldWeights(shared, cast(Any, self.box))

    def listed(self, seconds: float = GAP_S) -> dict[str, int]:
        """The shares of all pods, after a listing and the look that follows."""
        self.clock.advance(seconds)
        self.part.pods_listed()
        self.look(self.part)
        return {one.pod.uid: one.cpu_shares for one in self.inventory.placed}

    @property
    def lowered(self) -> list[Any]:
        return [fields for _, event, fields in self.log.events if event == "pod_weight_lowered"]


def test_daemon_has_the_part() -> None:
    assert ToldWeights in PARTS


def test_forged_claim_counts_as_what_the_spec_requests_and_an_honest_one_as_it_is() -> None:
    bench = Bench(FORGED, HONEST, PLAIN, pods=SPECS)
    assert bench.listed() == {"f": 1, "h": 2048, "p": 0}
    assert bench.box.orders == [("lower shares", {"podf": 1}), ("carry", {"podf"})]
    (said,) = bench.lowered
    assert (said["pod_uid"], said["asked_cores"], said["told_cores"]) == ("f", 256.0, 1 / 1024)


def test_each_pod_is_asked_about_once_and_what_was_lowered_is_said_once() -> None:
    bench = Bench(FORGED, HONEST, pods=SPECS)
    for _ in range(3):
        bench.listed()
    assert (bench.api.asked, len(bench.lowered)) == ([ANSWER_S], 1)


def test_node_whose_pods_claim_nothing_asks_nobody() -> None:
    bench = Bench(PLAIN, pods=SPECS)
    bench.listed()
    assert bench.api.asked == []


@pytest.mark.parametrize("pods", [{}, {"f": KnownPod()}], ids=["no-answer", "unreadable"])
def test_pod_that_is_not_known_keeps_its_claim_until_it_is(pods: dict[str, KnownPod]) -> None:
    bench = Bench(FORGED, pods=pods)
    assert bench.listed() == {"f": 262144}
    bench.api.pods = SPECS
    assert bench.part.pause_s is None, "until the next listing, or the next start"
    assert bench.listed(GAP_S - 1) == {"f": 262144}, "the API server is not asked at each start of a pod"
    assert bench.part.pause_s == 1.0
    assert bench.listed(1.0) == {"f": 1}
    assert bench.part.pause_s is None


def test_pod_that_has_ended_is_not_asked_about_as_kubernetes_does_not_tell_of_it() -> None:
    bench = Bench(FORGED, HONEST, pods={"h": SPECS["h"]})
    bench.inventory.ended = {FORGED.id}
    for _ in range(3):
        bench.listed()
    assert len(bench.api.asked) == 1


def test_another_sandbox_of_a_pod_that_is_known_is_lowered_without_asking_again() -> None:
    bench = Bench(FORGED, pods=SPECS)
    bench.listed()
    again = sandbox("f", 262144, "s-again")
    bench.inventory.placed = (again,)

    bench.look(bench.part)
    assert [one.cpu_shares for one in bench.inventory.placed] == [1]
    assert len(bench.api.asked) == 1


def test_start_of_a_pod_that_claims_something_is_looked_at() -> None:
    bench = Bench()
    for one, wakes in ((PLAIN, False), (FORGED, True)):
        bench.part.pod_started(Running(one, one.id, ""))
        assert bench.part.wake.is_set is wakes


def test_container_without_a_request_is_no_claim() -> None:
    """It has the lowest shares, as kubelet gives them, and the spec says nothing of it."""
    two = Sandbox("s", PodRef("u", "batch", "u"), "/offline/podu", 2050, containers={"a": Asked(2048), "b": Asked()})
    bench = Bench(two, pods={"u": KnownPod(cpu_shares=2048)})
    assert bench.listed() == {"u": 2050}


@pytest.mark.parametrize("held_off", ["", "f"], ids=["box", "pod"])
def test_what_an_operator_holds_criproxy_off_stays_as_it_is(held_off: str) -> None:
    bench = Bench(FORGED, pods=SPECS, held_off=held_off)
    assert bench.listed() == {"f": 262144}
    assert bench.box.orders == []


def test_without_kubernetes_a_claim_stays() -> None:
    bench = Bench(FORGED)
    part = ToldWeights(bench.shared(inventory=bench.inventory), cast(Any, bench.box))
    bench.look(part)
    assert [one.cpu_shares for one in bench.inventory.placed] == [262144]


def test_kernel_that_refuses_is_a_failure_and_the_claim_counts_no_more_all_the_same() -> None:
    bench = Bench(FORGED, pods=SPECS)
    bench.box.error = "podf: EBUSY"
    assert bench.listed() == {"f": 1}
    assert bench.part.failure == "podf: EBUSY"
    assert bench.box.orders[0] == ("lower shares", {"podf": 1}), "the turns of the pods' limits carry it"
