"""packaging/repository with real gpg and a real apt: what a node takes from it, and what it refuses."""

import os
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]


def run(*command: object, env: dict[str, str] | None = None, ok: bool = True) -> str:
    done = subprocess.run(
        [str(word) for word in command], env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False
    )
    text = done.stdout + done.stderr
    assert (done.returncode == 0) is ok, text
    return text


class Apt:
    """An apt of its own, on a node of a release, that knows no other source than this file."""

    def __init__(self, root: Path, sources: Path, architecture: str = "amd64") -> None:
        for directory in ("sources", "lists/partial", "cache/archives/partial", "state", "trusted"):
            (root / directory).mkdir(parents=True)
        (root / "status").touch()
        (root / "sources" / sources.name).write_text(sources.read_text())
        self.root = root
        self.options = [
            f"-oDir::Etc::SourceParts={root}/sources",
            "-oDir::Etc::SourceList=/dev/null",
            f"-oDir::State={root}/state",
            f"-oDir::State::Lists={root}/lists",
            f"-oDir::State::status={root}/status",
            f"-oDir::Cache={root}/cache",
            "-oDir::Etc::Trusted=/dev/null",
            f"-oDir::Etc::TrustedParts={root}/trusted",
            f"-oAPT::Architecture={architecture}",
            f"-oAPT::Architectures={architecture}",
            "-oAPT::Sandbox::User=root",
        ]

    def get(self, *arguments: str, ok: bool = True) -> str:
        return run("apt-get", *self.options, *arguments, ok=ok)

    def update(self, *, ok: bool = True) -> str:
        """As errors: apt goes on with what it had."""
        return self.get("update", "-oAPT::Update::Error-Mode=any", ok=ok)

    def versions(self) -> list[str]:
        text = run("apt-cache", *self.options, "madison", "criproxy")
        return [line.split("|")[1].strip() for line in text.splitlines()]


class Repository:
    def __init__(self, root: Path) -> None:
        self.root, self.place = root, root / "repository"
        self.home = {"GNUPGHOME": str(root / "gnupg")}
        (root / "gnupg").mkdir(mode=0o700)
        self.key("packages@criproxy.test")

    def key(self, name: str) -> None:
        run("gpg", "--batch", "--passphrase", "", "--quick-generate-key", name, "ed25519", "sign", env=self.home)

    def package(self, version: str, text: str = "", name: str = "criproxy", architecture: str = "amd64") -> Path:
        tree = self.root / f"{version}{text}{name}{architecture}"
        (tree / "DEBIAN").mkdir(parents=True)
        control = f"Package: {name}\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: a <a@localhost>\n"
        (tree / "DEBIAN/control").write_text(f"{control}Description: {text}a\n")
        deb = self.root / f"{tree.name}.deb"
        run("dpkg-deb", "--build", "--root-owner-group", tree, deb)
        return deb

    def add(self, *debs: Path, key: str = "packages@criproxy.test", ok: bool = True) -> str:
        url = f"file://{self.place}"
        return run(
            CHECKOUT / "packaging/repository", "--key", key, "--url", url, self.place, *debs, env=self.home, ok=ok
        )

    def apt(self, release: str, name: str, architecture: str = "amd64") -> Apt:
        return Apt(self.root / name, self.place / f"criproxy-{release}.sources", architecture)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_node_takes_the_package_of_its_release_by_one_file_alone(repository: Repository, tmp_path: Path) -> None:
    old, new, other = (repository.package(one) for one in ("0.1.0~deb13u1", "0.2.0~deb13u1", "0.2.0~deb12u1"))
    repository.add(old, other)
    first = repository.apt("trixie", "first")
    first.update()
    assert first.versions() == ["0.1.0~deb13u1"]
    repository.add(new)
    first.update()
    assert first.versions() == ["0.2.0~deb13u1", "0.1.0~deb13u1"], "a node can go back"
    run("sh", "-c", f"cd {tmp_path} && apt-get {' '.join(first.options)} download criproxy")
    (taken,) = tmp_path.glob("criproxy_0.2.0*.deb")
    assert taken.read_bytes() == new.read_bytes()
    bookworm = repository.apt("bookworm", "second")
    bookworm.update()
    assert bookworm.versions() == ["0.2.0~deb12u1"]


def test_one_repository_serves_each_release_and_architecture_its_own(repository: Repository) -> None:
    marks = {"forky": "deb14u1", "noble": "ubuntu24.04.1"}
    every = [(release, one) for release in marks for one in ("amd64", "arm64")]
    repository.add(*(repository.package(f"0.1.0~{marks[release]}", architecture=one) for release, one in every))
    for release, architecture in every[1:3]:
        node = repository.apt(release, f"{release}-{architecture}", architecture)
        node.update()
        assert node.versions() == [f"0.1.0~{marks[release]}"]
        (uri,) = node.get("download", "--print-uris", "criproxy").splitlines()
        assert f"_{architecture}.deb" in uri.split()[1]


def test_node_refuses_what_was_changed_or_another_has_signed(repository: Repository) -> None:
    repository.add(repository.package("0.1.0~deb13u1"))
    node = repository.apt("trixie", "node")
    node.update()
    release = repository.place / "dists/trixie"
    index = release / "main/binary-amd64/Packages"
    signed, packages = (release / "InRelease").read_text(), index.read_text()
    (release / "InRelease").write_text(signed.replace("Label: criproxy", "Label: Criproxy"))
    assert "signature" in node.update(ok=False).lower()
    (release / "InRelease").write_text(signed)
    for file in (index, index.with_suffix(".gz")):
        file.unlink()
    index.write_text(packages.replace("0.1.0", "0.9.0"))
    fresh = repository.apt("trixie", "fresh")
    fresh.update(ok=False)
    assert fresh.versions() == []

    repository.key("another@criproxy.test")
    repository.add(key="another@criproxy.test")
    assert "NO_PUBKEY" in node.update(ok=False)
    assert node.versions() == ["0.1.0~deb13u1"]


def test_what_is_no_package_of_ours_is_refused_and_changes_nothing(repository: Repository, tmp_path: Path) -> None:
    good = repository.package("0.1.0~deb13u1")
    repository.add(good)
    before = {path: path.read_bytes() for path in repository.place.rglob("*") if path.is_file()}
    (tmp_path / "text.deb").write_text("no package")
    for bad, words in (
        (tmp_path / "text.deb", "is no Debian package"),
        (repository.package("0.1.0~deb13u1", name="bash"), "is a package of bash, not of criproxy"),
        (repository.package("0.1.0"), "names no release"),
        (repository.package("0.1.0~deb13u1", "other "), "is there already, with other bytes"),
    ):
        assert words in repository.add(good, bad, ok=False)
    assert "gpg has no secret key nobody" in repository.add(good, key="nobody", ok=False)
    assert {path: path.read_bytes() for path in repository.place.rglob("*") if path.is_file()} == before
