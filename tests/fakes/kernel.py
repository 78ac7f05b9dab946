"""A cgroup tree in a plain directory that answers as the kernel does: files appear with mkdir, bad values have errnos.

Memory is modelled per cgroup: `anon` can't be reclaimed, `cache` can. A limit that would make the kernel kill raises
OomKill, which no driver catches.
"""

import errno
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from criproxy.cgroup.driver import CgroupError
from criproxy.cgroup.files import parse_nested_keyed
from criproxy.cgroup.tree import Tree
from criproxy.model.cpulist import format_cpus

NO_LIMIT_V1 = 9223372036854771712
V1 = ("cpu,cpuacct", "cpuset", "hugetlb", "memory", "blkio", "pids", "systemd", "unified")
_V1_FILES = {
    "cpu,cpuacct": {
        "cpu.shares": "1024",
        "cpu.idle": "0",
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "-1",
        "cpu.stat": "nr_periods 9\nnr_throttled 3\nthrottled_time 2500000000",
        "cpuacct.usage": "1500000000",
        "tasks": "",
    },
    "cpuset": {"cpuset.cpus": "", "cpuset.mems": ""},
    "blkio": {
        "blkio.weight": "500",
        "blkio.bfq.weight": "100",
        "blkio.throttle.io_service_bytes_recursive": "Total 0",
        "blkio.throttle.io_serviced_recursive": "Total 0",
        "blkio.bfq.io_service_bytes_recursive": "Total 0",
        "blkio.bfq.io_serviced_recursive": "Total 0",
    },
    "hugetlb": {
        "hugetlb.2MB.limit_in_bytes": str(NO_LIMIT_V1),
        "hugetlb.2MB.max_usage_in_bytes": "0",
        "hugetlb.2MB.usage_in_bytes": "0",
    },
    "memory": {
        "memory.limit_in_bytes": str(NO_LIMIT_V1),
        "memory.memsw.limit_in_bytes": str(NO_LIMIT_V1),
        "memory.use_hierarchy": "1",
        "memory.force_empty": "",
        "memory.stat": "cache 5\ntotal_inactive_file 4096\nrss 1\ntotal_rss 8192\ntotal_shmem 100\n"
        "workingset_refault_file 1\ntotal_workingset_refault_file 7",
    },
    "pids": {"pids.max": "max", "pids.current": "0"},
}
_V2_FILES = {
    "cpu": {
        "cpu.weight": "100",
        "cpu.idle": "0",
        "cpu.max": "max 100000",
        "cpu.stat": "usage_usec 1500000\nnr_throttled 3\nthrottled_usec 2500000",
    },
    "cpuset": {"cpuset.cpus": "", "cpuset.cpus.effective": "0-3", "cpuset.mems": ""},
    "hugetlb": {"hugetlb.2MB.max": "max", "hugetlb.2MB.current": "0"},
    "io": {"io.weight": "default 100", "io.stat": "", "io.max": ""},
    "memory": {
        "memory.min": "0",
        "memory.low": "0",
        "memory.high": "max",
        "memory.max": "max",
        "memory.swap.max": "max",
        "memory.reclaim": "",
        "memory.oom.group": "0",
        "memory.stat": "anon 8192\nshmem 100\ninactive_file 4096\nworkingset_refault_anon 3\nworkingset_refault_file 7",
    },
    "pids": {"pids.max": "max", "pids.current": "0"},
}
_V2_CORE_FILES = {
    "cgroup.threads": "",
    "cgroup.pressure": "1",
    "cgroup.kill": "",
    **{f"{name}.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0" for name in ("cpu", "memory", "io")},
}
"""In every cgroup, whatever its controllers; but the root has no switch for pressure."""

MEMINFO = "MemTotal: 1000 kB\nMemFree: 300 kB\nMemAvailable: 400 kB\nInactive(file): 200 kB\n"
DISKSTATS = "   8       0 sda 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"


class OomKill(BaseException):
    """The kernel would have killed a process."""


class FakeKernel(Tree):
    """`version` 1 or 2; `lacks` names files that this kernel does not have. `cpuset_v2_mode`: the mount option.

    `cpusets`: v2 has the controller, too.
    """

    def __init__(self, root: Path, version: int, lacks: tuple[str, ...] = (), *, cpusets: bool = False) -> None:
        super().__init__()
        self.root, self.version, self.lacks = str(root), version, lacks
        self.anon: dict[str, int] = {}
        self.cache: dict[str, int] = {}
        self.writes: list[tuple[str, str]] = []
        self.contested: set[str] = set()
        self.cpuset_v2_mode = False
        self.takes_swappiness = True
        (root / "self").mkdir()
        (root / "self/mountinfo").write_text(self._mountinfo())
        (root / "self/schedstat").write_text("5000 700 3\n")
        (root / "meminfo").write_text(MEMINFO)
        (root / "diskstats").write_text(DISKSTATS)
        (root / "cmdline").write_text("quiet\n")
        (root / "loadavg").write_text("2.08 2.19 2.79 2/554 23115\n")
        (root / "pressure").mkdir()
        (root / "sys/kernel").mkdir(parents=True)
        (root / "sys/kernel/pid_max").write_text("32768\n")
        (root / "sys/kernel/threads-max").write_text("60000\n")
        if version == 1:
            for hierarchy in V1:
                self._populate(f"{root}/{hierarchy}", hierarchy)
            Path(root, "cpuset/cpuset.cpus").write_text("0-3")
            Path(root, "cpuset/cpuset.mems").write_text("0")
        else:
            held = f"cpu {'cpuset ' if cpusets else ''}hugetlb io memory misc pids"
            self._populate(f"{root}/cg", None, controllers=held)
            self.idle(dict.fromkeys(range(4), 0.0))
            self.idle({0: 10.0, 1: 10.0, 2: 5.5, 3: 5.5})

    def file(self, path: str) -> str:
        return Path(self.root, path).read_text().strip()

    def where(self, controller: str, path: str) -> str:
        """The directory of a cgroup, in the hierarchy of this controller."""
        hierarchy = "cpu,cpuacct" if controller in ("cpu", "cpuacct") else controller
        return f"{self.root}/{'cg' if self.version == 2 else hierarchy}{path}"

    def text(self, path: str, v1: str, v2: str = "") -> str:
        """A cgroup's file: `v1` in its controller's hierarchy, or `v2`, by default of the same name."""
        name = v1 if self.version == 1 else v2 or v1
        return Path(self.where(name.partition(".")[0], path), name).read_text().strip()

    def use(self, path: str, anon: int = 0, cache: int = 0) -> None:
        """A cgroup has so much memory from now on."""
        directory = self.where("memory", path)
        self.anon[directory], self.cache[directory] = anon, cache

    def by_hand(self, path: str, value: str) -> None:
        """Somebody else writes a file."""
        Path(self.root, path).write_text(value)

    def idle(self, seconds: Mapping[int, float]) -> None:
        """The CPUs that are online, and how long each was idle since boot (v2)."""
        ticks = {cpu: round(s * os.sysconf("SC_CLK_TCK")) for cpu, s in seconds.items()}
        lines = [f"cpu 1 2 3 {sum(ticks.values())} 0 0 0 0 0 0", *(f"cpu{c} 1 2 3 {t} 0 0 0" for c, t in ticks.items())]
        self.by_hand("stat", "\n".join([*lines, "intr 7", ""]))

    def plug(self, cpus: str) -> None:
        """CPUs come and go (v1): the root has those there are, all below it lose those that have gone."""
        self.by_hand("cpuset/cpuset.cpus", cpus)
        for directory in self.below(f"{self.root}/cpuset")[1:]:
            left = sorted(_numbers(super().read(f"{directory}/cpuset.cpus")) & _numbers(cpus))
            Path(directory, "cpuset.cpus").write_text(",".join(map(str, left)))

    # --- what the kernel does --------------------------------------------------------------------------------------

    def read(self, file: str) -> str:
        directory, name = os.path.split(file)
        if name in ("memory.usage_in_bytes", "memory.memsw.usage_in_bytes", "memory.current"):
            if not os.path.isdir(directory):
                raise _error(errno.ENOENT, file)
            return str(self._usage(directory))
        return super().read(file)

    def read_often(self, file: str) -> str:
        """Nothing stays open: what is removed here does not answer ENODEV."""
        return self.read(file)

    def read_open(self, fd: int, file: str) -> str:
        """A file of a process that has ended answers ESRCH. Source: fs/proc/base.c, proc_single_show."""
        if not os.fstat(fd).st_nlink:
            raise _error(errno.ESRCH, file)
        return super().read_open(fd, file)

    def write(self, file: str, value: str) -> None:
        directory, name = os.path.split(file)
        if not os.path.exists(file):
            raise _error(errno.EACCES, file)
        self.writes.append((file, value))
        if file in self.contested:
            return
        checker = {
            "cpu.shares": self._weight,
            "cpu.weight": self._weight,
            "cpu.cfs_quota_us": self._quota,
            "cpuset.cpus": self._cpuset,
            "cpuset.mems": self._cpuset,
            "memory.limit_in_bytes": self._limit,
            "memory.memsw.limit_in_bytes": self._limit,
            "memory.reclaim": self._reclaim_order,
            "memory.force_empty": self._force_empty,
            "memory.high": self._high,
            "memory.max": self._max,
            "io.max": self._io_max,
            "io.cost.qos": self._io_cost_qos,
            "cgroup.kill": self._kill_below,
            "cgroup.subtree_control": self._subtree_control,
        }.get(name)
        held = checker(directory, name, value) if checker else value
        Path(file).write_text(held)

    def mkdir(self, directory: str) -> bool:
        made = super().mkdir(directory)
        if made and self.version == 1:
            self._populate(directory, directory.removeprefix(f"{self.root}/").split("/")[0])
        elif made:
            parent = Path(directory).parent
            self._populate(directory, None, controllers=(parent / "cgroup.subtree_control").read_text().strip())
        return made

    def rmdir(self, directory: str) -> None:
        if not os.path.isdir(directory):
            raise _error(errno.ENOENT, directory)
        if self.children(directory) or self.read(f"{directory}/cgroup.procs"):
            raise _error(errno.EBUSY, directory)
        shutil.rmtree(directory)

    def kill(self, pids: Callable[[], Collection[int]]) -> None:
        """They end at once."""
        doomed = set(pids())
        for file in Path(self.root).rglob("cgroup.procs"):
            left = [pid for pid in file.read_text().split() if int(pid) not in doomed]
            file.write_text("\n".join(left))

    # --- the rules of single files ---------------------------------------------------------------------------------

    def _weight(self, directory: str, name: str, value: str) -> str:
        idle = Path(directory, "cpu.idle")
        if idle.exists() and idle.read_text().strip() == "1":
            raise _error(errno.EINVAL, f"{directory}/{name}")
        return value

    def _quota(self, directory: str, name: str, value: str) -> str:
        quota = int(value)
        above, below = (
            Path(directory).parent / name,
            [Path(directory, child, name) for child in self.children(directory)],
        )
        too_small = 0 <= quota < 1000
        above_parent = quota > 0 and above.exists() and 0 < int(above.read_text()) < quota
        below_child = quota > 0 and any(int(child.read_text()) > quota for child in below)
        if too_small or above_parent or below_child:
            raise _error(errno.EINVAL, f"{directory}/{name}")
        return value

    def _cpuset(self, directory: str, name: str, value: str) -> str:
        if self.version == 2:
            if not _numbers(value) and super().read(f"{directory}/{name}") and self._is_populated(directory):
                raise _error(errno.ENOSPC, f"{directory}/{name}")
            return format_cpus(_numbers(value))
        if self.cpuset_v2_mode:
            return value
        if Path(directory, "cgroup.procs").read_text() and not _numbers(value):
            raise _error(errno.ENOSPC, f"{directory}/{name}")
        parent = _numbers((Path(directory).parent / name).read_text())
        if not parent or not _numbers(value) <= parent:
            raise _error(errno.EACCES, f"{directory}/{name}")
        for child in self.children(directory):
            if not _numbers(Path(directory, child, name).read_text()) <= _numbers(value):
                raise _error(errno.EBUSY, f"{directory}/{name}")
        return value

    def _is_populated(self, directory: str) -> bool:
        return any(super(FakeKernel, self).read(f"{below}/cgroup.procs") for below in self.below(directory))

    def _limit(self, directory: str, name: str, value: str) -> str:
        size = NO_LIMIT_V1 if value == "-1" else int(value) // 4096 * 4096
        limit = int(Path(directory, "memory.limit_in_bytes").read_text())
        memsw_file = Path(directory, "memory.memsw.limit_in_bytes")
        memsw = int(memsw_file.read_text()) if memsw_file.exists() else NO_LIMIT_V1
        if size > memsw if name == "memory.limit_in_bytes" else size < limit:
            raise _error(errno.EINVAL, f"{directory}/{name}")
        self._reclaim(directory, size)
        if self._usage(directory) > size:
            raise _error(errno.EBUSY, f"{directory}/{name}")
        return str(size)

    def _high(self, directory: str, name: str, value: str) -> str:
        if value != "max":
            self._reclaim(directory, int(value))
        return value

    def _max(self, directory: str, name: str, value: str) -> str:
        if value != "max":
            self._reclaim(directory, int(value))
            if self._usage(directory) > int(value):
                raise OomKill(f"{directory}/{name} = {value}")
        return value

    def _reclaim_order(self, directory: str, name: str, value: str) -> str:
        size, *options = value.split()
        if options and not self.takes_swappiness:
            raise _error(errno.EINVAL, f"{directory}/{name}")
        before = self._usage(directory)
        self._reclaim(directory, before - int(size))
        if self._usage(directory) > before - int(size):
            raise _error(errno.EAGAIN, f"{directory}/{name}")
        return ""

    def _force_empty(self, directory: str, name: str, value: str) -> str:
        self._reclaim(directory, 0)
        return ""

    def _io_cost_qos(self, directory: str, name: str, value: str) -> str:
        """A line for each disk that was ever named."""
        lines = dict(line.split(" ", 1) for line in Path(directory, name).read_text().splitlines())
        number, _, given = value.partition(" ")
        lines[number] = f"{given} ctrl=auto"
        return "\n".join(f"{disk} {line}" for disk, line in lines.items())

    def _kill_below(self, directory: str, name: str, value: str) -> str:
        for below in self.below(directory):
            Path(below, "cgroup.procs").write_text("")
        return ""

    def _io_max(self, directory: str, name: str, value: str) -> str:
        """A line sets what it names of one disk; one without any limit has no line."""
        number, *changed = value.split()
        held = parse_nested_keyed(Path(directory, name).read_text())
        limits = held.setdefault(number, dict.fromkeys(("rbps", "wbps", "riops", "wiops"), "max"))
        if dict(one.split("=") for one in changed).keys() - limits.keys():
            raise _error(errno.EINVAL, f"{directory}/{name}")
        limits.update(dict(one.split("=") for one in changed))
        shown = {disk: of for disk, of in held.items() if set(of.values()) != {"max"}}
        return "\n".join(f"{disk} " + " ".join(f"{key}={of[key]}" for key in of) for disk, of in shown.items())

    def _subtree_control(self, directory: str, name: str, value: str) -> str:
        enabled = set(Path(directory, name).read_text().split())
        available = set(Path(directory, "cgroup.controllers").read_text().split())
        wanted = {word.removeprefix("+") for word in value.split()}
        if not wanted <= available:
            raise _error(errno.ENOENT, f"{directory}/{name}")
        for child in self.children(directory):
            Path(directory, child, "cgroup.controllers").write_text(" ".join(sorted(enabled | wanted)))
            self._files(f"{directory}/{child}", [_V2_FILES[word] for word in wanted if word in _V2_FILES])
        return " ".join(sorted(enabled | wanted))

    # --- memory and files ------------------------------------------------------------------------------------------

    def _usage(self, directory: str) -> int:
        sums = [*self.anon.items(), *self.cache.items()]
        return sum(size for where, size in sums if f"{where}/".startswith(f"{directory}/"))

    def _reclaim(self, directory: str, size: int) -> None:
        for where in self.cache:
            if f"{where}/".startswith(f"{directory}/"):
                self.cache[where] -= min(self.cache[where], max(0, self._usage(directory) - size))

    def _populate(self, directory: str, hierarchy: str | None, controllers: str = "") -> None:
        os.makedirs(directory, exist_ok=True)
        Path(directory, "cgroup.procs").write_text("")
        if hierarchy is not None:
            limits_the_root = hierarchy not in ("hugetlb", "pids")
            if limits_the_root or directory != f"{self.root}/{hierarchy}":
                self._files(directory, [_V1_FILES.get(hierarchy, {})])
            return
        self._files(directory, [{"cgroup.controllers": controllers, "cgroup.subtree_control": ""}])
        if directory != f"{self.root}/cg":
            self._files(directory, [_V2_CORE_FILES])
            self._files(directory, [_V2_FILES[name] for name in controllers.split() if name in _V2_FILES])

    def _files(self, directory: str, sets: list[dict[str, str]]) -> None:
        for name, content in (item for files in sets for item in files.items()):
            if name not in self.lacks:
                Path(directory, name).write_text(content)

    def _mountinfo(self) -> str:
        if self.version == 2:
            return f"38 31 0:30 / {self.root}/cg rw - cgroup2 cgroup2 rw,nsdelegate\n"
        options = {"systemd": "xattr,name=systemd"}
        lines = [f"1 0 0:1 / {self.root}/{h} rw - cgroup cgroup rw,{options.get(h, h)}" for h in V1 if h != "unified"]
        return "\n".join([*lines, f"9 0 0:9 / {self.root}/unified rw - cgroup2 cgroup2 rw", ""])


def _numbers(text: str) -> set[int]:
    ends = [part.partition("-") for part in text.split(",") if part.strip()]
    return {number for first, _, last in ends for number in range(int(first), int(last or first) + 1)}


def _error(number: int, what: str) -> CgroupError:
    return CgroupError(f"cannot touch {what}: {errno.errorcode[number]} ({os.strerror(number)})", number)
