"""Prometheus, its promtool, and node_exporter: Debian's packages, unpacked and not installed, as they would start.

`python -m integration.lab.prometheus` unpacks them where they are not there yet (integration/setup does it).
"""

import json
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from integration.lab import cache
from integration.lab.ports import free_ports
from integration.lab.process import LabError, Process, wait_until

PACKAGES = ("prometheus", "prometheus-node-exporter")
UNPACK_S = 300.0
READY_S = 60.0


def program(name: str) -> Path:
    """prometheus, promtool or prometheus-node-exporter. Raises LabError."""
    folder = cache.folder() / "prometheus"
    with cache.locked(folder):
        if not folder.exists():
            _unpack(folder)
    cache.use(folder)
    return folder / "usr/bin" / name


def _unpack(folder: Path) -> None:
    """All of it, or nothing."""
    if shutil.which("apt-get") is None:
        raise LabError(f"Debian's apt-get fetches {' and '.join(PACKAGES)}: there is none here")
    with tempfile.TemporaryDirectory(prefix="criproxy-prometheus-", dir=folder.parent) as made:
        if not _fetched(made):
            subprocess.run(["apt-get", "-q", "update"], check=False, capture_output=True, timeout=UNPACK_S)
            if not _fetched(made):
                raise LabError(f"apt-get download {' '.join(PACKAGES)} fails: is there a network?")
        root = Path(made) / "root"
        for package in Path(made).glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, root], check=True, timeout=UNPACK_S)
        root.rename(folder)


def _fetched(folder: str) -> bool:
    command = ["apt-get", "-q", "download", "-o", "APT::Sandbox::User=root", *PACKAGES]
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, timeout=UNPACK_S).returncode == 0


class Prometheus:
    """A server in `folder` that scrapes each second, and evaluates the rules of the file `rules` as often."""

    def __init__(self, folder: Path, scrapes: Sequence[Mapping[str, Any]], rules: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (self.port,) = free_ports(1)
        file = folder / "prometheus.yml"
        timing = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        file.write_text(yaml.safe_dump({"global": timing, "rule_files": [str(rules)], "scrape_configs": [*scrapes]}))
        arguments = (f"--config.file={file}", f"--storage.tsdb.path={folder}/data", "--log.level=warn")
        listens = f"--web.listen-address=127.0.0.1:{self.port}"
        self.process = Process("prometheus", [program("prometheus"), *arguments, listens], folder / "log")
        try:
            wait_until(self._is_ready, READY_S, "Prometheus to be ready")
        except BaseException:
            self.process.stop()
            raise

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The vector that an expression is now; a scalar is one, too. Raises LabError for what is no PromQL."""
        found = self._asked("query", query=expr)
        if found["resultType"] == "scalar":
            return [{"metric": {}, "value": found["result"]}]
        return list(found["result"])

    def firing(self) -> set[str]:
        """The alerts that fire, or wait to."""
        return {one["labels"]["alertname"] for one in self._asked("alerts")["alerts"]}

    def targets(self) -> dict[str, str]:
        """How each target's last scrape went ("": well), by its job."""
        return {one["labels"]["job"]: one["lastError"] for one in self._asked("targets")["activeTargets"]}

    def _asked(self, what: str, **asked: str) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.port}/api/v1/{what}?{urllib.parse.urlencode(asked)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return dict(json.load(answer)["data"])
        except urllib.error.HTTPError as error:
            raise LabError(f"Prometheus on {asked}: {error.read().decode()}") from error

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


if __name__ == "__main__":
    program("prometheus")
