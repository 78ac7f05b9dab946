"""On which CPUs pods stay, and when one moves."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from criproxy.control.cpu_pins import FIRST_PAUSE_S, MOST_PAUSE_S, Pin, PodCpu, step
from criproxy.model.cpulist import Cpus

LOOK_S = 3.0
LOOKS = 600
CRUMBS = 20
WASTE = 0.2
IDLE = dict.fromkeys(range(64), 1.0)
FULL = dict.fromkeys(range(64), 0.0)
TWO_CORES = (frozenset({0, 1}), frozenset({2, 3}))
EIGHT_CORES = tuple(frozenset({cpu, cpu + 8}) for cpu in range(8))
TWO_NODES = (frozenset({*range(4), *range(8, 12)}), frozenset({*range(4, 8), *range(12, 16)}))
FOUR_NODES = tuple(frozenset(range(first, first + 4)) for first in range(0, 16, 4))


def cpus(number: int) -> Cpus:
    return frozenset(range(number))


def placed(
    limits: Mapping[str, float],
    number: int,
    idle: Mapping[int, float] = IDLE,
    *,
    cores: Sequence[Cpus] = (),
    nodes: Sequence[Cpus] = (),
) -> dict[str, Pin]:
    pods = {name: PodCpu(limit) for name, limit in limits.items()}
    return step(pods, cpus(number), idle, {}, 0.0, cores=cores, nodes=nodes)


def on(pins: Mapping[str, Pin]) -> dict[str, set[int]]:
    return {name: set(pin.cpus) for name, pin in pins.items()}


# --- where a pod begins -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "size"), [(0.1, 1), (1.0, 1), (1.0000000001, 1), (1.2, 2), (2.0, 2), (3.5, None), (4.0, None), (9, None)]
)
def test_pod_stays_on_as_many_cpus_as_its_limit_and_has_all_when_that_is_not_less(limit: float, size: int) -> None:
    pins = placed({"a": limit}, 4)

    assert (len(pins["a"].cpus) if pins else None) == size


def test_pods_are_spread_evenly() -> None:
    pins = placed({"a": 1, "b": 1, "c": 1, "d": 1, "e": 2}, 3)

    assert sorted(sum(cpu in pin.cpus for pin in pins.values()) for cpu in range(3)) == [2, 2, 2]


def test_half_a_cpu_counts_half() -> None:
    pins = placed({"a": 1, "b": 0.5, "c": 0.5}, 2)

    assert on(pins)["b"] == on(pins)["c"] != on(pins)["a"]


def test_new_pod_gets_the_most_idle_of_the_cpus_that_nobody_stays_on() -> None:
    assert on(placed({"a": 1}, 4, {0: 0.2, 1: 0.9, 2: 0.5, 3: 0.1})) == {"a": {1}}


def test_no_pod_moves_as_another_comes_or_goes() -> None:
    first = placed({"a": 1, "b": 1}, 3)

    both = step({name: PodCpu(1) for name in "abc"}, cpus(3), IDLE, first, 1.0)
    one = step({"b": PodCpu(1)}, cpus(3), IDLE, both, 2.0)

    assert on(both) == {**on(first), "c": cpus(3) - on(first)["a"] - on(first)["b"]}
    assert one == {"b": first["b"]}


@pytest.mark.parametrize("left", [frozenset({1, 2, 3}), frozenset({5, 6})], ids=["one has gone", "all have gone"])
def test_pod_whose_cpu_the_box_has_lost_begins_anew_on_one_that_it_has(left: Cpus) -> None:
    pins = {"a": Pin(frozenset({0}), 0.0, pause_s=MOST_PAUSE_S)}

    new = step({"a": PodCpu(1)}, left, IDLE, pins, 1.0)["a"]

    assert new.cpus <= left
    assert new.pause_s == FIRST_PAUSE_S


def test_pod_that_was_resized_begins_anew() -> None:
    pins = step({"a": PodCpu(2)}, cpus(4), IDLE, placed({"a": 1}, 4), 1.0)

    assert len(pins["a"].cpus) == 2
    assert step({"a": PodCpu(4)}, cpus(4), IDLE, pins, 2.0) == {}


# --- when it moves ----------------------------------------------------------------------------------------------------


def moved(used: float, idle: Mapping[int, float], *, at_s: float = FIRST_PAUSE_S, limit: float = 1.0) -> set[int]:
    """Where a pod is that has been on CPU 0 of two."""
    pins = {"a": Pin(frozenset({0}), 0.0)}
    return on(step({"a": PodCpu(limit, used)}, cpus(2), idle, pins, at_s))["a"]


def test_pod_that_waits_moves_to_the_cpu_that_is_idle() -> None:
    assert moved(0.4, {0: 0.0, 1: 0.8}) == {1}


@pytest.mark.parametrize(
    ("used", "idle", "at_s", "limit"),
    [
        (0.95, {0: 0.0, 1: 1.0}, FIRST_PAUSE_S, 1.0),
        (0.47, {0: 0.0, 1: 1.0}, FIRST_PAUSE_S, 0.5),
        (0.4, {0: 0.2, 1: 1.0}, FIRST_PAUSE_S, 1.0),
        (0.4, {0: 0.0, 1: 0.1}, FIRST_PAUSE_S, 1.0),
        (0.4, {0: 0.0, 1: 1.0}, FIRST_PAUSE_S - 0.1, 1.0),
    ],
    ids=["it has its limit", "a small one", "its own CPU has room", "little is to be gained", "it came a moment ago"],
)
def test_pod_stays(used: float, idle: Mapping[int, float], at_s: float, limit: float) -> None:
    assert moved(used, idle, at_s=at_s, limit=limit) == {0}


def test_pod_that_starves_joins_another_where_no_cpu_is_idle() -> None:
    pins = {"a": Pin(frozenset({0}), 0.0), "b": Pin(frozenset({1}), 0.0)}
    pods = {"a": PodCpu(1, 0.01), "b": PodCpu(1, 0.85)}

    assert on(step(pods, cpus(2), FULL, pins, 20.0)) == {"a": {1}, "b": {1}}


def test_of_three_that_crowd_one_cpu_not_all_move_to_the_other() -> None:
    pins = {name: Pin(frozenset({0}), 0.0) for name in "abc"}
    pods = {name: PodCpu(1, 0.33) for name in "abc"}

    places = on(step(pods, cpus(2), {0: 0.0, 1: 1.0}, pins, 20.0)).values()

    assert sorted(len([one for one in places if cpu in one]) for cpu in range(2)) == [1, 2]


def test_pod_that_gains_nothing_by_moving_waits_twice_as_long_each_time() -> None:
    pods, pins = {"a": PodCpu(1, 0.0)}, placed({"a": 1}, 2)
    moves_s = []
    for second in range(4000):
        idle = {cpu: float(cpu not in pins["a"].cpus) for cpu in range(2)}
        new = step(pods, cpus(2), idle, pins, float(second))
        if new != pins:
            moves_s.append(second)
        pins = new

    pauses = [after - before for before, after in pairwise(moves_s)]
    assert pauses[:6] == [10, 20, 40, 80, 160, 320]
    assert set(pauses[6:]) == {600}


def test_pod_gets_one_more_cpu_where_none_alone_is_what_it_could_have() -> None:
    assert moved(0.5, {0: 0.0, 1: 0.5}) == {0, 1}


def test_pod_with_one_more_goes_back_to_as_many_as_its_limit_once_others_fill_that() -> None:
    pins = {"a": Pin(frozenset({0, 1}), 0.0), "b": Pin(frozenset({1}), 0.0)}

    def after(idle: Mapping[int, float], other_cores: float) -> set[int]:
        pods = {"a": PodCpu(1, 0.7), "b": PodCpu(1, other_cores)}
        return on(step(pods, cpus(3), idle, pins, FIRST_PAUSE_S))["a"]

    assert after({0: 0.0, 1: 0.02, 2: 0.0}, 0.5) == {0}
    assert after({0: 0.0, 1: 0.05, 2: 0.0}, 0.5) == {0, 1}
    assert after({0: 0.0, 1: 0.02, 2: 0.0}, 0.0) == {0, 1}


def test_pod_that_gained_by_moving_may_move_again_soon_however_little_it_has_by_then() -> None:
    pins = {"a": Pin(frozenset({0}), 0.0, pause_s=320.0, before_cores=0.05)}
    for at_s, used in ((100.0, 1.0), (400.0, 0.05)):
        pins = step({"a": PodCpu(1, used)}, cpus(2), {0: 0.0, 1: 1.0}, pins, at_s)

    assert (pins["a"].cpus, pins["a"].pause_s, pins["a"].before_cores) == ({1}, FIRST_PAUSE_S, 0.05)


# --- hyperthreads -----------------------------------------------------------------------------------------------------


def test_pod_of_two_cpus_gets_a_thread_of_each_core() -> None:
    (pin,) = placed({"a": 2}, 4, cores=TWO_CORES).values()

    assert [len(pin.cpus & core) for core in TWO_CORES] == [1, 1]


def test_pods_of_one_cpu_are_spread_over_cores_before_they_share_one() -> None:
    pins = placed({"a": 1, "b": 1}, 4, cores=TWO_CORES)

    assert {core for core in TWO_CORES for pin in pins.values() if pin.cpus <= core} == set(TWO_CORES)


def test_new_pod_keeps_off_the_sibling_of_a_cpu_where_online_is_busy() -> None:
    idle = {0: 0.1, 1: 1.0, 2: 0.9, 3: 0.9}

    assert on(placed({"a": 1}, 4, idle, cores=TWO_CORES))["a"] <= {2, 3}


def test_new_pod_shares_a_core_with_another_pod_rather_than_with_online() -> None:
    first = {"a": Pin(frozenset({3}), 0.0)}
    idle = {0: 0.05, 1: 1.0, 2: 0.95, 3: 0.0}

    pins = step({"a": PodCpu(1, 1.0), "b": PodCpu(1)}, cpus(4), idle, first, 1.0, cores=TWO_CORES)

    assert on(pins) == {"a": {3}, "b": {2}}


def test_new_pod_gets_a_cpu_that_nobody_stays_on_though_online_is_busy_beside_it() -> None:
    first = {name: Pin(frozenset({cpu}), 0.0) for name, cpu in (("a", 2), ("b", 3))}
    pods = {"a": PodCpu(1, 1.0), "b": PodCpu(1, 1.0), "c": PodCpu(1)}

    assert on(step(pods, cpus(4), {0: 0.0, 1: 1.0, 2: 0.0, 3: 0.0}, first, 1.0, cores=TWO_CORES))["c"] == {1}


def test_pod_that_waits_moves_to_the_core_that_is_idle() -> None:
    """CPU 5 is a little more idle than CPU 2, but online is busy on the other thread of its core."""
    cores = (*TWO_CORES, frozenset({4, 5}))
    idle = {0: 0.0, 1: 0.0, 2: 0.9, 3: 0.9, 4: 0.0, 5: 1.0}
    pins = {"a": Pin(frozenset({0}), 0.0)}

    after = step({"a": PodCpu(1, 0.3)}, cpus(6), idle, pins, FIRST_PAUSE_S, cores=cores)["a"].cpus

    assert after in ({2}, {3})


def test_pod_that_waits_gets_an_idle_cpu_though_online_is_busy_beside_it() -> None:
    pins = {"a": Pin(frozenset({0}), 0.0)}
    idle = {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.2}

    after = step({"a": PodCpu(1, 0.4)}, cpus(4), idle, pins, FIRST_PAUSE_S, cores=TWO_CORES)["a"].cpus

    assert after == {0, 3}


@pytest.mark.parametrize("idle", [{0: 0.0, 1: 0.0, 2: 1.0, 3: 1.0}, {0: 0.0, 1: 0.6, 2: 0.4, 3: 1.0}])
def test_pod_that_has_its_limit_stays_whatever_its_siblings_do(idle: Mapping[int, float]) -> None:
    pins = {"a": Pin(frozenset({0}), 0.0)}

    assert on(step({"a": PodCpu(1, 1.0)}, cpus(4), idle, pins, 100.0, cores=TWO_CORES)) == {"a": {0}}


def test_pod_that_waits_does_not_move_for_an_idle_sibling_alone() -> None:
    """On CPU 2 it would get as much time as it has, taken from another pod, though without online beside it."""
    pins = {"a": Pin(frozenset({0}), 0.0), "b": Pin(frozenset({2}), 0.0)}
    idle = {0: 0.0, 1: 0.0, 2: 0.0, 3: 1.0}

    pods = {"a": PodCpu(1, 0.5), "b": PodCpu(1, 1.0)}

    assert on(step(pods, cpus(3), idle, pins, FIRST_PAUSE_S, cores=TWO_CORES)) == {"a": {0}, "b": {2}}


def test_pod_that_goes_back_to_fewer_cpus_keeps_those_of_two_cores() -> None:
    pins = {"a": Pin(frozenset({0, 2, 3}), 0.0), "b": Pin(cpus(4), 0.0)}
    pods = {"a": PodCpu(2, 1.5), "b": PodCpu(3, 2.5)}

    after = on(step(pods, cpus(4), FULL, pins, FIRST_PAUSE_S, cores=TWO_CORES))["a"]

    assert [len(after & core) for core in TWO_CORES] == [1, 1]


# --- NUMA nodes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [2, 4, 5])
def test_pod_stays_on_one_node_where_that_has_room(limit: int) -> None:
    idle = {cpu: 0.9 + cpu % 3 / 30 for cpu in range(16)}

    (pin,) = placed({"a": limit}, 16, idle, cores=EIGHT_CORES, nodes=TWO_NODES).values()

    assert any(pin.cpus <= node for node in TWO_NODES)


def test_pod_has_a_thread_of_each_core_of_both_nodes_rather_than_both_threads_of_many() -> None:
    (pin,) = placed({"a": 8}, 16, cores=EIGHT_CORES, nodes=TWO_NODES).values()

    assert [len(pin.cpus & core) for core in EIGHT_CORES] == [1] * 8


def test_pods_are_spread_over_nodes() -> None:
    pins = placed({"a": 3, "b": 3}, 16, cores=EIGHT_CORES, nodes=TWO_NODES)

    assert {node for node in TWO_NODES for pin in pins.values() if pin.cpus <= node} == set(TWO_NODES)


def test_pod_begins_on_the_node_with_most_room() -> None:
    idle = {cpu: 1.0 if cpu in {0, 1, 2, 8} else 0.9 if cpu in TWO_NODES[1] else 0.5 for cpu in range(16)}

    assert on(placed({"a": 1}, 16, idle, nodes=TWO_NODES))["a"] <= TWO_NODES[1]


def test_pod_has_cpus_of_two_nodes_where_one_alone_leaves_it_less() -> None:
    idle = {cpu: 1.0 if cpu in {0, 1, 4, 5} else 0.0 for cpu in range(16)}

    assert on(placed({"a": 4}, 16, idle, nodes=TWO_NODES)) == {"a": {0, 1, 4, 5}}


def test_pod_has_cpus_that_nobody_stays_on_though_they_are_of_two_nodes() -> None:
    taken = {str(cpu): Pin(frozenset({cpu}), 0.0) for cpu in range(16) if cpu not in {0, 1, 4, 5}}
    pods = dict.fromkeys(taken, PodCpu(1)) | {"a": PodCpu(4)}

    assert step(pods, cpus(16), IDLE, taken, 1.0, nodes=TWO_NODES)["a"].cpus == {0, 1, 4, 5}


@pytest.mark.parametrize(("limit", "number"), [(4, 1), (5, 2), (8, 2), (9, 3), (13, 4)])
def test_pod_of_more_cpus_than_a_node_has_is_on_as_few_nodes_as_it_needs(limit: int, number: int) -> None:
    idle = {cpu: 0.9 + cpu % 3 / 30 for cpu in range(16)}

    (pin,) = placed({"a": limit}, 16, idle, nodes=FOUR_NODES).values()

    assert sum(bool(pin.cpus & node) for node in FOUR_NODES) == number


@pytest.mark.parametrize(("there", "after"), [(0.9, {3}), (0.6, {4})], ids=["as much there", "less there"])
def test_pod_that_waits_moves_within_its_node_unless_another_promises_more(there: float, after: set[int]) -> None:
    pins = {"a": Pin(frozenset({0}), 0.0)}
    idle = FULL | {3: there, 4: 1.0}

    assert on(step({"a": PodCpu(1, 0.3)}, cpus(16), idle, pins, FIRST_PAUSE_S, nodes=FOUR_NODES))["a"] == after


@pytest.mark.parametrize("nodes", [(), (frozenset({0, 1}), frozenset({2, 3}))], ids=["one node", "two nodes"])
def test_pods_that_wait_leave_a_crowded_node_though_its_next_cpu_is_not_worth_a_move(nodes: tuple[Cpus, ...]) -> None:
    number = {0: 10, 1: 6, 2: 4, 3: 4}
    pins = {f"{cpu}-{one}": Pin(frozenset({cpu}), 0.0) for cpu, most in number.items() for one in range(most)}

    for at_s in range(20, 4000, 20):
        each = dict.fromkeys(number, 0)
        for pin in pins.values():
            for cpu in pin.cpus:
                each[cpu] += 1
        pods = {name: PodCpu(1, sum(1 / each[cpu] / len(pin.cpus) for cpu in pin.cpus)) for name, pin in pins.items()}
        pins = step(pods, cpus(4), FULL, pins, float(at_s), nodes=nodes)

    assert sorted(each.values()) == [5, 5, 6, 8]


def test_pod_that_gets_one_more_cpu_gets_it_of_its_node() -> None:
    pins = {"a": Pin(frozenset({0}), 0.0)}
    idle = FULL | {3: 0.45, 4: 0.5}

    assert on(step({"a": PodCpu(1, 0.5)}, cpus(16), idle, pins, FIRST_PAUSE_S, nodes=FOUR_NODES))["a"] == {0, 3}


def test_pod_that_was_resized_begins_anew_on_its_node() -> None:
    pins = {"a": Pin(frozenset({5}), 0.0)}

    assert on(step({"a": PodCpu(2)}, cpus(16), IDLE, pins, 1.0, nodes=FOUR_NODES))["a"] <= FOUR_NODES[1]


def test_cpus_of_which_neither_core_nor_node_is_known_are_used_as_others() -> None:
    """Such as one that came a moment ago."""
    pins = placed({"a": 1, "b": 1, "c": 1}, 3, cores=TWO_CORES[:1], nodes=TWO_CORES[:1])

    assert sorted(cpu for pin in pins.values() for cpu in pin.cpus) == [0, 1, 2]


def test_sibling_that_the_box_has_not_counts_too() -> None:
    """Online alone has CPUs 0 and 3, and is busy on the first."""
    idle = {0: 0.0, 1: 1.0, 2: 0.9, 3: 1.0}

    assert on(step({"a": PodCpu(1)}, frozenset({1, 2}), idle, {}, 0.0, cores=TWO_CORES)) == {"a": {2}}


# --- always -----------------------------------------------------------------------------------------------------------


def used_by(pins: Mapping[str, Pin], wants: Mapping[str, float], online: list[float]) -> tuple[list[float], dict]:
    """How idle each CPU is, and what each pod gets, where pods share alike what online leaves, a crumb at a time."""
    left, used = [1.0 - taken for taken in online], dict.fromkeys(pins, 0.0)
    for _ in range(CRUMBS):
        for name, pin in pins.items():
            best = max(pin.cpus, key=lambda cpu: left[cpu])
            crumb = min(1 / CRUMBS, left[best], wants[name] - used[name])
            left[best] -= crumb
            used[name] += crumb
    return left, used


@settings(max_examples=100)
@given(
    online=st.lists(st.floats(0.0, 1.0), min_size=2, max_size=6),
    wanted=st.lists(st.floats(0.0, 1.0), max_size=12),
    cores=st.sampled_from([(), (*TWO_CORES, frozenset({4, 5}))]),
    nodes=st.sampled_from([(), TWO_CORES]),
)
def test_nobody_waits_for_long_while_a_cpu_has_room(
    online: list[float], wanted: list[float], cores: Sequence[Cpus], nodes: Sequence[Cpus]
) -> None:
    """Half an hour is simulated: by then all is as still as it becomes. Online does not move."""
    wants = {str(number): cores for number, cores in enumerate(wanted)}
    pins, places = dict[str, Pin](), list[tuple[str, set[int]]]()
    idle, used = used_by(pins, wants, online)
    waste, changes = [], 0
    for look in range(LOOKS):
        if (now := list(on(pins).items())) != places:  # mostly nobody has moved: then all get what they got
            places, (idle, used) = now, used_by(pins, wants, online)
        pods = {name: PodCpu(1.0, used.get(name)) for name in wants}
        new = step(pods, cpus(len(online)), dict(enumerate(idle)), pins, LOOK_S * look, cores=cores, nodes=nodes)
        changes += sum(new[name].cpus != pins[name].cpus for name in pins)
        pins = new
        assert pins.keys() == wants.keys()
        assert all(pin.cpus and pin.cpus <= cpus(len(online)) for pin in pins.values())
        waits = max((wants[name] - got for name, got in used.items()), default=0.0)
        waste.append(min(waits, max(idle)))
    event(f"changes of a pod {changes / max(1, len(wants)):.0f}")
    assert sum(waste[LOOKS // 2 :]) / (LOOKS // 2) < WASTE


RATIOS = st.floats(0.0, 1.0)
PODS = st.dictionaries(
    st.sampled_from("abcdefgh"), st.builds(PodCpu, st.floats(0.1, 20.0), st.none() | st.floats(0.0, 4.0)), min_size=1
)
SETS = st.frozensets(st.integers(0, 15), min_size=1)
PINS = st.dictionaries(st.sampled_from("abcdefgh"), st.builds(Pin, SETS, st.floats(0.0, 90.0)))


@given(pods=PODS, own=SETS, idle=st.dictionaries(st.integers(0, 15), RATIOS), pins=PINS)
def test_pins_are_of_the_boxs_cpus_as_many_as_the_limits_and_the_same_again(
    pods: Mapping[str, PodCpu], own: Cpus, idle: Mapping[int, float], pins: Mapping[str, Pin]
) -> None:
    """Whatever the kernel says of cores and nodes, and in whatever order."""
    after = step(pods, own, idle, pins, 100.0, cores=EIGHT_CORES, nodes=TWO_NODES)

    assert after.keys() == {name for name, pod in pods.items() if pod.size < len(own)}
    assert all(pin.cpus <= own for pin in after.values())
    assert all(len(pin.cpus) >= pods[name].size for name, pin in after.items())
    assert all(len(pin.cpus) == pods[name].size for name, pin in after.items() if name not in pins)
    assert step(pods, own, idle, pins, 100.0, cores=EIGHT_CORES[::-1], nodes=TWO_NODES[::-1]) == after


@given(pods=PODS, own=SETS, idle=st.dictionaries(st.integers(0, 15), RATIOS), pins=PINS)
def test_cores_of_one_thread_and_one_node_change_nothing(
    pods: Mapping[str, PodCpu], own: Cpus, idle: Mapping[int, float], pins: Mapping[str, Pin]
) -> None:
    plain = tuple(frozenset({cpu}) for cpu in range(16))

    assert step(pods, own, idle, pins, 100.0, cores=plain, nodes=(cpus(16),)) == step(pods, own, idle, pins, 100.0)
