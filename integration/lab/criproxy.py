"""A criproxy of the lab's, run from this checkout as a user would: `criproxy run --config F`."""

import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from criproxy.observe import client
from criproxy.vocabulary.unboundable import HOST_PATHS
from integration.lab.directory import socket_path
from integration.lab.ports import free_ports
from integration.lab.process import LabError, Process, Service, all_pids, argv_of, kill_all

START_S = 180
"""Enough for an emulated node that others keep busy, too."""
ANSWER_S = 30
"""What is busy answers later than at once; nobody's port refuses at once."""
CHECKOUT = Path(__file__).resolve().parents[2]

Config = Mapping[str, Mapping[str, Any]]

ENGINES = ("grpc", "relay")
ENGINE = os.environ.get("CRIPROXY_ENGINE", "relay")
"""What carries the calls where a test's config does not say it: CRIPROXY_ENGINE=grpc runs any test over gRPC."""

QUICK: Mapping[str, Any] = {"predictor": "histogram"}
"""For [control]: the box opens after three samples; the calibrated predictor learns for a minute first."""

UNJUDGED: Mapping[str, Any] = {"enabled": False}
"""For [interference], in tests that others share the machine with, and that are not about harm: what others make online
pods wait for is no harm of the box's, yet may be taken for it, and then no offline pod is let in."""

LETS_THE_LAB: Mapping[str, Any] = {
    "refuse_host_namespaces": ["pid", "ipc"],
    "refuse_host_paths": [path for path in HOST_PATHS if path not in ("/run", "/var/run")],
    "writable_host_paths": ["/"],
}
"""For [hardening]: the lab's pods have no network of their own, a lab's directory is in /run, and a test's in /tmp."""


def static(cores: float, memory_bytes: int = 256 << 20, **tables: Mapping[str, Any]) -> Config:
    """Colocation is on, under limits that stay; others use this machine, too: no guard. `tables` say more of each."""
    own: Config = {
        "colocation": {"enabled": True},
        "control": {"policy": "static"},
        "cpu": {"static_cores": cores},
        "memory": {"static_bytes": memory_bytes},
        "guard": {"enabled": False},
    }
    return merged(own, tables)


class Criproxy(Service):
    """A criproxy in `directory` (a lab's), before the runtime at the socket `runtime`.

    `config` is what its file says, by table and key; sockets, port and checkpoint are the lab's unless it names them.
    `socket` is where kubelet connects, `asked_at` where its status is asked for, `address` where Prometheus asks
    (host:port), `log` its log.
    """

    def __init__(
        self, directory: Path, runtime: Path, config: Config | None = None, python: Path = Path(sys.executable)
    ) -> None:
        """Raises LabError when the directory's name is too long for sockets."""
        self.directory = directory.absolute()
        super().__init__("criproxy", self.directory / "criproxy.log")
        self.socket = socket_path(directory, "criproxy.sock")
        self.asked_at = socket_path(directory, "criproxy-status.sock")
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self.config_file = self.directory / "criproxy.toml"
        self._runtime = runtime.absolute()
        self._python = python
        self.configure(config or {})

    def configure(self, config: Config | str) -> None:
        """Write the configuration; text is written as it is. criproxy takes it up when it sees the file or `reload`."""
        self.directory.mkdir(parents=True, exist_ok=True)
        unseen = self.config_file.with_suffix(".new")
        unseen.write_text(config if isinstance(config, str) else toml_file(self._complete(config)))
        unseen.rename(self.config_file)

    def start(
        self, until_ready: bool = True, *, options: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> None:
        """Start it and return once it is ready; without `until_ready`, once it listens (the runtime may be away).

        `options` are added to its command line, `env` to its environment. Raises LabError when it ends, or after a
        minute.
        """
        command = [*self._runs_in(), *self._program(), "run", "--config", self.config_file, *options]
        self._process = Process("criproxy", command, self.log, {"PYTHONPATH": python_path(), **(env or {})})
        if until_ready:
            self._process.wait_until(self.is_ready, START_S, "readiness")
        else:
            self._process.wait_until(lambda: self.http("/healthz")[0] == 200, START_S, "an answer to /healthz")

    def reload(self) -> None:
        """SIGHUP."""
        self._running().signal(signal.SIGHUP)

    def is_ready(self) -> bool:
        return self.http("/readyz")[0] == 200

    def http(self, path: str) -> tuple[int, str]:
        """The status and body of a GET at its status socket; (0, "") when nobody answers."""
        try:
            return client.fetch(self.asked_at, path, ANSWER_S)
        except client.NotRunningError:
            return 0, ""

    def status(self) -> Any:
        """What /status says, parsed. Raises LabError when it does not answer with 200."""
        code, body = self.http("/status")
        if code != 200:
            raise LabError(f"{self.asked_at} answered {code} to /status: {body}")
        return json.loads(body)

    def metric(self, name: str) -> float:
        """A metric without labels. Raises LabError when there is none."""
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.http("/metrics")[1], re.MULTILINE)
        if found is None:
            raise LabError(f"/metrics has no {name}")
        return float(found[1])

    def problems(self, about: str = "") -> list[str]:
        """The status's problems that name this."""
        return [problem for problem in self.status()["problems"] if about in problem]

    def events(self, *names: str) -> list[dict[str, Any]]:
        """The log so far, a parsed event per line, of these names or of all; lines that are none are left out."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                if isinstance(event := json.loads(line), dict) and (not names or event.get("event") in names):
                    found.append(event)
        return found

    def _runs_in(self) -> Sequence[str | Path]:
        """What comes before its command."""
        return ()

    def _program(self) -> Sequence[str | Path]:
        return self._python, "-m", "criproxy"

    def _complete(self, config: Config) -> Config:
        own: Config = {
            "proxy": {"listen": str(self.socket), "runtime": str(self._runtime), "engine": ENGINE},
            "observe": {"address": self.address},
            "control": {"checkpoint": str(self.directory / "criproxy.checkpoint")},
            "hardening": LETS_THE_LAB,
        }
        return merged(own, config)


def merged(first: Config, second: Config) -> Config:
    """The keys of both, table by table, the second's before the first's."""
    return {table: {**first.get(table, {}), **second.get(table, {})} for table in {**first, **second}}


def python_path() -> str:
    """This checkout before whatever else packages are taken from."""
    return os.pathsep.join([str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])])


def end(directory: Path) -> None:
    """End the criproxy of the lab in `directory`, whoever started it."""
    config = str(directory.absolute() / "criproxy.toml")
    kill_all(lambda: [pid for pid in all_pids() if (argv := argv_of(pid)) and "criproxy" in argv and config in argv])


def toml_file(config: Config) -> str:
    tables = [
        [f"[{table}]", *(f"{key} = {_toml(value)}" for key, value in keys.items())] for table, keys in config.items()
    ]
    return "\n".join(line for table in tables for line in table)


def _toml(value: Any) -> str:
    """A value in TOML v1.0; JSON's spelling of scalars is TOML's."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(entry) for entry in value) + "]"
    return json.dumps(value, ensure_ascii=False)
