"""The box's group of resctrl, on a fake tree that takes what the kernel takes."""

import asyncio
import errno
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.cgroup.driver import CgroupError
from criproxy.cgroup.resctrl import CacheGroup, CacheLimits, Resctrl
from criproxy.cgroup.schemata import (
    BandwidthSteps,
    CacheParts,
    bandwidth_percent,
    cache_bits,
    parse_schemata,
    same,
)
from criproxy.cgroup.tree import Tree
from criproxy.pods.cache_share import CacheShare
from tests.fakes.log import FakeLog
from tests.fakes.part import look

WHOLE = "    L3:0=7ff;1=7ff\n    MB:0=100;1=100\n"
WITH_CODE = "L3DATA:0=7ff\nL3CODE:0=7ff\n"
THIRD = CacheLimits(0.3, 0.5)


class FakeResctrl(Tree):
    """A processor with eleven parts of cache, of which a group has two at least, and bandwidth in tens from 10 on."""

    def __init__(self, root: Path, schemata: str = WHOLE, groups: int = 2) -> None:
        super().__init__()
        self.root, self.schemata, self.groups_left = root, schemata, groups
        self.ended: set[str] = set()
        self.writes: list[str] = []
        for name in ("L3", "L3CODE", "L3DATA"):
            self._file(f"info/{name}/cbm_mask", "7ff")
            self._file(f"info/{name}/min_cbm_bits", "2")
        self._file("info/MB/min_bandwidth", "10")
        self._file("info/MB/bandwidth_gran", "10")
        self._file("schemata", schemata)
        self._file("tasks", "")

    def _file(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def mkdir(self, directory: str) -> bool:
        if Path(directory).exists():
            return False
        if not self.groups_left:
            raise CgroupError(f"cannot make cgroup {directory}: ENOSPC", errno.ENOSPC)
        self.groups_left -= 1
        for name, text in (("schemata", self.schemata), ("tasks", "")):
            self._file(f"{Path(directory).name}/{name}", text)
        return True

    def rmdir(self, directory: str) -> None:
        shutil.rmtree(directory)
        self.groups_left += 1

    def write(self, file: str, value: str) -> None:
        self.writes.append(value)
        path = Path(file)
        if path.name == "tasks":
            if value in self.ended:
                raise CgroupError("cannot write: ESRCH", errno.ESRCH)
            path.write_text(f"{path.read_text()}{value}\n")
            return
        held = parse_schemata(path.read_text())
        for name, domains in parse_schemata(value).items():
            for number in domains.values() if name != "MB" else ():
                bits = int(number, 16)
                assert bits & ~0x7FF == 0 and bits.bit_count() >= 2, "EINVAL"
                assert bin(bits).strip("0b").count("0") == 0, "EINVAL: the bits lie apart"
            held[name] = domains
        lines = (f"{name:>6}:{';'.join(f'{i}={v}' for i, v in of.items())}" for name, of in held.items())
        path.write_text("\n".join(lines) + "\n")


@dataclass
class Site:
    root: Path
    tree: FakeResctrl
    resctrl: Resctrl

    def run(self, cgroup: str, *threads: int) -> None:
        directory = self.root / "cgroup/offline" / cgroup
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cgroup.threads").write_text("".join(f"{thread}\n" for thread in threads))

    @property
    def tasks(self) -> list[str]:
        return (self.root / "resctrl/criproxy/tasks").read_text().split()

    @property
    def there(self) -> bool:
        return (self.root / "resctrl/criproxy").exists()


def made(root: Path, *, options: str = "rw", **how: Any) -> Site:
    (root / "proc/self").mkdir(parents=True)
    (root / "cgroup/offline").mkdir(parents=True)
    (root / "cgroup/offline/cgroup.threads").write_text("")
    (root / "proc/self/mountinfo").write_text(
        f"30 1 0:26 / {root}/cgroup rw - cgroup2 cgroup2 rw\n"
        f"31 1 0:27 / {root}/resctrl rw - resctrl resctrl {options}\n"
    )
    tree = FakeResctrl(root / "resctrl", **how)
    return Site(root, tree, Resctrl(tree, str(root / "resctrl"), str(root / "proc")))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return made(tmp_path)


def test_all_threads_of_the_box_are_in_the_group_with_its_share(site: Site) -> None:
    site.run("poda/main", 11, 12)
    site.run("podb/main", 13)

    group = site.resctrl.keep("/offline", THIRD)

    assert group == CacheGroup("L3:0=7;1=7 MB:0=50;1=50", 3)
    assert sorted(site.tasks) == ["11", "12", "13"]
    assert same((site.root / "resctrl/criproxy/schemata").read_text(), "L3:0=7;1=7\nMB:0=50;1=50")
    assert (site.root / "resctrl/schemata").read_text() == WHOLE, "everybody else's is left alone"


def test_only_what_is_new_is_written(site: Site) -> None:
    site.run("poda/main", 11)
    site.resctrl.keep("/offline", THIRD)
    site.tree.writes.clear()
    site.resctrl.keep("/offline", THIRD)
    nothing = list(site.tree.writes)
    site.run("poda/main", 11, 14)
    site.resctrl.keep("/offline", THIRD)

    assert (nothing, site.tree.writes) == ([], ["14"])


def test_thread_that_ends_meanwhile_keeps_no_other_out(site: Site) -> None:
    site.run("poda/main", 11, 12, 13)
    site.tree.ended = {"12"}
    site.resctrl.keep("/offline", THIRD)

    assert sorted(site.tasks) == ["11", "13"]


def test_what_is_not_asked_for_is_all_there_is(site: Site) -> None:
    site.run("poda/main", 11)
    site.resctrl.keep("/offline", THIRD)
    site.tree.writes.clear()

    group = site.resctrl.keep("/offline", CacheLimits(0.3))

    assert group == CacheGroup("L3:0=7;1=7", 1)
    assert same((site.root / "resctrl/criproxy/schemata").read_text(), "L3:0=7;1=7\nMB:0=100;1=100")
    assert site.tree.writes == ["L3:0=7;1=7\n", "11"]


def test_what_an_earlier_process_has_asked_for_beside_is_all_there_is_again(site: Site) -> None:
    site.resctrl.keep("/offline", THIRD)

    Resctrl(site.tree, site.resctrl.root, site.resctrl.proc).keep("/offline", CacheLimits(None, 0.5))

    assert same((site.root / "resctrl/criproxy/schemata").read_text(), "L3:0=7ff;1=7ff\nMB:0=50;1=50")


def test_share_that_somebody_has_changed_is_put_back(site: Site) -> None:
    site.resctrl.keep("/offline", THIRD)
    (site.root / "resctrl/criproxy/schemata").write_text(WHOLE)
    site.resctrl.keep("/offline", THIRD)

    assert "L3:0=7;1=7" in (site.root / "resctrl/criproxy/schemata").read_text()


def test_group_is_removed_when_no_share_is_asked_for_any_more(site: Site) -> None:
    site.resctrl.keep("/offline", THIRD)
    before = site.there

    assert site.resctrl.keep("/offline", CacheLimits()) == CacheGroup()
    assert (before, site.there) == (True, False)


def test_cache_that_is_split_for_code_and_data_is_bounded_in_both(tmp_path: Path) -> None:
    site = made(tmp_path, schemata=WITH_CODE)

    assert site.resctrl.keep("/offline", CacheLimits(0.3)).schemata == "L3DATA:0=7 L3CODE:0=7"


@pytest.mark.parametrize(
    ("schemata", "limits", "problem"),
    [
        pytest.param(None, THIRD, "resctrl is not mounted: mount -t resctrl", id="not-mounted"),
        pytest.param("MB:0=100\n", CacheLimits(0.3), "does not divide its last-level cache", id="no-cat"),
        pytest.param("L3:0=7ff\n", CacheLimits(None, 0.5), "does not bound memory bandwidth", id="no-mba"),
    ],
)
def test_what_the_machine_can_not_do_is_told(
    tmp_path: Path, schemata: str | None, limits: CacheLimits, problem: str
) -> None:
    site = made(tmp_path, schemata=schemata or "")
    if schemata is None:
        (site.root / "resctrl/schemata").unlink()

    group = site.resctrl.keep("/offline", limits)

    assert problem in group.problem
    assert (group.schemata, site.there) == ("", False)


@pytest.mark.parametrize(
    ("highest", "options", "problem"),
    [
        pytest.param("4294967295", "rw,mba_MBps", "mounted with mba_MBps", id="mounted-in-megabytes"),
        pytest.param("2048", "rw", "in steps of 1/8 GB/s", id="amd"),
    ],
)
def test_bandwidth_that_is_not_in_percent_is_told_and_the_cache_is_bounded(
    tmp_path: Path, highest: str, options: str, problem: str
) -> None:
    site = made(tmp_path, schemata=f"MB:0={highest};1={highest}\nL3:0=7ff;1=7ff\n", options=options)

    group = site.resctrl.keep("/offline", THIRD)
    alone = site.resctrl.keep("/offline", CacheLimits(None, 0.5))

    assert (group.schemata, problem in group.problem) == ("L3:0=7;1=7", True)
    assert "MB" not in "".join(site.tree.writes)
    assert (alone.schemata, problem in alone.problem, site.there) == ("", True, False)


def test_line_that_the_kernel_refuses_is_told_with_its_reason(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: str, value: str) -> None:
        raise CgroupError(f"cannot write {value!r} to {file}: EINVAL", errno.EINVAL)

    monkeypatch.setattr(site.tree, "write", refuse)
    (site.root / "resctrl/info/last_cmd_status").write_text("Overlaps with exclusive group\n")

    with pytest.raises(CgroupError, match="EINVAL: Overlaps with exclusive group"):
        site.resctrl.keep("/offline", THIRD)


def test_processor_without_a_group_left_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CgroupError, match="no group left"):
        made(tmp_path, groups=0).resctrl.keep("/offline", THIRD)


@given(st.integers(1, 20), st.integers(0, 3), st.integers(1, 4), st.floats(0.01, 1.0))
def test_bits_lie_side_by_side_within_the_cache_and_are_no_more_than_asked_for(
    count: int, shift: int, least: int, ratio: float
) -> None:
    mask, least = ((1 << count) - 1) << shift, min(least, count)
    bits = cache_bits(CacheParts(mask, least), ratio)

    assert bits & ~mask == 0
    assert bits >> shift & ((bits >> shift) + 1) == 0
    assert least <= bits.bit_count() <= max(least, 1, ratio * count)


@given(st.sampled_from([(10, 10), (1, 1), (20, 10), (12, 12)]), st.floats(0.01, 1.0))
def test_bandwidth_is_a_step_and_no_more_than_asked_for(of: tuple[int, int], ratio: float) -> None:
    least, step = of
    percent = bandwidth_percent(BandwidthSteps(least, step), ratio)

    assert (percent - least) % step == 0
    assert least <= percent <= max(least, 100 * ratio + 1e-6)


# --- the part --------------------------------------------------------------------------------------------------------


class Here:
    """Runs on the loop what is for a thread, and sleeps not at all."""

    async def run(self, what: str, job: Any) -> Any:
        return job()


def part(site: Site, limits: CacheLimits | None) -> CacheShare:
    log: Any = FakeLog()
    shared: Any = SimpleNamespace(log=log)
    box: Any = SimpleNamespace(path="/offline")
    worker: Any = Here()
    return CacheShare(shared, box, site.resctrl, worker, limits)


def test_part_follows_its_setting_and_leaves_alone_what_is_not_its_to_set(site: Site) -> None:
    cache = part(site, None)
    seen = []
    for limits in (None, THIRD, None, CacheLimits()):
        cache.limits = limits
        asyncio.run(cache.look())
        seen.append((site.there, bool(cache.group.schemata)))

    assert seen == [(False, False), (True, True), (True, True), (False, False)]
    assert cache.shared.log.events[-1][2] == {"schemata": "all"}  # type: ignore[attr-defined]


def test_group_that_an_earlier_process_has_left_is_removed_when_no_share_is_asked_for(site: Site) -> None:
    site.resctrl.keep("/offline", THIRD)
    asyncio.run(part(site, CacheLimits()).look())

    assert not site.there


def test_part_shows_what_is_in_force_and_what_is_not(tmp_path: Path) -> None:
    cache = part(made(tmp_path, schemata="L3:0=7ff\n"), THIRD)
    asyncio.run(cache.look())

    in_force, _, problem = cache.section()["cache"].partition("; ")
    events = [event for _, event, _ in cache.shared.log.events]  # type: ignore[attr-defined]

    assert in_force == "L3:0=7 for 0 threads of offline pods"
    assert problem == "not bounded: this processor does not bound memory bandwidth (MB)"
    assert events == ["cache_share_not_in_force", "cache_share"]


def test_what_fails_is_told_once_and_tried_again(tmp_path: Path) -> None:
    site = made(tmp_path, groups=0)
    cache = part(site, THIRD)
    for _ in range(2):
        look(cache, cache.shared.log)
    problem, events = cache.failure, [event for _, event, _ in cache.shared.log.events]  # type: ignore[attr-defined]
    site.tree.groups_left = 1
    look(cache, cache.shared.log)

    assert "no group left" in problem
    assert events == ["look_failed"]
    assert (cache.failure, site.there) == ("", True)
