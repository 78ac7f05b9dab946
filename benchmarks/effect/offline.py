"""The offline side: real work in pods of one CPU, each piece of which is counted, so that it has a rate of its own."""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.effect.online import DATA
from criproxy.vocabulary.names import RESOURCES
from integration.lab.process import LabError

_BANDWIDTH = """\
#include <string.h>
#include <stdlib.h>
int main(void) {
  enum { SIZE = 64 << 20 };
  char *from = malloc(SIZE), *to = malloc(SIZE);
  memset(from, 1, SIZE);
  memset(to, 2, SIZE);
  for (int i = 0; i < 8; i++) memcpy(i % 2 ? from : to, i % 2 ? to : from, SIZE);
  return to[SIZE / 2] == 3;
}
"""
_SOURCE = "".join(
    f"int f{n}(int x) {{ int s = 0; for (int i = 0; i < x; i++) s += i * {n} ^ s >> {n % 7}; return s; }}\n"
    for n in range(60)
)

WORKS: Mapping[str, str] = {
    "compress": "/usr/bin/zstd -q -3 -c /data/corpus >/dev/null",
    "compile": "/usr/bin/gcc -O2 -c -o /dev/null /data/work.c",
    "bandwidth": "/data/bandwidth",
    "count": "i=0; while [ $i -lt 50000 ]; do i=$((i + 1)); done",
    "sort": "/usr/bin/sort -S 2M -T /data /data/lines >/dev/null",
}
"""One piece of each work, as a shell runs it; counting hardly ever enters the kernel. The mix has a worker for each."""
MIX = "mix"
PACKAGES = ("zstd", "gcc", "libc6-dev")

_ONE_CPU = {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}
ASKED: Mapping[str, str] = {RESOURCES: json.dumps({"containers": {"main": _ONE_CPU}})}
"""The annotations of each pod, as a batch system's webhook writes them. No rival in the arms reads them."""


@dataclass(frozen=True, slots=True)
class Work:
    """Pods that do pieces without end, `workers` of them, or one for each kind of a mix if that is more.

    Each appends a byte to a file of its own for every piece done.
    """

    name: str
    workers: int

    def commands(self, *, pinned: bool) -> list[tuple[str, ...]]:
        """What each pod's container runs; `pinned`: they stay on the CPUs, one after the other."""
        kinds, cpus = list(WORKS) if self.name == MIX else [self.name], sorted(os.sched_getaffinity(0))
        found: list[tuple[str, ...]] = []
        for n in range(max(self.workers, len(kinds))):
            kind = kinds[n % len(kinds)]
            loop = f"while :; do {WORKS[kind]}; printf . >>/data/done.{kind}.{n}; done"
            command = ("sh", "-c", f"PATH=/usr/bin:/bin; export PATH; {loop}")
            found.append(("/usr/bin/taskset", "-c", str(cpus[n % len(cpus)]), *command) if pinned else command)
        return found

    def done(self, data: Path) -> dict[str, int]:
        """The pieces done so far, by kind."""
        found: dict[str, int] = {}
        for file in data.glob("done.*"):
            kind = file.name.split(".")[1]
            found[kind] = found.get(kind, 0) + file.stat().st_size
        return found


def prepare(data: Path) -> None:
    """What the works work on. Raises LabError when a compiler is missing."""
    data.mkdir(exist_ok=True)
    lines = "\n".join(f"{n * 2654435761 % 2**32:010d} {'x' * (n % 40)}" for n in range(100_000))
    (data / "lines").write_text(lines)
    (data / "corpus").write_bytes((lines.encode() + os.urandom(1 << 20)) * 2)
    (data / "work.c").write_text(_SOURCE)
    (data / "bandwidth.c").write_text(_BANDWIDTH)
    compiled = subprocess.run(
        ["gcc", "-O2", "-o", data / "bandwidth", data / "bandwidth.c"], check=False, capture_output=True, text=True
    )
    if compiled.returncode != 0:
        raise LabError(f"gcc: {compiled.stderr.strip()}")


def rate_of(before: Mapping[str, int], after: Mapping[str, int], seconds: float) -> dict[str, float]:
    """Pieces per second, by kind."""
    return {kind: (count - before.get(kind, 0)) / seconds for kind, count in after.items()}


assert Path("/data") == DATA  # the works name it
