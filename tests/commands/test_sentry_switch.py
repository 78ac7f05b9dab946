"""`criproxy sentry on` and `off`, and `criproxy detach`: which files there are then, and for which runtimes."""

import errno
import os
import stat
from pathlib import Path

import msgspec
import pytest

from criproxy.commands import sentry
from criproxy.fronts.nri import handed
from criproxy.fronts.sentry import plugin
from criproxy.fronts.sentry.plugin import RULES
from criproxy.fronts.sentry.rules import NAMES, PLUGINS
from tests.commands.attach.attach_bench import Bench
from tests.fakes.node import FakeNode

NRI = 'proxy.front = "nri"\n'
LAUNCHER, SENTRY = (f"{PLUGINS}/{name}" for name in NAMES)


class SentryBench(Bench):
    """A node in a directory with a runtime of some version."""

    runtime = "containerd v2.4.2"

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(FakeNode(directory / "root"), directory / "config.toml", capsys)
        self.config.write_text(f"{NRI}colocation.enabled = true\n")
        self.node.version = lambda socket: self.runtime  # type: ignore[method-assign]

    def switch(self, to: str) -> int:
        status = sentry.run(to, self.config, self.node, self.node.root)
        self.out, self.err = self._capsys.readouterr()
        return status

    def path(self, name: str) -> Path:
        return self.node.root / name.lstrip("/")

    def plugins(self) -> list[str]:
        return sorted(path.name for path in self.path(PLUGINS).glob("**/*"))


@pytest.fixture
def node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> SentryBench:
    return SentryBench(tmp_path, capsys)


def test_on_puts_both_plugins_and_the_rules_there(node: SentryBench) -> None:
    assert node.switch("on") == 0

    assert node.plugins() == list(NAMES)
    assert [stat.S_IMODE(node.path(one).stat().st_mode) for one in (LAUNCHER, SENTRY)] == [0o755, 0o755]
    assert node.path(SENTRY).read_text().startswith("#!/")
    assert msgspec.json.decode(node.path(RULES).read_bytes()) == {"rules": [], "let_by": []}, "criproxy says more"
    assert "on from the next start of containerd" in node.out


def test_on_twice_is_on(node: SentryBench) -> None:
    node.switch("on")
    before = node.node.files()

    assert node.switch("on") == 0
    assert node.node.files() == before


def test_on_keeps_the_orders_that_are_there(node: SentryBench) -> None:
    node.node.write(RULES, "orders of a criproxy")

    assert node.switch("on") == 0
    assert node.node.text(RULES) == "orders of a criproxy"


VERSIONS = {
    "containerd 1.6.20": False,
    "containerd 1.7.24~ds1": False,
    "containerd 1.7.26": False,
    "containerd 1.7.27": True,
    "containerd v2.0.0": True,
    "containerd v2.4.2-k3s1": True,
    "containerd": False,
    "containerd v2": False,
    "containerd unknown": False,
    "cri-o 1.31.9": False,
    "cri-o 1.32.0": True,
    "docker 27.0.0": False,
}


@pytest.mark.parametrize(("runtime", "can"), VERSIONS.items(), ids=VERSIONS.keys())
def test_a_runtime_that_it_could_end_is_refused_with_a_word(node: SentryBench, runtime: str, can: bool) -> None:
    node.runtime = runtime

    assert node.switch("on") == (0 if can else 1)

    assert bool(node.plugins()) == can
    assert (node.path(RULES).exists()) == can
    if not can:
        assert runtime in node.err


def test_a_full_disk_leaves_what_was_there(node: SentryBench, monkeypatch: pytest.MonkeyPatch) -> None:
    node.switch("on")
    before = node.node.files()
    node.config.write_text(f'{NRI}proxy.listen = "/run/elsewhere/criproxy.sock"\n')

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)

    assert node.switch("on") == 1
    assert "No space left on device" in node.err
    assert node.node.files() == before
    assert node.plugins() == list(NAMES)


def test_a_disk_that_is_full_from_the_first_plugin_on_leaves_none_half_written(
    node: SentryBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_file: int, _mode: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fchmod", full)
    node.node.write(RULES, "")

    assert node.switch("on") == 1
    assert node.plugins() == []


def test_no_executable_of_another_name_is_ever_in_the_directory(
    node: SentryBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containerd's CRI service ends for one. Looked at whenever something reaches the disk."""
    seen: list[str] = []
    fsync = os.fsync

    def look(file: int) -> None:
        seen.extend(path.name for path in node.path(PLUGINS).glob("*") if path.is_file())
        fsync(file)

    monkeypatch.setattr(os, "fsync", look)
    node.switch("on")
    node.switch("on")

    assert set(seen) == set(NAMES)


def test_off_leaves_nothing(node: SentryBench) -> None:
    before = node.node.files()
    node.switch("on")

    assert node.switch("off") == 0
    assert node.node.files() == before
    assert node.switch("off") == 0
    assert node.out == "off already\n"


def test_off_needs_neither_runtime_nor_config(node: SentryBench) -> None:
    node.switch("on")
    node.config.write_text("nonsense")
    node.node.version = None  # type: ignore[method-assign,assignment]

    assert node.switch("off") == 0
    assert node.plugins() == []


def test_others_plugins_stay(node: SentryBench) -> None:
    node.node.write(f"{PLUGINS}/10-other", "")
    node.switch("on")
    node.switch("off")

    assert node.plugins() == ["10-other"]


def test_a_broken_config_changes_nothing(node: SentryBench) -> None:
    node.config.write_text("colocation.enabled = 7\n")

    assert node.switch("on") == 1
    assert node.plugins() == []


def test_detach_leaves_it_on_where_the_runtime_calls(node: SentryBench) -> None:
    """The status advises to detach there where kubelet calls, too."""
    node.node.kubeadm()
    node.switch("on")

    assert node.detach() == 0
    assert node.plugins() == list(NAMES)
    assert node.path(RULES).exists()


def test_detach_takes_what_is_left_of_it_by_the_other_front_and_says_so(node: SentryBench) -> None:
    node.node.kubeadm()
    node.switch("on")
    node.config.write_text("colocation.enabled = true\n")

    assert node.detach(dry_run=True) == 0
    assert node.plugins() == list(NAMES)
    assert node.detach() == 0
    assert node.plugins() == []
    assert not node.path(RULES).exists()
    assert f"the runtime's sentry is off: removed {RULES}, {LAUNCHER}, {SENTRY}" in node.out
    assert node.detach() == 0
    assert "sentry" not in node.out


def test_it_is_of_the_nri_front_alone(node: SentryBench) -> None:
    node.config.write_text("colocation.enabled = true\n")

    assert node.switch("on") == 1
    assert 'proxy.front is "cri"' in node.err
    assert node.plugins() == []


def test_what_the_launcher_says_is_what_the_nri_front_takes() -> None:
    assert Path(plugin.HANDED).name == handed.NAME
    assert plugin.TAKEN == handed.TAKEN
    assert NAMES == ("95-criproxy", "99-criproxy-sentry"), "the sentry is asked last"


def test_the_paths_are_those_of_the_config(node: SentryBench) -> None:
    node.config.write_text(f'{NRI}proxy.listen = "/run/elsewhere/criproxy.sock"\n')
    node.switch("on")

    assert "HANDED = '/run/elsewhere/nri-launcher.sock'" in node.path(LAUNCHER).read_text()
