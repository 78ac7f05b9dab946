"""The CPU counter, in either version's words."""

from pathlib import Path

import pytest

from criproxy.cgroup.counter import cpu_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        pytest.param("1500000000\n", 1.5, id="v1"),
        pytest.param("0\n", 0.0, id="v1-new"),
        pytest.param("usage_usec 1500000\nuser_usec 9\nsystem_usec 9\n" + "nr_periods 0\n" * 9, 1.5, id="v2"),
        pytest.param(f"usage_usec {2**63}\nuser_usec 1\n", 2**63 / 1e6, id="v2-longest"),
    ],
)
def test_counter_is_read_as_seconds(tmp_path: Path, text: str, seconds: float) -> None:
    file = tmp_path / "counter"
    file.write_text(text)
    assert cpu_seconds(str(file)) == pytest.approx(seconds)


def test_counter_of_a_cgroup_that_is_gone_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        cpu_seconds(str(tmp_path / "gone"))
