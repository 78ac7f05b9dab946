"""`criproxy page` as a person runs it."""

import base64
import hashlib
import json
import re
import signal
import stat
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from criproxy.cli import main
from criproxy.commands.page.document import document
from tests.commands.page.lived import node


def inside(page: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, object] = json.loads(found[1])
    return data


def test_saved_page_has_its_data_inside_for_its_owner_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "day.html"
    with node(tmp_path) as config:
        assert main(["page", "--config", str(config), "--save", str(file)]) == 0
    page = file.read_text(encoding="utf-8")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert str(file) in capsys.readouterr().out
    assert inside(page)["state"]
    assert "connect-src &#x27;none&#x27;" in page


def test_pod_whose_name_is_a_script_stays_a_name(tmp_path: Path) -> None:
    file = tmp_path / "day.html"
    with node(tmp_path) as config:
        main(["page", "--config", str(config), "--save", str(file)])
    page = file.read_text(encoding="utf-8")
    assert "alert(1)" in page
    assert len(re.findall(r"<script", page)) == 2
    assert "<img" not in page


def test_link_in_a_folder_of_others_is_not_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, link = tmp_path / "target", tmp_path / "day.html"
    target.write_text("as it was")
    link.symlink_to(target)
    with node(tmp_path) as config:
        assert main(["page", "--config", str(config), "--save", str(link)]) == 1
    assert target.read_text() == "as it was"
    assert str(link) in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--save", "day.html"]], ids=["served", "saved"])
def test_criproxy_that_does_not_run_is_status_3(tmp_path: Path, arguments: list[str]) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[proxy]\nlisten = "{tmp_path}/c.sock"\n')
    assert main(["page", "--config", str(config), *arguments]) == 3


def test_page_is_served_until_it_is_interrupted(tmp_path: Path) -> None:
    with node(tmp_path) as config:
        heeding = ["env", "--default-signal=INT"]  # as a job of a shell's in the background does not
        command = [*heeding, sys.executable, "-m", "criproxy", "page", "--config", str(config)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            url, ssh = process.stdout.readline().strip(), process.stdout.readline()
            with urllib.request.urlopen(f"{url}data", timeout=20) as answer:
                assert json.loads(answer.read())["status"]["pid"] == 12
            port = url.split("/")[2].partition(":")[2]
            assert f"ssh -L {port}:127.0.0.1:{port} root@" in ssh
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130


def test_policy_names_the_script_and_the_style_that_are_there() -> None:
    page, policy = document("a<b>")
    for tag in ("script", "style"):
        text = page.rpartition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "<title>criproxy on a&lt;b&gt;</title>" in page


def test_page_asks_no_other_host() -> None:
    page, _ = document("node")
    assert set(re.findall(r"https?://[^\s\"'`]+", page)) == {"http://www.w3.org/2000/svg"}
