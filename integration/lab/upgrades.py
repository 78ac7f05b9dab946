"""Upgrades of a lab's criproxy: ask for one, tell who serves, and have the code change under it as a package does."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from integration.lab.criproxy import CHECKOUT, Criproxy, python_path
from integration.lab.process import END_S, all_pids, argv_of, is_running, wait_until

UPGRADE_S = 240


def serving(criproxy: Criproxy) -> int:
    """The pid that the public socket leads to; 0: nobody's."""
    try:
        return int(os.readlink(criproxy.socket).rpartition(".")[2])
    except FileNotFoundError:
        return 0


def ask(criproxy: Criproxy) -> int:
    """SIGUSR2 to who serves; returns its pid."""
    os.kill(pid := serving(criproxy), signal.SIGUSR2)
    return pid


def upgrade(criproxy: Criproxy) -> float:
    """Have it replaced; returns the seconds until another serves. Raises LabError."""
    began_s = time.monotonic()
    old = ask(criproxy)
    wait_until(lambda: serving(criproxy) not in (0, old), UPGRADE_S, "another criproxy to serve", criproxy.log, 0.002)
    return time.monotonic() - began_s


def command(criproxy: Criproxy, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """`criproxy upgrade`."""
    argv: list[str | Path] = [sys.executable, "-m", "criproxy", "upgrade", "--config", criproxy.config_file]
    environ = {**os.environ, "PYTHONPATH": python_path(), **(env or {})}
    return subprocess.run(argv, env=environ, text=True, capture_output=True, timeout=UPGRADE_S, check=False)


def pids(criproxy: Criproxy) -> list[int]:
    """All processes that run with its config, whoever started them."""
    wanted = {"run", str(criproxy.config_file)}
    return [pid for pid in all_pids() if wanted <= set(argv_of(pid)) and is_running(pid)]


def stop_all(criproxy: Criproxy, timeout_s: float = END_S) -> None:
    """SIGTERM to all of them, as a service manager does. Raises LabError when one does not end."""
    for pid in pids(criproxy):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    wait_until(lambda: pids(criproxy) == [], timeout_s, "all criproxies to end", criproxy.log)


class Code:
    """The program as installed in `directory`: a copy that can be replaced, broken or removed.

    `env` makes a criproxy run it.
    """

    def __init__(self, directory: Path) -> None:
        self._at = directory / "code"
        self._versions = 0
        self.install()

    @property
    def env(self) -> dict[str, str]:
        # Safe path: else the working directory, which may be the checkout, came first.
        path = os.pathsep.join([str(self._at), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}

    def install(self, main: str | None = None) -> None:
        """Remove what is there and put a new copy; with `main` as its __main__.py."""
        self._versions += 1
        new = self._at.with_name(f"code.{self._versions}")
        shutil.copytree(CHECKOUT / "criproxy", new / "criproxy", ignore=shutil.ignore_patterns("__pycache__"))
        if main is not None:
            (new / "criproxy" / "__main__.py").write_text(main)
        link = self._at.with_name("code.new")
        link.symlink_to(new.name)
        link.rename(self._at)
        for old in self._at.parent.glob("code.[0-9]*"):
            if old != new:
                shutil.rmtree(old)

    def remove(self) -> None:
        shutil.rmtree(self._at.resolve())
