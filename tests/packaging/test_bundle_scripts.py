"""The bundle's install and remove, on a host in a directory: what they put where, what they leave, when they refuse."""

import mmap
import os
import subprocess
from pathlib import Path

import pytest

BUNDLE = Path(__file__).resolve().parents[2] / "packaging" / "bundle"
RECORDS = '#!/bin/sh\necho "$(basename "$0") $*" >>{0}/ran\nexit ${{FAILS:-0}}\n'
PROGRAM = '#!{0}/python-3.13-{1}/bin/python3.13 -ISB\nimport sys\n\nsys.path.insert(0, "{0}/lib/{1}")\n'


class Place:
    """A host in `root`, on which the bundle of version `new` has been unpacked over one of `old`."""

    def __init__(self, root: Path) -> None:
        self.root, self.opt = root, root / "opt"
        for name in ("lib/old", "lib/new", "python-3.13-old", "python-3.13-new", "bin", "units"):
            (self.opt / name).mkdir(parents=True)
        for name in ("fake", "etc", "systemd/system", "local", "var"):
            (root / name).mkdir(parents=True)
        (self.opt / "config.example.toml").write_text("as it comes\n")
        (self.opt / "units/criproxy.service").write_text("[Service]\n")
        (self.opt / "units/offline.slice").write_text("[Slice]\n")
        self.program("bin/criproxy", PROGRAM.format(self.opt, "new"))
        for name in ("opt/units/postinst", "opt/units/prerm", "fake/systemctl"):
            self.program(f"../{name}", RECORDS.format(root))
        self.program("../fake/id", "#!/bin/sh\necho 0\n")

    def program(self, name: str, text: str) -> None:
        (self.opt / name).write_text(text)
        (self.opt / name).chmod(0o755)

    def run(self, script: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        text = (BUNDLE / script).read_text()
        for there, here in {
            "/usr/local/bin": "local",
            "/etc/systemd/system": "etc/systemd",
            "/run/systemd": "systemd",
            "/run/criproxy": "run",
            "/var/lib/criproxy": "var/criproxy",
            "/opt/bin": "opt-bin",
            "/opt/criproxy": "opt",
            "/etc/criproxy": "etc/criproxy",
        }.items():
            text = text.replace(there, f"{self.root}/{here}")
        environment = {"PATH": f"{self.root}/fake:{os.environ['PATH']}", **env}
        return subprocess.run(
            ["sh", "-ec", text, script, *arguments], env=environment, capture_output=True, text=True, check=False
        )

    def ran(self) -> list[str]:
        file = self.root / "ran"
        said = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return said


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_install_puts_units_and_config_in_place_and_removes_the_earlier_version(place: Place) -> None:
    done = place.run("install")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(file.name for file in (place.root / "etc/systemd").iterdir()) == ["criproxy.service", "offline.slice"]
    assert (place.root / "etc/criproxy/config.toml").read_text() == "as it comes\n"
    assert (place.root / "local/criproxy").readlink() == place.opt / "bin/criproxy"
    assert [file.name for file in place.opt.glob("lib/*")] == ["new"]
    assert [file.name for file in place.opt.glob("python-*")] == ["python-3.13-new"]
    enabled = "systemctl --quiet enable criproxy.service criproxy-bypass-arm.service criproxy-withdraw.timer"
    assert place.ran() == [enabled, "postinst configure "]


def test_install_over_an_earlier_one_hands_over_and_leaves_the_config(place: Place) -> None:
    place.run("install")
    place.ran()
    (place.root / "etc/criproxy/config.toml").write_text("the user's\n")
    assert place.run("install").returncode == 0
    assert (place.root / "etc/criproxy/config.toml").read_text() == "the user's\n"
    assert place.ran() == ["postinst configure earlier"]


def test_install_leaves_the_code_by_which_a_process_still_runs(place: Place) -> None:
    """One that has refused to hand over needs the standard library for as long as it goes on."""
    library = place.opt / "python-3.13-old/library.so"
    library.write_bytes(b"x")
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        assert place.run("install").returncode == 0
        assert [file.name for file in place.opt.glob("lib/*")] == ["new"]
        assert sorted(file.name for file in place.opt.glob("python-*")) == ["python-3.13-new", "python-3.13-old"]
    assert place.run("install").returncode == 0
    assert [file.name for file in place.opt.glob("python-*")] == ["python-3.13-new"]


def test_remove_leaves_config_and_purge_takes_it(place: Place) -> None:
    place.run("install")
    (place.root / "var/criproxy").mkdir()
    assert place.run("remove").returncode == 0
    assert not place.opt.exists()
    assert list((place.root / "etc/systemd").iterdir()) == list((place.root / "local").iterdir()) == []
    assert (place.root / "etc/criproxy/config.toml").exists()
    assert (place.root / "var/criproxy").exists()


def test_purge_takes_config_and_state(place: Place) -> None:
    place.run("install")
    (place.root / "var/criproxy").mkdir()
    assert place.run("remove", "--purge").returncode == 0
    assert not (place.root / "etc/criproxy").exists()
    assert not (place.root / "var/criproxy").exists()


def test_remove_of_one_that_kubelet_cannot_leave_changes_nothing(place: Place) -> None:
    place.run("install")
    before = sorted(place.root.rglob("*"))
    assert place.run("remove", FAILS="1").returncode != 0
    assert sorted(place.root.rglob("*")) == before


def test_remove_with_a_word_that_it_does_not_know_says_how_it_is_used(place: Place) -> None:
    done = place.run("remove", "--all")
    assert done.returncode == 2
    assert place.opt.exists()
