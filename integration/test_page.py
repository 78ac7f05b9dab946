"""The page in a real browser, of a day that was made up; and of a real criproxy, what it and `criproxy top` say. And
the page of `criproxy advise`.

axe-core checks it for screen readers where `npm` can fetch that; what of it is worst (serious, critical) fails.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from criproxy.cli import main
from criproxy.commands.simulate.cluster.folder import EXAMPLE
from criproxy.observe import client
from integration.lab.browser import ARROW_LEFT, ARROW_RIGHT, Browser, is_there
from integration.lab.process import wait_until
from tests.commands.page.lived import node, status

AXE = "axe-core@4.14.1"
FETCH_S = 120.0
WAIT_S = 60.0
SIZES = [
    pytest.param((360, 740), id="phone"),
    pytest.param((1280, 800), id="laptop"),
    pytest.param((3840, 2160), id="4k"),
]


def needs_browser(test: Callable[..., None]) -> Callable[..., None]:
    skipped = pytest.mark.skipif(not is_there(), reason="needs Chromium: integration/setup browser")(test)
    marked: Callable[..., None] = pytest.mark.by_command(skipped)
    return marked


@contextmanager
def served(config: Path) -> Iterator[str]:
    """The page's address."""
    heeding = ["env", "--default-signal=INT"]  # as a job of a shell's in the background does not
    command = [*heeding, sys.executable, "-m", "criproxy", "page", "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(20)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with node(tmp_path_factory.mktemp("node")) as config:
        yield config


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture(scope="module")
def url(config: Path) -> Iterator[str]:
    with served(config) as url:
        yield url


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Its script."""
    if (npm := shutil.which("npm")) is None:
        pytest.skip("needs npm, for axe-core")
    folder = tmp_path_factory.mktemp("axe")
    fetched = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", folder, AXE],
        capture_output=True,
        timeout=FETCH_S,
        check=False,
    )
    if fetched.returncode:
        pytest.skip(f"npm does not fetch {AXE}")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


def drawn(browser: Browser, url: str) -> None:
    """The page is there, and nothing of an earlier one in the logs."""
    browser.open("about:blank")
    browser.console()
    browser.asked()
    browser.open(url)
    browser.wait("return document.body && document.body.dataset.drawn")


def violations(browser: Browser, axe: str) -> list[str]:
    """What axe-core calls serious or critical, by a world of its own: the page's policy lets no other script in."""
    frame = browser.devtools("Page.getFrameTree")["frameTree"]["frame"]["id"]
    world = browser.devtools("Page.createIsolatedWorld", frameId=frame)["executionContextId"]
    browser.devtools("Runtime.evaluate", expression=axe, contextId=world)
    run = "axe.run(document).then((found) => JSON.stringify([found.violations, found.passes.length]))"
    answer = browser.devtools("Runtime.evaluate", expression=run, contextId=world, awaitPromise=True)
    found, passed = json.loads(answer["result"]["value"])
    assert passed > 10
    return [f"{one['id']}: {one['nodes'][0]['html']}" for one in found if one["impact"] in ("serious", "critical")]


@needs_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_page_fits_says_nothing_to_the_console_and_asks_nobody_else(
    browser: Browser, url: str, tmp_path: Path, size: tuple[int, int], dark: bool
) -> None:
    browser.resize(*size, dark=dark)
    drawn(browser, url)
    browser.wait("return document.querySelectorAll('#cpu svg path.online').length")
    assert browser.run("return document.documentElement.scrollWidth") <= size[0]
    browser.screenshot(tmp_path / "page.png")
    assert browser.console() == []
    assert {one.partition("?")[0] for one in browser.asked() if not one.startswith("data:")} == {url, f"{url}data"}


@needs_browser
@pytest.mark.parametrize("span", ["hour", "day"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_page_can_be_read_by_who_does_not_see_it(browser: Browser, url: str, axe: str, span: str, dark: bool) -> None:
    browser.resize(1280, 800, dark=dark)
    drawn(browser, url)
    browser.run(f"document.querySelector('[value={span}]').click()")
    browser.run("document.querySelectorAll('summary').forEach((one) => one.click())")
    browser.wait("return document.querySelectorAll('#cpu table').length")
    assert violations(browser, axe) == []


@needs_browser
def test_every_number_is_the_status_own(browser: Browser, url: str, config: Path) -> None:
    drawn(browser, url)
    shown = json.loads(client.ask(config.with_name("c-status.sock"), "/status", 20))
    cells = browser.run(
        "return [...document.querySelectorAll('[data-key]')]"
        ".map((cell) => [cell.dataset.key, cell.dataset.value, cell.textContent])"
    )
    assert len(cells) == 2 * 8 + 9 * len(shown["pods"])
    pods = {pod["uid"]: pod for pod in shown["pods"]}
    for key, value, text in cells:
        first, *rest = key.split(".")
        found: Any = shown if first == "box" else pods
        for part in (first, *rest):
            found = found[part]
        assert json.loads(value) == found, key
        if isinstance(found, float) and key.endswith("_cores"):
            assert float(text.removesuffix(" cores")) == pytest.approx(found, abs=0.0051), key
        if isinstance(found, int | float) and key.endswith("_bytes"):
            assert float(text.removesuffix(" GiB")) == pytest.approx(found / 2**30, abs=0.0051), key


@needs_browser
def test_what_has_happened_is_in_the_chart_and_in_words(browser: Browser, url: str) -> None:
    drawn(browser, url)
    titles = browser.run("return [...document.querySelectorAll('#cpu line.mark title')].map((one) => one.textContent)")
    rows = browser.run("return [...document.querySelectorAll('#marks tbody tr')].map((one) => one.textContent)")
    for words in ("online waited for 12 % of the time", "online pods were harmed", "batch/train-07 evicted"):
        assert any(words in title for title in titles), words
        assert any(words in row for row in rows), words
    assert "squeezed" in browser.run("return document.querySelector('#ladder').textContent")
    assert "what is free now" in browser.run("return document.querySelector('#published').textContent")


@needs_browser
def test_keyboard_reads_single_moments_and_chooses_the_day(browser: Browser, url: str) -> None:
    browser.resize(1280, 800)
    drawn(browser, url)

    def pressed(focus: str, key: str, sees: str) -> bool:
        browser.run(f"document.querySelector('{focus}').focus()")
        browser.press(key)
        return bool(browser.run(f"return {sees}"))

    moment = "/^[0-9:]+: online [0-9.]+ cores, box/.test(document.querySelector('#cpu output').textContent)"
    wait_until(lambda: pressed("#cpu .chart", ARROW_LEFT, moment), WAIT_S, "a moment that is read")
    day = "document.querySelector('#cpu svg title').textContent.startsWith('CPU of the last day')"
    wait_until(lambda: pressed("[value=hour]", ARROW_RIGHT, day), WAIT_S, "the day")


@needs_browser
def test_page_goes_on_by_itself_and_says_when_nobody_answers(browser: Browser, tmp_path: Path) -> None:
    shown = [status()]
    with node(tmp_path, lambda: shown[0]) as config, served(config) as url:
        drawn(browser, url)
        shown[0] = replace(status(), problems=("the box is gone: see the log",))
        browser.wait("return document.querySelector('#state').textContent.includes('the box is gone')")
    browser.wait("return document.querySelector('#state').textContent.includes('There is no answer')")


@needs_browser
def test_name_of_a_pod_runs_no_script(browser: Browser, url: str, config: Path, tmp_path: Path) -> None:
    file = tmp_path / "day.html"
    subprocess.run([sys.executable, "-m", "criproxy", "page", "--config", str(config), "--save", str(file)], check=True)
    for address in (url, file.as_uri()):
        drawn(browser, address)
        assert "alert(1)" in browser.run("return document.querySelector('#pods').textContent")
        assert browser.run("return document.querySelectorAll('#pods img, #pods script').length") == 0
        assert browser.console() == []


@needs_browser
def test_saved_page_needs_no_network(browser: Browser, config: Path, tmp_path: Path) -> None:
    file = tmp_path / "day.html"
    subprocess.run([sys.executable, "-m", "criproxy", "page", "--config", str(config), "--save", str(file)], check=True)
    drawn(browser, file.as_uri())
    browser.wait("return document.querySelectorAll('#cpu svg path.online').length")
    assert {one for one in browser.asked() if not one.startswith("data:")} == {file.as_uri()}
    assert browser.console() == []


# --- a site that is not meant well ------------------------------------------------------------------------------------

HOSTILE = """<!doctype html><script>
const data = "{url}data", found = {};
const tried = (name, attempt) => attempt.then((value) => { found[name] = value; }, () => { found[name] = "refused"; });
const loaded = (tag) => new Promise((end, fail) => {
  const made = document.createElement(tag);
  made.src = tag === "iframe" ? "{url}" : data;
  made.onload = () => end(tag === "iframe" && made.contentDocument ? made.contentDocument.body.textContent : "loaded");
  made.onerror = fail;
  document.documentElement.append(made);
});
Promise.all([
  tried("read", fetch(data).then((answer) => answer.text())),
  tried("sent", fetch(data, {mode: "no-cors"}).then((answer) => answer.type)),
  tried("post", fetch(data, {method: "POST", mode: "no-cors"}).then((answer) => answer.type)),
  tried("script", loaded("script")),
  tried("frame", loaded("iframe")),
]).then(() => { document.title = JSON.stringify(found); });
</script>"""


@contextmanager
def site(page: Callable[[int], str]) -> Iterator[int]:
    """Another server on this machine, which a browser has open."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page(server.server_address[1]).encode())

        def log_message(self, format: str, *args: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@needs_browser
def test_other_site_gets_nothing_even_if_it_knows_the_address(browser: Browser, url: str) -> None:
    with site(lambda _: HOSTILE.replace("{url}", url)) as port:
        browser.open(f"http://localhost:{port}/")
        browser.wait("return document.title")
        found = json.loads(browser.run("return document.title"))
    assert set(found) == {"read", "sent", "post", "script", "frame"}
    assert found["read"] == found["sent"] == found["post"] == found["script"] == "refused"
    assert "batch" not in found["frame"]


@needs_browser
def test_name_that_leads_here_by_another_dns_gets_nothing(url: str, tmp_path: Path) -> None:
    port = re.findall(r":(\d+)/", url)[0]
    with Browser(tmp_path, f"--host-resolver-rules=MAP evil.example 127.0.0.1:{port}") as browser:
        browser.open(url.replace(f"127.0.0.1:{port}", "evil.example"))
        shown = browser.run("return document.documentElement.outerHTML")
        assert "HTTP ERROR 403" in shown
        assert "criproxy" not in shown


# --- the page of criproxy advise --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def advised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("advise") / "page.html"
    assert main(["advise", str(EXAMPLE), "--output", str(file)]) == 0
    return file


@needs_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_advice_fits_says_nothing_to_the_console_and_asks_nobody(
    browser: Browser, advised: Path, tmp_path: Path, size: tuple[int, int], dark: bool
) -> None:
    browser.resize(*size, dark=dark)
    browser.open("about:blank")
    browser.console()
    browser.asked()
    browser.open(advised.as_uri())
    assert browser.run("return document.documentElement.scrollWidth") <= size[0]
    assert browser.run("return document.querySelectorAll('figure svg').length") == 8
    browser.screenshot(tmp_path / "advice.png")
    assert browser.console() == []
    assert {one for one in browser.asked() if not one.startswith("data:")} == {advised.as_uri()}


@needs_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_advice_is_accessible(browser: Browser, advised: Path, axe: str, dark: bool) -> None:
    browser.resize(1280, 800, dark=dark)
    browser.open(advised.as_uri())
    assert violations(browser, axe) == []
