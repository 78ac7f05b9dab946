"""What the package says by hand of what the code says too."""

import re
from pathlib import Path

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
