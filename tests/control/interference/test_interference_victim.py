"""Which pod goes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from criproxy.control.interference.victim import Candidate, candidate, choose, rank
from criproxy.model import Pod, PodRef
from criproxy.vocabulary.names import EVICTION_ENABLED, EVICTION_PRIORITY, KOORDINATOR_PRIORITY, PRIORITY


def one(name, use=100.0, started_s=0.0, **values):
    return Candidate(PodRef(name, "batch", name), (f"job-{name}", f"uid-{name}"), use, started_s, **values)


@pytest.mark.parametrize(
    ("candidates", "name", "why"),
    [
        pytest.param([one("a"), one("b", priority=-1)], "b", "priority -1 is the lowest", id="lowest priority"),
        pytest.param([one("a", 50.0, priority=-1), one("b", 500.0)], "a", "priority", id="priority before relief"),
        pytest.param([one("a", priority=-1), one("b", eviction_priority=-5, priority=9)], "b", "eviction priority -5",
                     id="eviction priority before priority"),
        pytest.param([one("a", mid=True), one("b", priority=5500)], "a", "priority 0 is the lowest",
                     id="an author's tier does not lift a pod above its priority"),
        pytest.param([one("a", mid=True, eviction_priority=-1), one("b")], "a", "eviction priority -1",
                     id="nor above what its author has lowered it to"),
        pytest.param([one("a", 900.0, mid=True), one("b", 5.0)], "b", "the others are of the higher tier",
                     id="of one priority the lower tier"),
        pytest.param([one("a", 100.0), one("b", 300.0)], "b", "gives back most", id="most relief"),
        pytest.param([one("a", 900.0, fair_share=850.0), one("b", 300.0)], "b", "gives back most",
                     id="relief is what is above the fair share"),
        pytest.param([one("a", started_s=5.0), one("b", started_s=9.0)], "b", "youngest", id="youngest"),
        pytest.param([one("a"), one("b", 500.0, evictable=False)], "a", "only pod", id="protected"),
        pytest.param([one("a"), one("b", 0.0, priority=-9)], "a", "only pod", id="uses nothing of it"),
    ],
)  # fmt: skip
def test_victim_is_chosen_by_rank(candidates, name, why):
    for order in (candidates, candidates[::-1]):
        victim = choose(order)
        assert victim.candidate.pod.name == name
        assert why in victim.reason


def test_pod_of_a_barred_owner_stays():
    pods = [one("a"), one("b", 500.0)]
    for name in ("job-b", "uid-b"):
        assert choose(pods, frozenset({name})).candidate.pod.name == "a"
    assert choose(pods, frozenset({"job-a", "job-b"})) is None


def test_pods_without_an_owner_are_never_barred():
    assert choose([replace(one("a"), owners=())], frozenset({""})) is not None


def test_nobody_goes_out_of_nobody():
    assert choose([]) is None


@pytest.mark.parametrize(
    ("labels", "annotations", "kubernetes", "expected"),
    [
        pytest.param({}, {}, None, (True, 0, 0), id="no marks"),
        pytest.param({EVICTION_ENABLED: "true"}, {}, None, (True, 0, 0), id="may be evicted"),
        pytest.param({EVICTION_ENABLED: "false"}, {}, None, (False, 0, 0), id="must not, by label"),
        pytest.param({}, {EVICTION_ENABLED: "false"}, None, (False, 0, 0), id="must not, by annotation"),
        pytest.param({EVICTION_ENABLED: "ture"}, {}, None, (False, 0, 0), id="a mark that can't be read forbids"),
        pytest.param({}, {EVICTION_PRIORITY: "-7"}, None, (True, -7, 0), id="eviction priority"),
        pytest.param({}, {EVICTION_PRIORITY: "low"}, None, (True, 0, 0), id="eviction priority that is no number"),
        pytest.param({}, {EVICTION_PRIORITY: "2147483648"}, None, (True, 0, 0), id="of more than 32 bits"),
        pytest.param({}, {EVICTION_PRIORITY: "1_0"}, None, (True, 0, 0), id="not as Python writes numbers"),
        pytest.param({}, {EVICTION_PRIORITY: "\u0664"}, None, (True, 0, 0), id="digits of other scripts"),
        pytest.param({KOORDINATOR_PRIORITY: "3"}, {}, None, (True, 0, 0), id="Koordinator's label can't raise it"),
        pytest.param({KOORDINATOR_PRIORITY: "-3"}, {}, None, (True, 0, -3), id="Koordinator's label can lower it"),
        pytest.param({KOORDINATOR_PRIORITY: "3"}, {}, 5500, (True, 0, 3), id="it can lower Kubernetes'"),
        pytest.param({}, {}, 5500, (True, 0, 5500), id="Kubernetes' alone"),
        pytest.param({}, {EVICTION_PRIORITY: "7"}, None, (True, 0, 0), id="eviction priority can't raise it"),
        pytest.param({KOORDINATOR_PRIORITY: "3"}, {PRIORITY: "+12"}, 5500, (True, 0, 12), id="the pod's own first"),
        pytest.param({}, {PRIORITY: ""}, 5500, (True, 0, 5500), id="an empty one is none"),
    ],
)
def test_marks_of_a_pod(labels, annotations, kubernetes, expected):
    pod = Pod(PodRef("u", "batch", "p"), labels, annotations)
    found = candidate(pod, ("job",), 1.0, 0.0, kubernetes_priority=kubernetes)
    assert (found.evictable, found.eviction_priority, found.priority) == expected


texts = st.text(max_size=12) | st.integers().map(str)


@given(texts, texts, texts)
def test_any_marks_are_understood(first, second, third):
    pod = Pod(PodRef("u", "n", "p"), {KOORDINATOR_PRIORITY: first}, {PRIORITY: second, EVICTION_PRIORITY: third})
    found = candidate(pod, ("job",), 1.0, 0.0)
    assert min(found.eviction_priority, found.priority) >= -(2**31)
    assert max(found.eviction_priority, found.priority) < 2**31


pods = st.lists(
    st.builds(
        one,
        st.uuids().map(str),
        st.sampled_from([0.0, 1.0, 5.0]),
        st.sampled_from([0.0, 9.0]),
        fair_share=st.sampled_from([0.0, 3.0]),
        evictable=st.booleans(),
        eviction_priority=st.integers(-1, 1),
        priority=st.integers(-1, 1),
    ),
    max_size=8,
)


@given(pods, st.randoms())
def test_choice_does_not_depend_on_the_order_and_nobody_that_may_go_ranks_before_it(pods, random):
    mixed = random.sample(pods, len(pods))
    victim, may_go = choose(pods), [each for each in pods if each.evictable and each.use > 0.0]
    assert choose(mixed) == victim
    assert (victim is None) is (not may_go)
    if victim is not None:
        assert rank(victim.candidate) == min(map(rank, may_go))
