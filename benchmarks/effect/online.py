"""The online side: real servers, each in a pod of its own, and the open-loop load on them."""

import json
import os
import subprocess
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.stage import Helper
from integration.lab.process import LabError, wait_until

HOST = {Path(at): Path(of) for at, of in (("/usr", "/usr"), ("/lib", "/usr/lib"), ("/lib64", "/usr/lib64"))}
"""What a container needs of the host to run its programs."""
DATA = Path("/data")
POSTGRES = Path("/usr/lib/postgresql/15/bin")
_SCALE = "10"
_CLIENTS = 8
_SUM = """\
\\set aid random(1, 999000)
SELECT sum(abalance) FROM pgbench_accounts WHERE aid BETWEEN :aid AND :aid + 999;
"""
"""A thousand rows by their index: 0.2 ms of CPU and more, so that the server has more to do than pgbench."""
_NGINX = """\
daemon off;
user root;
worker_processes {workers};
error_log stderr;
pid {data}/nginx.pid;
events {{}}
http {{
  access_log off;
  client_body_temp_path {data}/tmp;
  proxy_temp_path {data}/tmp;
  fastcgi_temp_path {data}/tmp;
  scgi_temp_path {data}/tmp;
  uwsgi_temp_path {data}/tmp;
  keepalive_requests 1000000;
  keepalive_timeout 1h;
  types {{ application/json json; }}
  gzip on;
  gzip_types application/json;
  gzip_comp_level 6;
  server {{
    listen unix:{data}/server.sock;
    root {data};
  }}
}}
"""
_AHEAD = ("chrt", "--fifo", "1", "taskset", "-c", str(min(os.sched_getaffinity(0))))
"""As `benchmarks.effect.phase.node` has the other generators."""


@dataclass(frozen=True, slots=True)
class Load:
    """What came of the load of one phase. `latencies_s` count from when a request was due."""

    latencies_s: "array[float]"
    late_s: float | None
    """The 99th percentile of how late requests were sent; None: the generator does not say."""
    generator_s: float
    """CPU time of the generator, in s."""
    unanswered: int = 0
    """Requests that were sent, and count as answered after `openloop`'s grace."""


class Server(Protocol):
    """A server and what loads it."""

    @property
    def name(self) -> str: ...

    @property
    def packages(self) -> Sequence[str]:
        """Debian's, that it needs."""
        ...

    @property
    def command(self) -> Sequence[str]:
        """What its container runs."""
        ...

    @property
    def forks(self) -> bool:
        """Whether a process of its own answers each connection, and ends with it."""
        ...

    def prepare(self, data: Path) -> None:
        """Make what the server needs in its directory, which its container sees as /data."""
        ...

    def connect(self, data: Path) -> None:
        """Wait until it serves, fill it, and start what loads it."""
        ...

    def load(self, segments: Sequence[tuple[float, float]], seed: int) -> Load:
        """Load it at these rates (requests per s) for so many seconds each, one after the other.

        The same seed makes the same arrivals.
        """
        ...

    def pids(self) -> Sequence[int]:
        """The processes of the generator."""
        ...

    def close(self) -> None: ...


class SocketServer:
    """One that `benchmarks.effect.openloop` speaks with."""

    forks: bool = False

    def __init__(self, name: str, package: str, command: Sequence[str]) -> None:
        self.name = name
        self.packages: Sequence[str] = (package,)
        self.command: Sequence[str] = command
        self._client: Helper | None = None
        self._data = Path()

    def prepare(self, data: Path) -> None:
        data.mkdir(exist_ok=True)

    def connect(self, data: Path) -> None:
        self._data = data
        socket = data / "server.sock"
        wait_until(socket.exists, 60, f"{self.name}'s socket")
        self._client = Helper("benchmarks.effect.openloop", self.name, str(socket))

    def load(self, segments: Sequence[tuple[float, float]], seed: int) -> Load:
        assert self._client is not None
        file = self._data / "latencies"
        self._client.tell(file, seed, *(number for segment in segments for number in segment))
        answer: Mapping[str, float] = json.loads(self._client.lines.get(timeout=60.0 + sum(s for _, s in segments)))
        latencies = array("f")
        latencies.frombytes(file.read_bytes())
        return Load(latencies, answer["late_s"], answer["cpu_s"], int(answer["unanswered"]))

    def pids(self) -> Sequence[int]:
        return () if self._client is None else (self._client.pid,)

    def close(self) -> None:
        if self._client is not None:
            self._client.__exit__(None, None, None)


class Nginx(SocketServer):
    """nginx that compresses a page for each answer, as it does for what an application behind it made."""

    def __init__(self) -> None:
        super().__init__("nginx", "nginx-light", ("/usr/sbin/nginx", "-c", str(DATA / "nginx.conf")))

    def prepare(self, data: Path) -> None:
        super().prepare(data)
        records = [{"id": n * 2654435761 % 2**32, "name": "x" * (n % 9), "price": n * 7919 % 997} for n in range(1500)]
        (data / "page.json").write_text(json.dumps(records))
        (data / "nginx.conf").write_text(_NGINX.format(data=DATA, workers=max(1, len(os.sched_getaffinity(0)) - 1)))


class Postgres:
    """PostgreSQL under `pgbench --rate`, whose arrivals are Poisson's and whose latencies count from the schedule."""

    name: str = "postgresql"
    forks: bool = True
    packages: Sequence[str] = ("postgresql-15",)
    command: Sequence[str] = (
        *("/usr/bin/setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", str(POSTGRES / "postgres")),
        *("-D", str(DATA / "db"), "-k", str(DATA), "-c", "listen_addresses="),
    )

    def __init__(self) -> None:
        self._data = Path()

    def prepare(self, data: Path) -> None:
        data.mkdir(mode=0o755, exist_ok=True)
        _run("/bin/chown", "postgres:postgres", str(data))
        # As /data, since the server's own user can't reach the lab's directory.
        inner = f"mount --bind {data} /mnt && exec setpriv --reuid=postgres --regid=postgres --clear-groups {POSTGRES}"
        _run("unshare", "-m", "sh", "-c", f"{inner}/initdb -D /mnt/db --auth=trust")

    def connect(self, data: Path) -> None:
        self._data = data
        ready = lambda: subprocess.run(self._tool("pg_isready", "-q"), check=False).returncode == 0  # noqa: E731
        wait_until(ready, 120, "PostgreSQL to answer")
        subprocess.run(self._tool("pgbench", "-i", "-q", "-s", _SCALE, "postgres"), check=True, capture_output=True)
        (data / "sum.sql").write_text(_SUM)

    def load(self, segments: Sequence[tuple[float, float]], seed: int) -> Load:
        latencies, cpu_s = array("f"), 0.0
        for number, (rate, seconds) in enumerate(segments):
            prefix = self._data / f"log{number}"
            for old in self._data.glob(f"log{number}.*"):
                old.unlink()
            command = self._tool(
                *("pgbench", "-n", "-f", str(self._data / "sum.sql"), "-c", str(_CLIENTS), "-j", "1"),
                *("-T", str(max(1, round(seconds)))),
                *("--rate", str(rate), f"--random-seed={seed + number}", "--log", f"--log-prefix={prefix}", "postgres"),
            )
            before = os.times()
            done = subprocess.run([*_AHEAD, *command], check=False, capture_output=True, text=True)
            after = os.times()
            cpu_s += after.children_user + after.children_system - before.children_user - before.children_system
            if done.returncode != 0:
                raise LabError(f"pgbench: {done.stderr.strip()}")
            for file in self._data.glob(f"log{number}.*"):
                for line in file.read_text().splitlines():
                    latencies.append(int(line.split()[2]) / 1e6)
        return Load(latencies, None, cpu_s)  # pgbench's lag counts into the latency, with its wait for a free client

    def pids(self) -> Sequence[int]:
        return ()

    def close(self) -> None:
        pass

    def _tool(self, name: str, *arguments: str) -> list[str]:
        return [str(POSTGRES / name), "-h", str(self._data), "-U", "postgres", *arguments]


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise LabError(f"{' '.join(command)}: {done.stderr.strip()}")


def servers() -> dict[str, Server]:
    """All of them, by name."""
    socket = str(DATA / "server.sock")
    redis = ("/usr/bin/redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--dir", str(DATA))
    memcached = ("/usr/bin/memcached", "-u", "root", "-t", "2", "-s", socket)
    known: tuple[Server, ...] = (
        SocketServer("redis", "redis-server", redis),
        SocketServer("memcached", "memcached", memcached),
        Nginx(),
        Postgres(),
    )
    return {server.name: server for server in known}
