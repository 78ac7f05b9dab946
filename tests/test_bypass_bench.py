"""The order of `python -m benchmarks.bypass`, and its rows."""

import math
from typing import cast

import pytest

from benchmarks import bypass
from benchmarks.bypass import Node, Round, measure, row


def test_each_way_has_as_many_rounds_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[tuple[str, str, float]] = []

    def one_round(_node: Node, way: str, pace: str, outage_s: float) -> Round:
        played.append((way, pace, outage_s))
        return Round(0.001 * len(played), None if way == "runtime" else 0.01, 1)

    monkeypatch.setattr(bypass, "one_round", one_round)
    rows = measure(cast("Node", None), 3)
    cases = {*played}
    assert len(rows) == len(cases) == 8
    assert played == played[:8] * 3
    assert [way for way, _, _ in played[:2]] == ["forwarder", "runtime"]
    for one in rows:
        first = played.index((one.bypass_leads_to, one.client_redials_at_pace_of, one.outage_s)) + 1
        assert (one.recovery_p50_ms, one.recovery_max_ms) == pytest.approx((first + 8, first + 16))
        assert one.failed == 3
        assert math.isinf(one.back_p50_ms) == (one.bypass_leads_to == "runtime")


def test_client_that_once_does_not_come_back_has_no_longest_time() -> None:
    backs = (0.01, None, 0.02)
    found = row("forwarder", "kubelet", 2.0, [Round(0.001, back_s, 0) for back_s in backs])
    assert found.back_p50_ms == pytest.approx(20.0)
    assert found.back_max_ms == math.inf
