"""What the package says by hand of what the code says too."""

import re
from pathlib import Path

import criproxy
from criproxy import cli

DEBIAN = Path(__file__).parents[1] / "packaging" / "deb" / "debian"


def test_changelog_begins_with_the_version() -> None:
    assert (DEBIAN / "changelog").read_text(encoding="utf-8").startswith(f"criproxy ({criproxy.__version__}) ")


def test_manual_names_every_verb() -> None:
    named = set(re.findall(r"^\.TP\n\.B (\w+)$", (DEBIAN / "criproxy.8").read_text(encoding="utf-8"), re.MULTILINE))
    told = re.findall(r"^    (\w+) ", cli._parser().format_help(), re.MULTILINE)
    assert named == set(told)
