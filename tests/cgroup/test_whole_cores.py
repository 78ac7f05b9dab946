"""Which physical cores are the box's: whole ones, never beside an exclusive CPU, in as few moves as possible."""

import asyncio
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.cgroup.box import Box, BoxSettings
from criproxy.cgroup.driver import CgroupError
from criproxy.cgroup.naming import parse_kubelet_parent
from criproxy.cgroup.topology import Topology, WholeCores
from criproxy.cgroup.tree import Tree
from criproxy.cgroup.whole_cores import choose, spared
from criproxy.model import UNLIMITED, Unlimited
from criproxy.model.cpulist import Cpus, format_cpus, parse_cpus
from tests.fakes.clock import FakeClock
from tests.fakes.driver import FakeDriver
from tests.fakes.machine import machine

FOUR = tuple(frozenset({core, core + 4}) for core in range(4))
"""Four cores of two hyperthreads, numbered as on most machines."""
NONE: Cpus = frozenset()
ALL: Cpus = frozenset(range(8))
FLOOR = {"cpu": 0.5, "memory": 64 << 20}
POD = parse_kubelet_parent("/kubepods/besteffort/poda")


def chosen(limit: float | Unlimited, allowed: str = "0-7", held: str = "", own: str = "") -> str:
    cpus, _ = choose(FOUR, parse_cpus(allowed), parse_cpus(own), parse_cpus(held), limit)
    assert cpus is not UNLIMITED
    return format_cpus(cpus)


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [
        pytest.param(chosen(0.1), "3,7", id="one-at-least"),
        pytest.param(chosen(2.0), "3,7", id="what-it-needs"),
        pytest.param(chosen(2.1), "2-3,6-7", id="one-more"),
        pytest.param(chosen(UNLIMITED), "0-7", id="all"),
        pytest.param(chosen(2.0, held="0,4"), "0,4", id="stays-where-it-is"),
        pytest.param(chosen(3.0, held="0,4"), "0,3-4,7", id="grows-by-one"),
        pytest.param(chosen(1.5, held="2-3,6-7"), "2-3,6-7", id="sways"),
        pytest.param(chosen(1.0, held="2-3,6-7"), "3,7", id="shrinks"),
        pytest.param(chosen(4.0, allowed="0-6"), "1-2,5-6", id="never-beside-an-exclusive-cpu"),
        pytest.param(chosen(4.0, allowed="0-2,4-6", held="2-3,6-7"), "1-2,5-6", id="moves-only-what-must-go"),
        pytest.param(chosen(2.0, allowed="0-6", own="3"), "2-3,6", id="with-what-an-offline-pod-has-alone"),
    ],
)
def test_cores_are_whole_and_few_move(cpus: str, expected: str) -> None:
    assert cpus == expected


@pytest.mark.parametrize(
    ("cores", "allowed", "words"),
    [
        pytest.param([{0}, {1}], "0-1", "no hyperthreads", id="no-hyperthreads"),
        pytest.param([{0, 2}, {1, 3}], "0-1", "no physical core is left whole", id="all-shared"),
    ],
)
def test_where_there_are_no_whole_cores_the_box_has_what_it_may_have(
    cores: list[set[int]], allowed: str, words: str
) -> None:
    cpus, why = choose([frozenset(core) for core in cores], parse_cpus(allowed), NONE, NONE, 1.0)

    assert (cpus, words in why) == (parse_cpus(allowed), True)


@pytest.mark.parametrize(
    ("allowed", "own", "left", "words"),
    [
        pytest.param("0-7", "", "0-7", "", id="nobody-has-any-alone"),
        pytest.param("0-2,4-7", "", "0-2,4-6", "without 7, the siblings", id="sibling-of-an-exclusive-cpu"),
        pytest.param("1-4,6-7", "", "2-3,6-7", "without 1,4, the siblings", id="two-siblings"),
        pytest.param("0-2,4-6", "", "0-2,4-6", "", id="whole-core-exclusive"),
        pytest.param("0-2,4-7", "7", "0-2,4-7", "", id="an-offline-pod-has-the-sibling-alone"),
        pytest.param("0-3", "", "0-3", "no CPU but siblings", id="nothing-else-is-left"),
        pytest.param("0-3,7", "3,7", "0-3,7", "no CPU but siblings", id="nothing-else-that-pods-share"),
        pytest.param("", "", "", "", id="none-at-all"),
    ],
)
def test_siblings_of_exclusive_cpus_are_not_the_boxs_unless_it_would_have_none(
    allowed: str, own: str, left: str, words: str
) -> None:
    cpus, why = spared(FOUR, parse_cpus(allowed), parse_cpus(own), ALL - parse_cpus(allowed))

    assert (format_cpus(cpus), words in why, why == "") == (left, True, words == "")


def test_sibling_of_a_cpu_that_kubelet_reserves_is_the_boxs() -> None:
    """With strict-cpu-reservation, CPU 0 is in no shared pool; an online pod has 5 alone."""
    cpus, why = spared(FOUR, parse_cpus("1-4,6-7"), NONE, parse_cpus("5"))

    assert (format_cpus(cpus), "without 1, the siblings" in why) == ("2-4,6-7", True)


def test_machine_without_hyperthreads_spares_nothing() -> None:
    assert spared([frozenset({cpu}) for cpu in range(4)], parse_cpus("0-2"), NONE, frozenset({3})) == (
        parse_cpus("0-2"),
        "",
    )


LIMITS = st.floats(0.0, 12.0)
CHOICES = st.lists(st.tuples(LIMITS, st.sets(st.integers(0, 7))), min_size=1, max_size=12)


@given(CHOICES)
def test_any_course_of_limits_and_exclusive_cpus(course: list[tuple[float, set[int]]]) -> None:
    """Whole cores; none beside an exclusive CPU; room for the limit where there is; and only what must move does."""
    held = NONE
    for limit, exclusive in course:
        allowed = frozenset(range(8)) - exclusive
        candidates = [core for core in FOUR if core <= allowed]
        cpus, _ = choose(FOUR, allowed, NONE, held, limit)
        assert cpus is not UNLIMITED
        if not candidates:
            assert cpus == allowed
            continue
        mine = [core for core in FOUR if core & cpus]
        assert cpus == frozenset().union(*mine)
        assert cpus <= allowed
        assert len(cpus) >= min(math.ceil(limit), 2 * len(candidates))
        assert choose(FOUR, allowed, NONE, cpus, limit)[0] == cpus, "the same again moves nothing"
        kept = [core for core in candidates if core <= held]
        assert set(mine) <= set(kept) or set(kept) <= set(mine), "none goes while another comes"
        held = cpus


# --- at the kernel's files -------------------------------------------------------------------------------------------


def test_cores_are_what_the_kernel_says_also_after_one_came_or_was_taken_out(tmp_path: Path) -> None:
    topology = machine(tmp_path, FOUR[:2])
    first = set(topology.cores())
    machine(tmp_path, FOUR)
    all_of_them = set(topology.cores())
    (tmp_path / "root").write_text("0-2,4-6\n")

    assert (first, all_of_them, set(topology.cores())) == (set(FOUR[:2]), set(FOUR), set(FOUR[:3]))


def test_nodes_are_what_the_kernel_says_also_after_a_cpu_was_taken_out(tmp_path: Path) -> None:
    nodes = (frozenset({0, 1, 4, 5}), frozenset({2, 3, 6, 7}))
    topology = machine(tmp_path, FOUR, nodes)
    first = topology.nodes()
    machine(tmp_path, FOUR[:3], (nodes[0], frozenset({2, 6})))

    assert (first, topology.nodes()) == (nodes, (nodes[0], {2, 6}))


def test_kernel_without_numa_has_no_nodes(tmp_path: Path) -> None:
    assert machine(tmp_path, FOUR).nodes() == ()


def test_nodes_that_are_not_told_are_an_error(tmp_path: Path) -> None:
    topology = machine(tmp_path, FOUR, (ALL,))
    (tmp_path / "node0" / "cpulist").write_text("all\n")

    with pytest.raises(CgroupError, match="does not say which CPUs a node has: 'all'"):
        topology.nodes()


def test_cores_that_are_not_told_are_an_error(tmp_path: Path) -> None:
    topology = machine(tmp_path, FOUR)
    (tmp_path / "online").write_text("all\n")

    with pytest.raises(CgroupError, match="does not say which CPUs are one core"):
        topology.cores()


def test_box_follows_its_limit_and_says_what_it_has(tmp_path: Path) -> None:
    driver, allowed = FakeDriver(), [frozenset(range(8))]
    cores = WholeCores(machine(tmp_path, FOUR), lambda: NONE, lambda: NONE)
    box = Box(driver, BoxSettings(FLOOR, whole_cores=True), lambda: allowed[0], FakeClock(), cores=cores)
    held: list[str] = []

    async def course() -> None:
        await box.pods.admit(POD, 0)
        for limit, cpus in ((3.5, "0-7"), (3.0, "0-7"), (3.0, "0-6"), (1.0, "0-7")):
            allowed[0] = parse_cpus(cpus)
            await box.apply({"cpu": limit, "memory": 1 << 30})
            held.append(box.state().cpus)

    asyncio.run(course())

    assert held == ["2-3,6-7", "2-3,6-7", "1-2,5-6", "2,6"]
    assert box.state().cores == "1 of 4 physical cores, with all their hyperthreads"
    writes = [call[0] for call in driver.log if call[0] in ("confine", "write")]
    assert writes[:2] == ["confine", "write"], "the cores first, then the limit"


@pytest.mark.parametrize(("version", "kept"), [pytest.param(1, "2-3,6-7", id="v1"), pytest.param(2, "0-7", id="v2")])
def test_container_is_kept_to_what_the_box_has_now_on_v1_alone(tmp_path: Path, version: int, kept: str) -> None:
    driver = FakeDriver()
    driver.version = version
    cores = WholeCores(machine(tmp_path, FOUR), lambda: NONE, lambda: NONE)
    box = Box(driver, BoxSettings(FLOOR, whole_cores=True), lambda: frozenset(range(8)), FakeClock(), cores=cores)

    async def course() -> None:
        await box.pods.admit(POD, 0)
        await box.apply({"cpu": 3.5, "memory": 1 << 30})

    asyncio.run(course())
    cpus = box.pods.kept_to(frozenset(range(8)))

    assert cpus is not UNLIMITED
    assert format_cpus(cpus) == kept


def test_box_leaves_the_sibling_of_an_exclusive_cpu_without_being_asked_for_whole_cores(tmp_path: Path) -> None:
    driver, allowed = FakeDriver(), [parse_cpus("0-7")]
    topology = machine(tmp_path, FOUR)
    cores = WholeCores(topology, lambda: NONE, lambda: ALL - allowed[0])
    box = Box(driver, BoxSettings(FLOOR), lambda: allowed[0], FakeClock(), cores=cores)
    held: list[tuple[str, str]] = []

    async def course() -> None:
        await box.pods.admit(POD, 0)
        for cpus in ("0-2,4-7", "0-7"):
            allowed[0] = parse_cpus(cpus)
            await box.confine()
            held.append((box.state().cpus, box.state().cores))

    asyncio.run(course())

    without = "what kubelet leaves, without 7, the siblings of exclusive CPUs"
    assert held == [("0-2,4-6", without), ("0-7", "")]


@pytest.mark.parametrize(
    ("isolated", "nohz_full", "cpus", "says"),
    [
        pytest.param("3,7", "(null)", "2,6", "3,7 are isolated", id="a-core"),
        pytest.param("", "7", "2,6", "7 are isolated", id="a-thread"),
        pytest.param("3", "2", "1,5", "2-3 are isolated", id="both"),
        pytest.param("", "", "3,7", "1 of 4 physical cores, with all their hyperthreads", id="none"),
        pytest.param("0-7", "", "3,7", "1 of 4 physical cores", id="all"),
        pytest.param("nonsense", "\n", "3,7", "1 of 4 physical cores", id="no-list"),
    ],
)
def test_isolated_cpus_are_never_the_boxs_with_whole_cores(
    tmp_path: Path, isolated: str, nohz_full: str, cpus: str, says: str
) -> None:
    topology = machine(tmp_path, FOUR)
    (tmp_path / "isolated").write_text(f"{isolated}\n")
    (tmp_path / "nohz_full").write_text(f"{nohz_full}\n")

    found, words = WholeCores(topology, lambda: NONE, lambda: NONE).choose(UNLIMITED, 2.0)

    assert found is not UNLIMITED
    assert format_cpus(found) == cpus
    assert says in words


def test_isolated_cpus_are_left_out_where_there_are_no_hyperthreads(tmp_path: Path) -> None:
    topology = machine(tmp_path, tuple(frozenset({cpu}) for cpu in range(4)))
    (tmp_path / "isolated").write_text("2-3\n")

    assert WholeCores(topology, lambda: NONE, lambda: NONE).choose(UNLIMITED, 4.0)[0] == {0, 1}


def test_isolated_cpu_that_an_offline_pod_has_alone_stays_its_own(tmp_path: Path) -> None:
    topology = machine(tmp_path, FOUR)
    (tmp_path / "isolated").write_text("2-3\n")
    cores = WholeCores(topology, lambda: frozenset({3}), lambda: NONE)

    assert cores.choose(parse_cpus("0-7"), 1.0)[0] == parse_cpus("3,7")
    assert cores.spare(parse_cpus("0-7")) == (
        parse_cpus("0-1,3-7"),
        "what kubelet leaves; 2 are isolated (isolcpus, nohz_full), and never the box's",
    )


def test_box_on_a_machine_that_does_not_tell_its_cores_leaves_the_exclusive_cpus(tmp_path: Path) -> None:
    cores = WholeCores(Topology(Tree(), None, str(tmp_path)), lambda: NONE, lambda: NONE)
    box = Box(FakeDriver(), BoxSettings(FLOOR), lambda: parse_cpus("0-2"), FakeClock(), cores=cores)

    asyncio.run(box.pods.admit(POD, 0))

    assert box.state().cpus == "0-2"
    assert "which of them are siblings of exclusive CPUs is not known: cannot read" in box.state().cores
