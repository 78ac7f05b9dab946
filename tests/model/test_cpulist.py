"""Lists of CPUs: what the kernel and kubelet write is read, and written back as the kernel has it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.model.cpulist import format_cpus, mask_of, parse_cpus
from tests.cost import LONGEST, assert_cheap


@pytest.mark.parametrize(
    ("text", "cpus", "written"),
    [
        ("", set(), ""),
        ("\n", set(), ""),
        ("0", {0}, "0"),
        ("0-1\n", {0, 1}, "0-1"),
        ("0-2,4,6-7", {0, 1, 2, 4, 6, 7}, "0-2,4,6-7"),
        ("3,1", {1, 3}, "1,3"),
    ],
)
def test_list_is_read_and_written_as_the_kernel_has_it(text: str, cpus: set[int], written: str) -> None:
    assert parse_cpus(text) == cpus
    assert format_cpus(cpus) == written


@pytest.mark.parametrize("text", ["all", "1-0", "-1", "0-", "0--1", "0x1", "0-4294967295", "0-65536", "٣"])
def test_what_is_no_list_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="is not a list of CPUs"):
        parse_cpus(text)


@given(st.frozensets(st.integers(0, 300)))
def test_written_list_is_read_as_the_same_set(cpus: frozenset[int]) -> None:
    assert parse_cpus(format_cpus(cpus)) == cpus


@pytest.mark.parametrize(
    ("cpus", "mask"), [(set(), b""), ({0}, b"\x01"), ({1, 3}, b"\x0a"), ({8}, b"\x00\x01")], ids=str
)
def test_mask_has_bit_n_for_cpu_n(cpus: set[int], mask: bytes) -> None:
    assert mask_of(cpus) == mask


@pytest.mark.parametrize("text", ["0," * 40_000, "0-8191," * 9_000, "9" * LONGEST, "0-8192", "0-3" * LONGEST])
def test_list_of_more_than_a_kernel_can_have_is_refused_and_costs_next_to_nothing(text: str) -> None:
    assert_cheap(lambda: parse_cpus(text))
    with pytest.raises(ValueError, match="not a list of CPUs"):
        parse_cpus(text)


def test_list_of_all_cpus_that_a_kernel_can_have_is_read() -> None:
    alternating = frozenset(range(0, 8192, 2))
    assert parse_cpus(format_cpus(alternating)) == alternating
    assert parse_cpus("0-8191") == frozenset(range(8192))
