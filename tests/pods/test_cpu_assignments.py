"""Kubelet's state file of exclusive CPUs: what it says, in every version."""

import json

import pytest

from criproxy.pods.cpu_assignments import NOBODY_BOUND, CpuAssignments, parse_state
from tests.fakes.cpu_state import IN_DATA, NONE, POOLS, STATIC, enveloped, static


@pytest.mark.parametrize(
    ("content", "state"),
    [
        pytest.param(STATIC, CpuAssignments(frozenset({0, 4, 5, 6, 7}), {"u1": frozenset({1, 2, 3})}), id="1.20"),
        pytest.param(static("0-1"), CpuAssignments(frozenset({0, 1})), id="nobody-has-any"),
        pytest.param(
            b'{"policyName":"static","defaultCpuSet":"0-1","checksum":1}', CpuAssignments(frozenset({0, 1})), id="bare"
        ),
        pytest.param(
            b'{"policyName":"static","defaultCpuSet":"0","entries":{"containerd://1":"1"},"checksum":1}',
            CpuAssignments(frozenset({0}), {"containerd://1": frozenset({1})}),
            id="before-1.18",
        ),
        pytest.param(
            b'{"policyName":"static","defaultCpuSet":"0","entries":{"u1":{"a":{"cpus":"1"}},"u2":["1"]},"new":[1]}',
            CpuAssignments(frozenset({0}), {"u1": frozenset(), "u2": frozenset()}, "entries of u1, entries of u2"),
            id="of-a-kubelet-to-come",
        ),
        pytest.param(
            json.dumps({**IN_DATA, "checksum": 1}).encode(), CpuAssignments(frozenset({0}), POOLS), id="pools-1.36"
        ),
        pytest.param(enveloped(IN_DATA), CpuAssignments(frozenset({0}), POOLS), id="pools-1.37"),
        pytest.param(
            enveloped({"policyName": "static", "defaultCpuSet": "0-1", "podEntries": {"u1": {"cpuSet": ""}}}),
            CpuAssignments(frozenset({0, 1}), {"u1": frozenset()}),
            id="the-data-counts",
        ),
        pytest.param(
            enveloped({**IN_DATA, "baselines": {"u3": {"a": {"baseline": "6-7"}}}}),
            CpuAssignments(frozenset({0}), POOLS),
            id="baselines-are-of-the-past",
        ),
        pytest.param(
            enveloped({**IN_DATA, "podEntries": {"u1": {"cpuSet": [1]}}}),
            CpuAssignments(frozenset({0}), {**POOLS, "u1": frozenset({1})}, "podEntries of u1"),
            id="pools-of-a-kubelet-to-come",
        ),
        pytest.param(NONE, NOBODY_BOUND, id="none"),
        pytest.param(b'{"policyName":"none","defaultCpuSet":"0-1","entries":{}}', NOBODY_BOUND, id="none-again"),
    ],
)
def test_state_is_what_the_file_says(content: bytes, state: CpuAssignments) -> None:
    assert parse_state(content) == state


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{}", id="nothing-in-it"),
        pytest.param(b"\xff", id="binary"),
        pytest.param(b"[]", id="a-list"),
        pytest.param(b'{"policyName":"static","defaultCpuSet":"all"}', id="no-cpus"),
        pytest.param(b'{"policyName":7}', id="a-number"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(enveloped({}), id="nothing-in-the-data"),
        pytest.param(enveloped([]), id="a-list-in-the-data"),
        pytest.param(b'{"policyName":"static","defaultCpuSet":"0","data":{}}', id="data-that-is-no-text"),
        pytest.param(enveloped({**IN_DATA, "podEntries": {"u1": {"cpuSet": "all"}}}), id="no-cpus-of-a-pod"),
    ],
)
def test_file_that_is_none_is_an_error(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_state(content)
