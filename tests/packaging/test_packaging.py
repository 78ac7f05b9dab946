"""What the package says by hand of what the code says too."""

import os
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Final

import pytest
from setuptools import build_meta

import criproxy
from criproxy import cli

CHECKOUT = Path(__file__).parents[2]
DEBIAN = CHECKOUT / "packaging" / "deb" / "debian"


def words_after(mark: str, file: str) -> set[str]:
    """The words between `mark` and the next `;` or option, in a file of the checkout."""
    found = re.findall(rf"{mark} ([^;]*?)(?:;| -)", (CHECKOUT / file).read_text(encoding="utf-8"))
    assert len(found) == 1, file
    return set(found[0].split())


def test_changelog_begins_with_the_version() -> None:
    assert (DEBIAN / "changelog").read_text(encoding="utf-8").startswith(f"criproxy ({criproxy.__version__}) ")


def test_manual_names_every_verb() -> None:
    named = set(re.findall(r"^\.TP\n\.B ([\w-]+)$", (DEBIAN / "criproxy.8").read_text(encoding="utf-8"), re.MULTILINE))
    told = re.findall(r"^    ([\w-]+) ", cli._parser().format_help(), re.MULTILINE)
    assert named == set(told)


def test_package_ships_every_file_that_the_readme_links_to() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (CHECKOUT / "README.md").read_text(encoding="utf-8"))
    shipped = (DEBIAN / "docs").read_text(encoding="utf-8").split()
    left_out = re.findall(r"dh_installdocs -X(\S+)", (DEBIAN / "rules").read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not {link, link.partition("/")[0]}.intersection(shipped)] == []
    assert [link for link in links if any(part in link for part in left_out)] == []


def test_package_is_built_from_what_it_ships_and_anew_when_that_changes() -> None:
    copied = words_after("for part in", "packaging/deb/build")
    assert set((DEBIAN / "docs").read_text(encoding="utf-8").split()) <= copied
    assert copied <= words_after("find criproxy", "integration/setup") | {"criproxy"}


def test_package_brings_no_container_runtime() -> None:
    """apt installs what is recommended, too. k3s, RKE2, k0s and MicroK8s have a containerd that dpkg does not know."""
    fields = dict(re.findall(r"^([\w-]+): (.*)$", (DEBIAN / "control").read_text(encoding="utf-8"), re.MULTILINE))
    installed = " ".join(fields.get(field, "") for field in ("Pre-Depends", "Depends", "Recommends"))
    assert re.findall(r"containerd|cri-o|docker", installed) == []
    assert fields["Suggests"] == "containerd"


@pytest.mark.parametrize("folder", [".", "cluster"])
def test_distribution_has_the_version_and_the_license_in_it(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = CHECKOUT / folder
    assert (source / "LICENSE").read_bytes() == (CHECKOUT / "LICENSE").read_bytes()
    for file in (
        source / "pyproject.toml",
        source / "LICENSE",
        CHECKOUT / "README.md",
        CHECKOUT / "cluster" / "VERSION",
    ):
        shutil.copy(file, tmp_path)
    (tmp_path / "criproxy").mkdir()
    shutil.copy(CHECKOUT / "criproxy" / "__init__.py", tmp_path / "criproxy")
    monkeypatch.chdir(tmp_path)
    made = tmp_path / build_meta.prepare_metadata_for_build_wheel(str(tmp_path))
    metadata = (made / "METADATA").read_text(encoding="utf-8").splitlines()
    version = f"Version: {criproxy.__version__}"
    assert {version, "License-Expression: Apache-2.0", "License-File: LICENSE"} <= set(metadata)
    assert (made / "licenses" / "LICENSE").read_bytes() == (CHECKOUT / "LICENSE").read_bytes()
    (wanted,) = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    assert wanted == "setuptools>=77", "the first that knows a license as an expression"


def test_license_is_whole_and_says_whose_it_is() -> None:
    text = (CHECKOUT / "LICENSE").read_text(encoding="utf-8")
    assert text.lstrip().startswith("Apache License\n")
    assert "\n   END OF TERMS AND CONDITIONS\n" in text
    assert "\n   Copyright 2026 The criproxy authors\n" in text
    assert "Apache-2.0" in (CHECKOUT / "README.md").read_text(encoding="utf-8")


def test_package_states_the_license_and_points_to_debian_s_copy() -> None:
    paragraphs = (DEBIAN / "copyright").read_text(encoding="utf-8").split("\n\n")
    assert "Files: *\nCopyright: 2026 The criproxy authors\nLicense: Apache-2.0" in paragraphs
    (license_,) = [one for one in paragraphs if one.startswith("License: Apache-2.0\n")]
    assert "/usr/share/common-licenses/Apache-2.0" in license_


def test_service_competes_with_kubepods_itself_and_gets_most_of_a_core() -> None:
    """In another slice than the root's, the weight would count against that slice's units alone."""
    unit = (CHECKOUT / "packaging" / "criproxy.service").read_text(encoding="utf-8")
    options = dict(re.findall(r"^(\w+)=(.*)$", unit, re.MULTILINE))
    kubepods_for_a_core = 100  # on v1, and on v2 with runc's newer formula, by which each further core counts less
    assert options["Slice"] == "-.slice"
    assert int(options["CPUWeight"]) / (int(options["CPUWeight"]) + kubepods_for_a_core) > 0.9


UNITS = ("criproxy", "criproxy-bypass", "criproxy-bypass-arm", "criproxy-withdraw")
HARDENED: Final = frozenset(
    {
        "CapabilityBoundingSet", "LockPersonality", "MemoryDenyWriteExecute", "NoNewPrivileges", "PrivateDevices",
        "ProtectClock", "ProtectHome", "ProtectHostname", "ProtectKernelLogs", "ProtectKernelModules",
        "ProtectKernelTunables", "ProtectSystem", "RestrictAddressFamilies", "RestrictNamespaces", "RestrictRealtime",
        "RestrictSUIDSGID", "SystemCallArchitectures", "SystemCallErrorNumber", "SystemCallFilter",
    }
)  # fmt: skip


@pytest.mark.parametrize("unit", UNITS)
def test_each_service_is_hardened(unit: str) -> None:
    lines = (CHECKOUT / f"packaging/{unit}.service").read_text().splitlines()
    assert {line.partition("=")[0] for line in lines} >= HARDENED


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_no_service_is_more_exposed_than_criproxys_own() -> None:
    """By systemd's own measure, of 10, as far as this systemd has one (from 250 on)."""
    files = [str(CHECKOUT / f"packaging/{unit}.service") for unit in UNITS]
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", *files], capture_output=True, text=True, check=False
    )
    levels = dict(re.findall(r"exposure level for (\S+)\.service: ([0-9.]+)", done.stdout))
    if not levels:
        pytest.skip("this systemd-analyze reads no files")
    assert levels.keys() == set(UNITS)
    assert {unit: level for unit, level in levels.items() if float(level) > float(levels["criproxy"])} == {}


def test_bypass_is_armed_until_it_is_open_or_something_is_in_the_way() -> None:
    unit = (CHECKOUT / "packaging/criproxy-bypass-arm.service").read_text()
    options = dict(re.findall(r"^(\w+)=(.*)$", unit, re.MULTILINE))
    names = ("Restart", "StartLimitIntervalSec", "RestartPreventExitStatus")
    (in_the_way,) = re.findall(r"^in_the_way=(\d+)$", (CHECKOUT / "packaging/criproxy-bypass.sh").read_text(), re.M)
    assert [options.get(name) for name in names] == ["on-failure", "0", in_the_way]


def test_nothing_is_withdrawn_beside_a_criproxy_that_runs_and_the_timer_waits_for_its_next_end(tmp_path: Path) -> None:
    unit = (CHECKOUT / "packaging/criproxy-withdraw.service").read_text()
    (condition,) = re.findall(r"^ExecCondition=(.*)$", unit, re.MULTILINE)
    systemctl = tmp_path / "systemctl"
    met = []
    for status in (0, 3):
        systemctl.write_text(f"#!/bin/sh\nexit {status}\n")
        systemctl.chmod(0o755)
        done = subprocess.run(shlex.split(condition), env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, check=False)
        met.append(done.returncode == 0)
    assert met == [False, True]
    assert "RemainAfterElapse=no" in (CHECKOUT / "packaging/criproxy-withdraw.timer").read_text().splitlines()


def test_state_is_the_services_own() -> None:
    assert "StateDirectoryMode=0700" in (CHECKOUT / "packaging/criproxy.service").read_text().splitlines()
