"""Names, directories and properties of slices: text in, text out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.cgroup.kernel_files import INFINITY
from criproxy.cgroup.naming import child_of, directory_of, parse_box, pod_named
from criproxy.cgroup.systemd.anchor import ANCHOR
from criproxy.cgroup.systemd.driver import limit_properties, priority_properties
from criproxy.model import UNLIMITED


@pytest.mark.parametrize(
    ("path", "directory"),
    [
        pytest.param("offline.slice", "/offline.slice", id="top"),
        pytest.param("a-b-c.slice", "/a.slice/a-b.slice/a-b-c.slice", id="nested"),
        pytest.param("offline-podx_y.slice", "/offline.slice/offline-podx_y.slice", id="pod"),
        pytest.param("/kubepods/besteffort/podx", "/kubepods/besteffort/podx", id="cgroupfs"),
        pytest.param("/a.slice/b.slice", "/a.slice/b.slice", id="path-of-directories"),
    ],
)
def test_directory_of(path: str, directory: str) -> None:
    assert directory_of(path) == directory


@pytest.mark.parametrize("path", ["", "a", "a/b.slice", "/a/../b", "-a.slice", "a--b.slice", ".slice", "/a\0"])
def test_directory_of_what_is_no_cgroup_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match=r"cgroup path|systemd slice"):
        directory_of(path)


@pytest.mark.parametrize(
    ("box", "directory", "name"),
    [
        ("offline.slice", "offline-podx.slice", "podx"),
        ("k-offline.slice", "k-offline-podx.slice", "podx"),
        ("offline.slice", "k-offline-podx.slice", None),
        ("offline.slice", "offline-other.slice", None),
        ("offline.slice", "podx", None),
        ("/offline", "podx", "podx"),
        ("/offline", "offline-podx.slice", None),
    ],
)
def test_pod_is_told_by_its_directory(box: str, directory: str, name: str | None) -> None:
    assert pod_named(box, directory) == name


@pytest.mark.parametrize(
    ("box", "parents"),
    [
        ("offline.slice", ("kubepods.slice", "kubepods-besteffort.slice", "kubepods-burstable.slice")),
        ("k-offline.slice", ("k-kubepods.slice", "k-kubepods-besteffort.slice", "k-kubepods-burstable.slice")),
        ("/k/offline", ("/k/kubepods", "/k/kubepods/besteffort", "/k/kubepods/burstable")),
        ("/k.slice/offline", ("/k.slice/kubepods", "/k.slice/kubepods/besteffort", "/k.slice/kubepods/burstable")),
    ],
)
def test_parents_of_online_pods(box: str, parents: tuple[str, ...]) -> None:
    assert parse_box(box).online_parents == parents


def test_anchor_and_pod_lie_in_kubelets_slice() -> None:
    parent = "kubepods-besteffort.slice"

    assert directory_of(child_of(parent, ANCHOR)).startswith(f"{directory_of(parent)}/")
    assert directory_of(child_of(parent, "podx_y")) == f"{directory_of(parent)}/kubepods-besteffort-podx_y.slice"


@given(
    st.sampled_from([1, 2]),
    st.just(UNLIMITED) | st.integers(1000, 10**8).map(lambda us: us / 100_000),
    st.just(UNLIMITED) | st.integers(0, 1 << 50),
)
def test_limits_are_told_exactly(version: int, cores: float, size: int) -> None:
    told = limit_properties(version, {"cpu": cores, "memory": size})

    quota = told["CPUQuotaPerSecUSec"]
    assert quota == INFINITY if cores is UNLIMITED else quota == round(cores * 100_000) * 10
    assert told["MemoryMax"] == (INFINITY if size is UNLIMITED else size)
    assert told.get("MemoryHigh", told["MemoryMax"]) == told["MemoryMax"]


@pytest.mark.parametrize(("idle", "weight"), [(True, 0), (False, 1)])
def test_priority_is_the_lowest_that_there_is(idle: bool, weight: int) -> None:
    assert priority_properties(2, cpu_idle=idle)["CPUWeight"] == weight
    assert priority_properties(1, cpu_idle=idle)["CPUShares"] == 2
