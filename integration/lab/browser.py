"""Debian's Chromium, steered by its driver over WebDriver. `integration/setup browser` installs both.

Source: W3C WebDriver.
"""

import base64
import json
import shutil
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final, Self

from integration.lab.ports import free_ports
from integration.lab.process import LabError, Process, wait_until

ANSWER_S: Final = 120.0
START_S: Final = 60.0
ARROW_LEFT, ARROW_RIGHT = "\ue012", "\ue014"
"""Source: WebDriver, keyboard actions."""


def is_there() -> bool:
    return shutil.which("chromium") is not None and shutil.which("chromedriver") is not None


class Browser:
    """One window, without a screen, whose profile is in `folder`. `switches`: Chromium's. It is a context manager."""

    def __init__(self, folder: Path, *switches: str) -> None:
        port = free_ports(1)[0]
        self._url = f"http://127.0.0.1:{port}"
        self._driver = Process("chromedriver", ["chromedriver", f"--port={port}"], folder / "chromedriver.log")
        try:
            wait_until(self._is_ready, START_S, "chromedriver", folder / "chromedriver.log")
            profile = f"--user-data-dir={folder / 'profile'}"
            options = {"args": ["--headless=new", "--no-sandbox", "--disable-gpu", profile, *switches]}
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
            made = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        except BaseException:
            self._driver.stop()
            raise
        self._session = f"/session/{made['sessionId']}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._ask("DELETE", self._session)
        finally:
            self._driver.stop()

    def open(self, url: str) -> None:
        self._ask("POST", f"{self._session}/url", {"url": url})

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """What the page has, and not the window around it."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[scheme])

    def devtools(self, command: str, **parameters: Any) -> Any:
        """Source: Chrome DevTools Protocol."""
        return self._ask("POST", f"{self._session}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def run(self, script: str) -> Any:
        """What a function with this body returns, in the page."""
        return self._ask("POST", f"{self._session}/execute/sync", {"script": script, "args": []})

    def wait(self, script: str, seconds: float = 30.0) -> None:
        """Until the script returns something that is true."""
        end_s = time.monotonic() + seconds
        while not self.run(script):
            if time.monotonic() > end_s:
                raise LabError(f"not within {seconds} s: {script}")
            time.sleep(0.05)

    def press(self, *keys: str) -> None:
        """On what has the focus."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        keyboard = {"type": "key", "id": "keyboard", "actions": actions}
        self._ask("POST", f"{self._session}/actions", {"actions": [keyboard]})

    def screenshot(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self._ask("GET", f"{self._session}/screenshot")))

    def console(self) -> list[str]:
        """What was said there since the last call."""
        said = self._ask("POST", f"{self._session}/se/log", {"type": "browser"})
        return [f"{one['level']}: {one['message']}" for one in said]

    def asked(self) -> list[str]:
        """The addresses that were asked for since the last call."""
        events = self._ask("POST", f"{self._session}/se/log", {"type": "performance"})
        messages = [json.loads(one["message"])["message"] for one in events]
        return [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]

    def _is_ready(self) -> bool:
        try:
            return bool(self._ask("GET", "/status")["ready"])
        except OSError:
            return False

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self._url}{path}", data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                return json.loads(answer.read())["value"]
        except urllib.error.HTTPError as error:
            raise LabError(f"{method} {path}: {error.read().decode()[:500]}") from error
