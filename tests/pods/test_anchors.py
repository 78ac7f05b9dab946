"""What kubelet's own cgroups of the box's pods need is kept there, where they need anything."""

import asyncio

import pytest
import structlog
from structlog.testing import capture_logs

from criproxy.pods.anchors import AnchorKeeping
from criproxy.pods.shared import PodsShared
from tests.fakes.box import FakeBox


def anchors(box: FakeBox) -> AnchorKeeping:
    shared = PodsShared(None, None, None, None, None, structlog.get_logger())  # type: ignore[arg-type]
    return AnchorKeeping(shared, box)  # type: ignore[arg-type]


def test_anchors_of_a_slice_on_v2_are_kept_and_a_change_is_logged() -> None:
    box = FakeBox("offline.slice", 2)
    box.driver.anchors = ("kubepods-criproxy.slice",)
    with capture_logs() as logs:
        asyncio.run(anchors(box).look())
    assert box.driver.log == [("keep_anchors", "offline.slice")]
    assert [log["event"] for log in logs] == ["anchors_changed"]


@pytest.mark.parametrize(
    ("version", "path"),
    [
        pytest.param(2, None, id="no-box"),
        pytest.param(2, "/offline", id="without-systemd"),
        pytest.param(1, "offline.slice", id="v1"),
    ],
)
def test_where_nothing_needs_an_anchor_nobody_is_asked(version: int, path: str | None) -> None:
    box = FakeBox(path, version)
    asyncio.run(anchors(box).look())
    assert box.jobs == []


def test_look_after_any_wait_finds_a_tick_of_the_control_loop_to_share() -> None:
    """With a latest moment of a whole second, at any distance from the ticks, it kept that distance for ever."""
    earliest_s, latest_s = 0.95 * AnchorKeeping.EVERY_S, AnchorKeeping.EVERY_S + AnchorKeeping.SLACK_S
    assert latest_s - earliest_s >= 1.0
