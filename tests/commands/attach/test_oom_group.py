"""memory.oom.group of running containers outlives attach and detach, whose reload of systemd resets it."""

from pathlib import Path

import pytest

from criproxy.commands.attach.host import put_back, set_below
from tests.commands.attach.attach_bench import Bench


@pytest.fixture
def kubeadm(bench: Bench) -> Bench:
    bench.node.kubeadm()
    return bench


def test_attach_and_detach_leave_running_containers_as_they_were_however_late_systemd_resets_them(
    kubeadm: Bench,
) -> None:
    node = kubeadm.node
    grouped, single = node.container("a", "1"), node.container("b", "0")
    assert kubeadm.attach() == 0
    assert ((node.text(grouped) or "").strip(), (node.text(single) or "").strip()) == ("1", "0")
    assert kubeadm.detach() == 0
    assert ((node.text(grouped) or "").strip(), (node.text(single) or "").strip()) == ("1", "0")


def test_failed_attach_leaves_running_containers_as_they_were(kubeadm: Bench) -> None:
    node = kubeadm.node
    grouped = node.container("a", "1")
    node.healthy = lambda endpoint: "criproxy" not in endpoint
    assert kubeadm.attach() == 1
    assert (node.text(grouped) or "").strip() == "1"


def test_dry_run_reloads_nothing_and_writes_nothing(kubeadm: Bench) -> None:
    grouped = kubeadm.node.container("a", "1")
    assert kubeadm.attach(dry_run=True) == 0
    assert kubeadm.node.text(grouped) == "1\n"


@pytest.fixture
def cgroups(tmp_path: Path) -> Path:
    for name, value in (("a", "1"), ("b", "0"), ("a/inner", "1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "memory.oom.group").write_text(f"{value}\n")
    return tmp_path


def test_put_back_touches_only_what_was_reset(cgroups: Path) -> None:
    kept = set_below(cgroups)
    assert set(kept) == {cgroups / "a" / "memory.oom.group", cgroups / "a" / "inner" / "memory.oom.group"}
    put_back(kept)
    assert (cgroups / "a" / "memory.oom.group").read_text() == "1\n"
    (cgroups / "a" / "memory.oom.group").write_text("0\n")
    put_back(kept)
    assert (cgroups / "a" / "memory.oom.group").read_text() == "1"
    assert (cgroups / "b" / "memory.oom.group").read_text() == "0\n"


def test_container_that_has_gone_meanwhile_is_left_out(cgroups: Path) -> None:
    kept = set_below(cgroups)
    (cgroups / "a" / "inner" / "memory.oom.group").unlink()
    (cgroups / "a" / "inner").rmdir()
    put_back(kept)
    assert not (cgroups / "a" / "inner").exists()


def test_node_without_such_a_file_has_nothing_to_keep(tmp_path: Path) -> None:
    assert set_below(tmp_path / "not-there") == []
