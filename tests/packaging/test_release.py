"""packaging/release in a repository of its own: when it refuses, and what it makes. Stubs stand for its builders."""

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
CHANGELOG = """\
# Changelog

## [Unreleased]
{unreleased}
## [0.2.0] - 2026-12-01

### Added

- A thing.

## [0.1.0] - 2026-11-21

- The first.
"""
DEBIAN = "criproxy (0.2.0) unstable; urgency=medium\n\n  * It changed.\n"
PYTHON = """\
#!/bin/sh
# Stands for the Python of .venv: pip's wheels, the image, and what docs.generate makes.
echo "$*" >>"$CALLS"
case $* in
*docs.generate*) exit "${STALE:-0}" ;;
*wheel*./cluster) touch "${PWD}/made/criproxy_cluster-0.2.0-py3-none-any.whl" ;;
*wheel*) touch "${PWD}/made/criproxy-0.2.0-py3-none-any.whl" ;;
*cluster.image*) cp committed "$4" ;;
*packaging/chart*) touch "$3/criproxy-0.2.0.tgz" ;;
esac
"""
DEB = """\
#!/bin/sh
[ -z "$NO_DEB" ] || exit 1
[ "$1 $2 $3 $4 $5" = "--arch amd64 --arch arm64 --out" ] || exit 2
out=$6
shift 6
for release in ${*:-bookworm trixie forky noble}; do
  for architecture in amd64 arm64; do echo "$release" >"$out/criproxy_0.2.0~${release}_$architecture.deb"; done
done
"""
BUNDLE = """\
#!/bin/sh
[ "$1 $2 $3 $4 $5 $6" = "--arch amd64 --arch arm64 --rpm --out" ] || exit 2
for name in 0.2.0-linux-amd64.tar.gz 0.2.0-linux-arm64.tar.gz 0.2.0-1.x86_64.rpm; do echo b >"$7/criproxy-$name"; done
"""


PACKAGE = {"package": "libstdc++6", "version": "1:12.2.0-14+deb12u1"}


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
    return buffer.getvalue()


def _image() -> bytes:
    """An image as far as packaging/sbom reads it: a config, and for each architecture a layer that lists a package."""
    blobs = {"blobs/sha256/config": b"{}"}
    for architecture in ("amd64", "arm64"):
        listed = json.dumps([{**PACKAGE, "architecture": architecture}]).encode()
        blobs[f"blobs/sha256/{architecture}"] = _tar({"etc/os": b"", "usr/share/criproxy/debian-packages.json": listed})
    return _tar(blobs)


IMAGE = _image()


class Repository:
    """A checkout in which 0.2.0 can be released."""

    def __init__(self, root: Path) -> None:
        self.root = root / "checkout"
        self.calls = root / "calls"
        self.env = {
            **{key: value for key, value in os.environ.items() if not key.startswith("GIT_")},
            **{f"GIT_{who}_{what}": "test@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
            "PYTHON": str(root / "python"),
            "CALLS": str(self.calls),
        }
        (root / "python").write_text(PYTHON)
        (root / "python").chmod(0o755)
        self.write("packaging/deb/build", DEB)
        self.write("packaging/bundle/build", BUNDLE)
        self.write("packaging/deb/debian/changelog", DEBIAN)
        self.write("criproxy/__init__.py", '__version__ = "0.2.0"\n')
        self.write("CHANGELOG.md", CHANGELOG.format(unreleased=""))
        (self.root / "committed").write_bytes(IMAGE)
        self.write(".gitignore", "dist/\n")
        for builder in ("deb", "bundle"):
            (self.root / "packaging" / builder / "build").chmod(0o755)
        for name in ("release", "sbom"):
            shutil.copy(CHECKOUT / "packaging" / name, self.root / "packaging")
        for name in ("requirements.lock", "cluster/requirements.lock"):
            self.write(name, (CHECKOUT / name).read_text())
        self.git("init", "-q")
        self.commit()

    def write(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=self.root, env=self.env, capture_output=True, text=True, check=True
        )
        return done.stdout

    def commit(self) -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "state")

    def release(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = ["packaging/release", *arguments]
        return subprocess.run(
            command, cwd=self.root, env={**self.env, **env}, capture_output=True, text=True, check=False
        )

    @property
    def tags(self) -> list[str]:
        return self.git("tag").split()


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_release_has_wheels_packages_image_sums_and_a_tag_that_says_what_changed(repository: Repository) -> None:
    done = repository.release()
    assert done.returncode == 0, done.stderr
    out = repository.root / "dist/release/0.2.0"
    releases, architectures = ("bookworm", "trixie", "forky", "noble"), ("amd64", "arm64")
    debs = {f"criproxy_0.2.0~{release}_{one}.deb" for release in releases for one in architectures}
    bundles = {*(f"criproxy-0.2.0-linux-{one}.tar.gz" for one in architectures), "criproxy-0.2.0-1.x86_64.rpm"}
    wheels = {"criproxy-0.2.0-py3-none-any.whl", "criproxy_cluster-0.2.0-py3-none-any.whl"}
    carried = {f"criproxy{part}-0.2.0.cdx.json" for part in ("", "-cluster", "-image")}
    made = {*debs, *bundles, *wheels, *carried, "criproxy-image-0.2.0.tar", "criproxy-0.2.0.tgz"}
    assert {file.name for file in out.iterdir()} == {*made, "SHA256SUMS"}
    sums = dict(line.split("  ")[::-1] for line in (out / "SHA256SUMS").read_text().splitlines())
    assert sums == {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in made}
    assert repository.tags == ["v0.2.0"]
    message = repository.git("tag", "-l", "--format=%(contents)", "v0.2.0")
    assert message.strip() == "criproxy 0.2.0\n\n### Added\n\n- A thing."


def test_release_says_what_each_distribution_carries(repository: Repository) -> None:
    assert repository.release("trixie").returncode == 0
    out = repository.root / "dist/release/0.2.0"
    for name, lock in (("criproxy", "requirements.lock"), ("criproxy-cluster", "cluster/requirements.lock")):
        text = (CHECKOUT / lock).read_text()
        found = json.loads((out / f"{name}-0.2.0.cdx.json").read_text())
        assert (found["bomFormat"], found["metadata"]["component"]["version"]) == ("CycloneDX", "0.2.0")
        pins = {f"{one['name']}=={one['version']}" for one in found["components"]}
        assert pins == set(re.findall(r"^[^\s#]+==[^\s;]+", text, re.MULTILINE))
        assert sum(len(one["hashes"]) for one in found["components"]) == text.count("--hash=sha256:")
        assert found["dependencies"][0]["dependsOn"] == [one["bom-ref"] for one in found["components"]]


def test_release_says_what_the_image_carries(repository: Repository) -> None:
    assert repository.release("trixie").returncode == 0
    found = json.loads((repository.root / "dist/release/0.2.0/criproxy-image-0.2.0.cdx.json").read_text())
    purls = [one["purl"] for one in found["components"]]
    package = "pkg:deb/debian/libstdc%2B%2B6@1%3A12.2.0-14%2Bdeb12u1?arch="
    assert purls[-2:] == [f"{package}amd64", f"{package}arm64"]
    for lock in ("requirements.lock", "cluster/requirements.lock"):
        pins = re.findall(r"^([^\s#]+)==([^\s;]+)", (CHECKOUT / lock).read_text(), re.MULTILINE)
        assert {f"pkg:pypi/{name}@{version}" for name, version in pins} <= {*purls}
    assert len(purls) == len(set(purls)), "what both locks have is there once"


def test_image_that_lists_no_packages_is_no_bill_of_materials(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "image.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("blobs/sha256/config"), io.BytesIO())
    command = [str(CHECKOUT / "packaging/sbom"), "criproxy", "0.2.0", str(tmp_path / "image.tar")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no layer has usr/share/criproxy/debian-packages.json" in done.stderr


@pytest.mark.parametrize(
    "line", ["msgspec>=0.18", "msgspec==0.22.0", "-r other.lock"], ids=["a-range", "without-hashes", "another-file"]
)
def test_what_is_no_lock_is_no_bill_of_materials(tmp_path: Path, line: str) -> None:
    lock = tmp_path / "some.lock"
    lock.write_text(f"# Made.\n{line}\n")
    command = [str(CHECKOUT / "packaging/sbom"), "criproxy", "0.2.0", str(lock)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"sbom: {lock}: " in done.stderr


@pytest.mark.skipif(shutil.which("gpg") is None, reason="needs gpg")
def test_signed_release_has_signatures_that_hold(repository: Repository, tmp_path: Path) -> None:
    home = tmp_path / "gnupg"
    home.mkdir(mode=0o700)
    env = {**repository.env, "GNUPGHOME": str(home)}
    gpg = ["gpg", "--batch", "--passphrase", ""]
    subprocess.run([*gpg, "--quick-generate-key", "test@localhost", "ed25519", "sign"], env=env, check=True)
    refused = repository.release("--sign", "nobody", GNUPGHOME=str(home))
    assert "gpg has no secret key nobody" in refused.stderr
    done = repository.release("--sign", "test@localhost", "trixie", GNUPGHOME=str(home))
    assert done.returncode == 0, done.stderr
    sums = repository.root / "dist/release/0.2.0/SHA256SUMS"
    subprocess.run(["gpg", "--verify", f"{sums}.asc", sums], env=env, check=True)
    subprocess.run(["git", "tag", "-v", "v0.2.0"], cwd=repository.root, env=env, check=True)


def test_release_is_of_what_is_committed(repository: Repository) -> None:
    """Files that git does not know are no changes, and get into nothing."""
    repository.write("untracked", "no")
    assert repository.release("bookworm").returncode == 0
    out = repository.root / "dist/release/0.2.0"
    assert (out / "criproxy-image-0.2.0.tar").read_bytes() == IMAGE
    debs = sorted(file.name for file in out.glob("*.deb"))
    assert debs == ["criproxy_0.2.0~bookworm_amd64.deb", "criproxy_0.2.0~bookworm_arm64.deb"]


def test_dry_run_says_what_it_would_run_and_makes_nothing(repository: Repository) -> None:
    done = repository.release("--dry-run", "trixie")
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("release: ")]
    for number, words in enumerate(
        (
            " wheel ",
            " wheel .*/cluster",
            "deb/build .*trixie",
            "bundle/build .*--rpm",
            "cluster.image .*--host-packages",
            "packaging/chart",
            "sbom criproxy 0",
            "sbom criproxy-cluster",
            "sbom criproxy-image .*tar",
            "SHA256SUMS",
        )
    ):
        assert re.search(words, said[number])
    assert "git tag -a v0.2.0" in said[-1]
    assert repository.tags == []
    assert not (repository.root / "dist").exists()
    assert repository.calls.read_text() == "-m docs.generate --check\n"


def test_build_that_fails_leaves_neither_files_nor_a_tag(repository: Repository) -> None:
    assert repository.release(NO_DEB="1").returncode != 0
    assert repository.tags == []
    assert not (repository.root / "dist").exists()


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("CHANGELOG.md", "# Changelog\n", 'no section "## [0.2.0] - DATE"'),
        ("CHANGELOG.md", "## [0.2.0] - 2026-12-01\n\n## [0.1.0] - 2026-11-21\n\n- x\n", "says nothing"),
        ("CHANGELOG.md", CHANGELOG.format(unreleased="\n- More.\n"), "below [Unreleased]"),
        ("packaging/deb/debian/changelog", "criproxy (0.1.0) unstable\n", "does not begin with 0.2.0"),
        ("criproxy/__init__.py", "", "has no version"),
    ],
    ids=["no section", "an empty section", "more than it says", "Debian's changelog", "no version"],
)
def test_release_refuses_what_is_not_written_down(repository: Repository, file: str, text: str, words: str) -> None:
    repository.write(file, text)
    repository.commit()
    done = repository.release()
    assert done.returncode == 1
    assert words in done.stderr
    assert repository.tags == []


def test_release_refuses_changes_that_are_not_committed(repository: Repository) -> None:
    repository.write("committed", "changed")
    assert "not committed" in repository.release("--dry-run").stderr


def test_release_refuses_a_version_that_was_released(repository: Repository) -> None:
    repository.git("tag", "v0.2.0")
    assert "v0.2.0 is tagged already" in repository.release().stderr


def test_release_refuses_what_does_not_follow_the_version(repository: Repository) -> None:
    assert "not up to date" in repository.release(STALE="1").stderr


def test_prepared_version_can_be_released_once_it_is_committed(repository: Repository) -> None:
    repository.write("CHANGELOG.md", CHANGELOG.format(unreleased="\n### Fixed\n\n- A fault.\n"))
    repository.commit()
    done = repository.release("prepare", "0.3.0")
    assert done.returncode == 0, done.stderr
    assert (repository.root / "criproxy/__init__.py").read_text() == '__version__ = "0.3.0"\n'
    assert (repository.root / "packaging/deb/debian/changelog").read_text().startswith("criproxy (0.3.0) unstable;")
    assert re.search(
        r"## \[Unreleased\]\n\n## \[0\.3\.0\] - [\d-]{10}\n\n### Fixed\n\n- A fault\.\n",
        (repository.root / "CHANGELOG.md").read_text(),
    )
    repository.commit()
    assert repository.release("bookworm").returncode == 0
    assert repository.tags == ["v0.3.0"]


@pytest.mark.parametrize(
    ("version", "words"),
    [("3", "no version such as"), ("0.2.0", "has 0.2.0 already")],
)
def test_version_that_is_none_or_is_there_is_not_prepared(repository: Repository, version: str, words: str) -> None:
    repository.write("CHANGELOG.md", CHANGELOG.format(unreleased="\n- More.\n"))
    assert words in repository.release("prepare", version).stderr
    assert repository.git("diff", "--stat", "criproxy") == ""


def test_nothing_new_is_no_version(repository: Repository) -> None:
    assert "nothing to release" in repository.release("prepare", "0.3.0").stderr
