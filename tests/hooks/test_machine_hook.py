"""What sizes a virtual machine for a pod reaches its runtime, whatever the cgroup gets."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from criproxy.hooks import HookSettings, offline_chain
from criproxy.model import Operation, Pod, PodRef, PodRequest, Resources, Target
from criproxy.vocabulary.names import RESOURCES

ASKED = {"containers": {"main": {"limits": {"cpu": "1500m", "memory": "64Mi"}}}}
SIZES = {"cpu_quota", "cpu_period", "memory_limit_in_bytes"}


def changes(
    asked: Any = None,
    now: Resources | None = None,
    operation: Operation = Operation.RUN_POD_SANDBOX,
    target: Target = Target.SANDBOX,
    *,
    child_quota: bool = False,
) -> dict[str, object]:
    text = asked if isinstance(asked, str) else json.dumps(asked)
    pod = Pod(PodRef("1", "batch", "job"), annotations={} if asked is None else {RESOURCES: text})
    request = PodRequest(operation, target, "/offline/pod1", now or Resources(), pod=pod)
    found = offline_chain(HookSettings(child_quota)).adjust(request)
    return {one.field: one.value for one in found if one.field in SIZES}


@pytest.mark.parametrize("child_quota", [False, True], ids=["v1", "v2"])
@pytest.mark.parametrize("operation", [Operation.RUN_POD_SANDBOX, Operation.RESTORE_POD])
def test_sandbox_of_a_pod_that_asks_in_an_annotation_has_its_size(operation: Operation, child_quota: bool) -> None:
    found = changes(ASKED, operation=operation, child_quota=child_quota)
    assert found == {"cpu_quota": 150_000, "cpu_period": 100_000, "memory_limit_in_bytes": 64 << 20}


@pytest.mark.parametrize("child_quota", [False, True], ids=["v1", "v2"])
def test_what_kubelet_says_of_a_sandbox_stays(child_quota: bool) -> None:
    own = Resources(cpu_period_us=100_000, cpu_quota_us=200_000, memory_limit_bytes=1 << 30)
    assert changes(None, own, child_quota=child_quota) == {}
    assert changes(ASKED, own, child_quota=child_quota) == {}


def test_container_s_quota_goes_on_v1_as_it_would_be_its_cgroup_s() -> None:
    own = Resources(cpu_period_us=100_000, cpu_quota_us=200_000)
    found = changes(ASKED, own, Operation.CREATE_CONTAINER, Target.CONTAINER)
    assert found == {"cpu_quota": None, "cpu_period": None}
    resized = changes(None, replace(own), Operation.UPDATE_POD_SANDBOX_RESOURCES)
    assert resized == {"cpu_quota": None, "cpu_period": None}


@pytest.mark.parametrize("count", [1, 100])
def test_size_that_no_machine_has_is_none(count: int) -> None:
    """An int64 holds what the runtime is told."""
    huge = {"cpu": "9000000000000000", "memory": "3Ei"}
    assert changes({"containers": {f"c{n}": {"limits": huge} for n in range(count)}}) == {}
    memory = {"memory": huge["memory"]}
    found = changes({"containers": {f"c{n}": {"limits": memory} for n in range(count)}})
    assert found == ({"memory_limit_in_bytes": 3 << 60} if count == 1 else {})


@pytest.mark.parametrize("asked", ["nonsense", {}, {"containers": {"main": {"limits": {}}}}], ids=str)
def test_pod_that_asks_for_no_limit_gets_the_runtime_s_own_size(asked: Any) -> None:
    assert changes(asked) == {}
