"""Which containers lose the capability to run in real time."""

import pytest

from criproxy.hooks import HookSettings, offline_chain
from criproxy.model import Operation, PodRequest, Resources, Security, Target


@pytest.mark.parametrize(
    ("added", "dropped"),
    [
        pytest.param((), [], id="none"),
        pytest.param(("NET_ADMIN", "SYS_NICER"), [], id="others"),
        pytest.param(("NET_ADMIN", "SYS_NICE"), ["SYS_NICE"], id="by-name"),
        pytest.param(("cap_sys_nice",), ["SYS_NICE"], id="in-another-spelling"),
        pytest.param(("ALL",), ["SYS_NICE"], id="with-all"),
        pytest.param(("SYS_NICE", "all"), ["SYS_NICE"], id="twice"),
        pytest.param(("CHOWN",) * 257, ["SYS_NICE"], id="among-more-than-are-looked-through"),
    ],
)
def test_capability_for_real_time_is_dropped_where_it_is_asked_for(added: tuple[str, ...], dropped: list[str]) -> None:
    call = PodRequest(
        operation=Operation.CREATE_CONTAINER,
        target=Target.CONTAINER,
        placement="/offline/pod1",
        resources=Resources(),
        security=Security(added_capabilities=added),
    )
    adjustments = offline_chain(HookSettings(child_quota=True)).adjust(call)
    changes = [change for change in adjustments if change.field == "drop_capabilities"]
    assert [change.value for change in changes] == dropped
