"""The most that an offline pod gets of the network: what the node allows, or less where the pod asks for less."""

import pytest
from msgspec.structs import replace

from criproxy.hooks.bandwidth import EGRESS, INGRESS, Bandwidth, BandwidthHook
from criproxy.model import Operation, Pod, PodRef, PodRequest, Resources, Target

START = PodRequest(Operation.RUN_POD_SANDBOX, Target.SANDBOX, "/offline/pod1", Resources())
BOTH = Bandwidth(egress=10_000_000, ingress=20_000_000)


def given(most: Bandwidth, call: PodRequest = START) -> dict[str, object]:
    found = list(BandwidthHook(most).adjust(call))
    assert {one.field for one in found} <= {"annotations"}
    return {one.key: one.value for one in found}


@pytest.mark.parametrize(
    ("bandwidth", "expected"),
    [
        pytest.param(Bandwidth(), {}, id="off"),
        pytest.param(BOTH, {EGRESS: "10000000", INGRESS: "20000000"}, id="both"),
        pytest.param(Bandwidth(egress=1000), {EGRESS: "1000"}, id="egress-alone"),
        pytest.param(Bandwidth(ingress=1000), {INGRESS: "1000"}, id="ingress-alone"),
    ],
)
def test_pod_that_asks_for_nothing_gets_what_the_node_allows(bandwidth: Bandwidth, expected: dict[str, str]) -> None:
    assert given(bandwidth) == expected


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("1M", None),
        ("10M", None),
        ("10000000", None),
        ("1e6", None),
        ("8Mi", None),
        ("11M", "10000000"),
        ("10Mi", "10000000"),
        ("1P", "10000000"),
        ("1e999", "10000000"),
        ("", "10000000"),
        ("fast", "10000000"),
        ("-5M", "10000000"),
        ("10Mbit", "10000000"),
    ],
)
def test_less_that_a_pod_asks_for_stays_and_more_or_nonsense_does_not(asked: str, expected: str | None) -> None:
    found = given(
        Bandwidth(egress=10_000_000),
        replace(START, pod=Pod(PodRef("1", "batch", "job"), annotations={EGRESS: asked, INGRESS: "9P"})),
    )

    assert found.get(EGRESS) == expected
    assert INGRESS not in found, "nothing was said of that direction"


@pytest.mark.parametrize("operation", list(Operation))
def test_only_a_pod_that_starts_is_given_annotations(operation: Operation) -> None:
    starts = operation in (Operation.RUN_POD_SANDBOX, Operation.RESTORE_POD)
    assert bool(given(BOTH, replace(START, operation=operation))) is starts
    assert given(BOTH, replace(START, operation=operation, target=Target.CONTAINER)) == {}
