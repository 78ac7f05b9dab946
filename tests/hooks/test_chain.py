"""The hooks of an offline pod, as tables: facts in, changes out."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from criproxy.hooks import Chain, HookConflictError, HookSettings, offline_chain
from criproxy.model import PLACEMENT_ANNOTATION, UNLIMITED, Adjustment, Operation, PodRequest, Resources, Target

PLACE = "/offline/pod1"
CALL = PodRequest(
    operation=Operation.CREATE_CONTAINER,
    target=Target.CONTAINER,
    placement=PLACE,
    resources=Resources(),
    container="main",
)
LAST = {("oom_score_adj", "", 1000)}


def changes(call: PodRequest, *, child_quota: bool = False) -> set[tuple[str, str, str | int | None]]:
    return {(c.field, c.key, c.value) for c in offline_chain(HookSettings(child_quota)).adjust(call)}


@pytest.mark.parametrize(
    ("operation", "target", "expected"),
    [
        (
            Operation.RUN_POD_SANDBOX,
            Target.SANDBOX,
            {("cgroup_parent", "", PLACE), ("annotations", PLACEMENT_ANNOTATION, PLACE)},
        ),
        (
            Operation.RESTORE_POD,
            Target.SANDBOX,
            {("cgroup_parent", "", PLACE), ("annotations", PLACEMENT_ANNOTATION, PLACE)},
        ),
        (Operation.RESTORE_POD, Target.CONTAINER, set()),
        (Operation.CREATE_CONTAINER, Target.CONTAINER, {("cgroup_parent", "", PLACE)}),
        (Operation.UPDATE_CONTAINER_RESOURCES, Target.CONTAINER, set()),
        (Operation.UPDATE_POD_SANDBOX_RESOURCES, Target.SANDBOX, set()),
    ],
)
def test_chain_by_operation_places_what_starts(operation: Operation, target: Target, expected: set) -> None:
    assert changes(replace(CALL, operation=operation, target=target)) == expected | LAST


def test_slice_is_named_with_its_path_and_recorded_by_its_name() -> None:
    slice_ = "node-offline-pod1.slice"
    path = "/node.slice/node-offline.slice/node-offline-pod1.slice"
    call = replace(CALL, placement=slice_)
    assert changes(call) == {("cgroup_parent", "", path)} | LAST
    sandbox = replace(call, operation=Operation.RUN_POD_SANDBOX, target=Target.SANDBOX)
    assert changes(sandbox) == {("cgroup_parent", "", path), ("annotations", PLACEMENT_ANNOTATION, slice_)} | LAST


@pytest.mark.parametrize(
    ("resources", "child_quota", "expected"),
    [
        pytest.param(Resources(oom_score_adj=-997), False, LAST, id="guaranteed-oom-score"),
        pytest.param(Resources(oom_score_adj=1000), False, set(), id="nothing-to-do"),
        pytest.param(
            Resources(cpu_quota_us=50000, cpu_period_us=100000),
            False,
            LAST | {("cpu_quota", "", None), ("cpu_period", "", None)},
            id="quota-v1",
        ),
        pytest.param(Resources(cpu_quota_us=50000, cpu_period_us=100000), True, LAST, id="quota-v2-kept"),
        pytest.param(Resources(cpuset_cpus="0-3"), True, LAST, id="cpuset-kept"),
        pytest.param(
            Resources(unified={"cpu.weight": "100", "memory.oom.group": "1", "cpuset.cpus.partition": "root"}),
            True,
            LAST | {("unified", "cpuset.cpus.partition", None)},
            id="unified",
        ),
        pytest.param(Resources(unified={"cpuset.cpus": "0", "cpuset.mems": "1"}), True, LAST, id="unified-cpuset-kept"),
    ],
)
def test_resources_by_field_lose_what_lifts_them(resources: Resources, child_quota: bool, expected: set) -> None:
    call = replace(CALL, operation=Operation.UPDATE_CONTAINER_RESOURCES, resources=resources)
    assert changes(call, child_quota=child_quota) == expected


@pytest.mark.parametrize(
    ("asked", "cpus", "passed"),
    [
        pytest.param("0-3", UNLIMITED, "0-3", id="no-cpu-manager"),
        pytest.param("2,0-1", frozenset(range(4)), "2,0-1", id="within"),
        pytest.param("0-3", frozenset({0, 2, 3}), "0,2-3", id="one-is-online's-by-now"),
        pytest.param("all of them", frozenset({0}), "all of them", id="no-list"),
    ],
)
def test_cpus_that_online_pods_have_alone_are_left_out(asked: str, cpus: frozenset[int], passed: str) -> None:
    call = replace(CALL, resources=Resources(cpuset_cpus=asked), cpus=cpus)
    given = {c.field: c.value for c in offline_chain(HookSettings(False)).adjust(call)}
    assert given.get("cpuset_cpus", asked) == passed


@dataclass
class Setter:
    name: str
    change: Adjustment

    def adjust(self, call: PodRequest) -> Iterator[Adjustment]:
        yield self.change


def test_chain_two_values_for_one_field_names_both_hooks() -> None:
    chain = Chain((Setter("mine", Adjustment("cpu_shares", 2, "")), Setter("yours", Adjustment("cpu_shares", 3, ""))))
    with pytest.raises(HookConflictError, match=r"'mine' and 'yours' set cpu_shares to 2 and 3"):
        chain.adjust(CALL)


def test_chain_one_value_twice_merges() -> None:
    chain = Chain((Setter("mine", Adjustment("cpu_shares", 2, "a")), Setter("yours", Adjustment("cpu_shares", 2, "b"))))
    assert [c.reason for c in chain.adjust(CALL)] == ["a"]


def test_chain_two_keys_of_one_map_both_stay() -> None:
    chain = Chain(
        (Setter("a", Adjustment("unified", None, "", "x")), Setter("b", Adjustment("unified", None, "", "y")))
    )
    assert len(chain.adjust(CALL)) == 2
