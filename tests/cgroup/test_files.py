"""The texts of /proc and cgroup files, as kernels write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.cgroup import files

SEPARATE = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
SYSTEMD_HYBRID = """\
25 19 0:23 / /sys/fs/cgroup ro,nosuid shared:9 - tmpfs tmpfs ro,mode=755
26 25 0:24 / /sys/fs/cgroup/unified rw,nosuid shared:10 - cgroup2 cgroup2 rw,nsdelegate
27 25 0:25 / /sys/fs/cgroup/systemd rw,nosuid shared:11 - cgroup cgroup rw,xattr,name=systemd
31 25 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:16 - cgroup cgroup rw,cpu,cpuacct
"""


def test_mounts_of_separate_controllers_are_found() -> None:
    mounts = files.parse_mounts(SEPARATE)

    assert mounts.v1 == {
        "cpu": "/sys/fs/cgroup/cpu",
        "cpuacct": "/sys/fs/cgroup/cpuacct",
        "name=systemd": "/sys/fs/cgroup/systemd",
    }
    assert mounts.v2 == "/sys/fs/cgroup/unified"


def test_mounts_of_comounted_controllers_share_a_mount_point() -> None:
    mounts = files.parse_mounts(SYSTEMD_HYBRID)

    assert mounts.v1["cpu"] == mounts.v1["cpuacct"] == "/sys/fs/cgroup/cpu,cpuacct"
    assert mounts.v1["name=systemd"] == "/sys/fs/cgroup/systemd"


@pytest.mark.parametrize(
    ("line", "v1", "v2"),
    [
        pytest.param("1 0 0:1 /docker/abc /c/cpu rw - cgroup cgroup rw,cpu", {}, None, id="subtree_of_v1"),
        pytest.param("1 0 0:1 /../.. /c rw - cgroup2 cgroup2 rw", {}, None, id="subtree_of_v2"),
        pytest.param("1 0 0:1 / /a\\040b rw - cgroup2 cgroup2 rw", {}, "/a b", id="escaped_space"),
        pytest.param("1 0 0:1 / /c rw - cgroup cgroup rw,name=elogind", {}, None, id="somebody_elses_hierarchy"),
        pytest.param("1 0 0:1 / /c rw a:1 b:2 - cgroup none rw,pids", {"pids": "/c"}, None, id="optional_fields"),
        pytest.param("1 0 0:1 / /c rw - cgroup  rw,cpu", {"cpu": "/c"}, None, id="v1_of_an_empty_source"),
        pytest.param("1 0 0:1 / /c rw - cgroup2  rw", {}, "/c", id="v2_of_an_empty_source"),
        pytest.param("1 0 0:1 / /\udcff\r rw - cgroup2 none rw", {}, "/\udcff\r", id="no_utf_8"),
    ],
)
def test_mounts_line(line: str, v1: dict[str, str], v2: str | None) -> None:
    assert files.parse_mounts(line) == files.Mounts(v1, v2)


ODD = [
    pytest.param("1 0 0:1 / /mnt/x rw - tmpfs  rw", id="empty_source"),
    pytest.param("1 0 0:1 / /mnt/x rw shared:1 - tmpfs  ", id="empty_source_and_options"),
    pytest.param("1 0 0:1 / /mnt/\udcff\udcfe rw - tmpfs none rw", id="no_utf_8"),
    pytest.param("1 0 0:1 / /mnt/a\\040-\\040b\\134\\012 rw - tmpfs a\\040b rw", id="escapes"),
    pytest.param("1 0 0:1 / /mnt/a\rb\x0b\x0c\x1c\x85\u2028\xa0c rw - tmpfs none rw", id="blanks_that_are_not_escaped"),
    pytest.param("1 0 0:1 / /mnt/x rw shared:1 master:2 propagate_from:3 unbindable - tmpfs none rw", id="optional"),
    pytest.param("1 0 0:4 net:[4026532008] /run/x rw shared:1 - nsfs nsfs rw", id="no_path_as_root"),
    pytest.param("1 0 0:1 / /mnt/x rw - fuse.sshfs a@b:/ rw,name=x,cpu", id="subtype"),
    pytest.param("1 0 0:1", id="too_few_fields"),
    pytest.param("1 0 0:1 / /mnt/x rw", id="no_file_system"),
    pytest.param(" - cgroup2", id="nothing_before"),
    pytest.param("1 0 0:1 / /mnt/x rw - cgroup", id="cgroup_without_options"),
    pytest.param("", id="empty"),
    pytest.param(" ", id="blank"),
]


@pytest.mark.parametrize("line", ODD)
def test_line_that_is_none_of_ours_is_of_no_concern(line: str) -> None:
    among = SEPARATE.replace("\n", f"\n{line}\n")

    assert files.parse_mounts(line) == files.Mounts({}, None)
    assert files.parse_mounts(among) == files.parse_mounts(SEPARATE)


@given(st.text(st.characters(exclude_characters="\n")))
def test_any_line_leaves_the_mounts_before_it_as_they_are(line: str) -> None:
    assert files.parse_mounts(f"{SEPARATE}{line}\n") == files.parse_mounts(SEPARATE)


def test_mounts_twice_of_one_controller_keep_the_first() -> None:
    second = SEPARATE.replace("/sys/fs/cgroup/cpu ", "/other/cpu ")

    assert files.parse_mounts(SEPARATE + second).v1["cpu"] == "/sys/fs/cgroup/cpu"


def test_node_working_set_leaves_out_inactive_page_cache() -> None:
    text = "MemTotal:  1000 kB\nMemFree:  300 kB\nInactive:  250 kB\nInactive(file):   200 kB\nHugePages_Total:  0\n"

    assert files.node_working_set_bytes(text) == 500 * 1024


def test_idle_cpu_seconds_are_those_of_each_cpu_that_is_online() -> None:
    stat = "cpu  900 0 900 1500 100 7 7 7 0 0\ncpu0 1 2 3 400 50 6 7 8 9 10\ncpu12 1 2 3 100 0 6\nintr 8 9\nctxt 3\n"

    assert files.idle_cpu_seconds(stat, 100) == {0: 4.5, 12: 1.0}


@pytest.mark.parametrize(("cores", "quota_us"), [(0.0, 1000), (0.001, 1000), (0.5, 50_000), (1.23456, 123_456)])
def test_quota_is_in_the_kernels_range(cores: float, quota_us: int) -> None:
    assert files.quota_us(cores) == quota_us


@given(st.integers(0, 1 << 50))
def test_whole_pages_round_down_and_settle(size: int) -> None:
    rounded = files.whole_pages(size)

    assert size - 4096 < rounded <= size
    assert files.whole_pages(rounded) == rounded


def test_flat_keyed_file_with_no_lines_is_empty() -> None:
    assert files.parse_flat_keyed("") == {}
    assert files.parse_flat_keyed("nr_periods 3\nusage_usec 12") == {"nr_periods": 3, "usage_usec": 12}


def test_disk_without_counts_has_no_line_feed_on_linux_5_15_and_is_no_other_disks_key() -> None:
    text = "7:3 8:0 rbytes=4096 rios=1\n8:16 rbytes=1 rios=2\n253:0 253:1 \n"

    assert files.parse_nested_keyed(text) == {
        "7:3": {},
        "8:0": {"rbytes": "4096", "rios": "1"},
        "8:16": {"rbytes": "1", "rios": "2"},
        "253:0": {},
        "253:1": {},
    }


def test_huge_pages_that_count_as_memory_are_what_nothing_takes_back() -> None:
    """With the mount option memory_hugetlb_accounting; memory.current has them, and reclaim does not."""
    stat = {"anon": 100, "shmem": 10, "hugetlb": 2 << 20, "inactive_file": 30, "active_file": 5, "slab_reclaimable": 3}

    assert files.memory_parts(stat, "", "anon") == (30, (2 << 20) + 110, 38)
