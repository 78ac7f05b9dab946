"""Attach and detach from each place that a kubelet has its endpoint from."""

import pytest

from tests.commands.attach.attach_bench import (
    DROPIN_WITH_FLAG,
    KUBELET_CONFIG,
    ON_PROXY,
    ON_RUNTIME,
    UNIT_WITH_FLAG,
    Bench,
    shell_node,
)
from tests.fakes.node import CONFIG, DROPIN, LISTEN, RUNTIME, STATE, UNIT

PLACES = {
    "unit": lambda node: (
        node.write(f"/etc/systemd/system/{UNIT}", UNIT_WITH_FLAG),
        node.boot(),
    ),
    "kubeadm-flags": lambda node: node.kubeadm(),
    "extra-args": lambda node: (
        node.write("/etc/default/kubelet", f"KUBELET_EXTRA_ARGS=--container-runtime-endpoint={ON_RUNTIME}\n"),
        node.kubeadm("--v=2"),
    ),
    "drop-in": lambda node: (
        node.write(f"/etc/systemd/system/{UNIT}.d/99-local.conf", DROPIN_WITH_FLAG),
        node.kubeadm("--container-runtime-endpoint=unix:///run/other.sock"),
    ),
    "default": lambda node: node.kubeadm("--v=2"),
    "config": lambda node: (
        node.kubeadm("--v=2"),
        node.write(KUBELET_CONFIG, f"{CONFIG}containerRuntimeEndpoint: {ON_RUNTIME}\n"),
        node.boot(),
    ),
    "shell-config": lambda node: shell_node(node, f"--config={KUBELET_CONFIG}"),
    "shell-config-dir": lambda node: (
        node.write("/etc/kubelet.d/10-x.conf", f"{CONFIG}containerRuntimeEndpoint: {ON_RUNTIME}\n"),
        shell_node(node, f"--config={KUBELET_CONFIG} --config-dir=/etc/kubelet.d"),
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_attach_and_detach_from_each_place_gives_the_bytes_back(bench: Bench, place: str) -> None:
    PLACES[place](bench.node)
    before = bench.node.files()
    assert bench.node.endpoint == ON_RUNTIME
    assert bench.attach() == 0, bench.err
    assert bench.node.endpoint == ON_PROXY
    assert "attached: kubelet is well, and calls come through criproxy\n" in bench.out
    assert bench.detach() == 0, bench.err
    assert bench.node.endpoint == ON_RUNTIME
    assert (bench.node.files(), bench.record()) == (before, None)
    assert f"detached: kubelet is well on {ON_RUNTIME}\n" in bench.out


@pytest.mark.parametrize("place", PLACES)
def test_attach_where_a_flag_can_be_added_writes_one_file_of_its_own(bench: Bench, place: str) -> None:
    PLACES[place](bench.node)
    before = bench.node.files()
    bench.attach()
    changed = {f"/{name}" for name, content in bench.node.files().items() if before.get(name) != content}
    own = {"shell-config": KUBELET_CONFIG, "shell-config-dir": "/etc/kubelet.d/zz-criproxy.conf"}
    assert changed == {own.get(place, DROPIN)}


@pytest.mark.parametrize("place", PLACES)
def test_attach_twice_says_so_and_restarts_nothing(bench: Bench, place: str) -> None:
    PLACES[place](bench.node)
    bench.attach()
    files, ran, record = bench.node.files(), list(bench.node.ran), bench.record()
    assert bench.attach() == 0
    assert bench.out.startswith(f"already attached: kubelet uses {ON_PROXY}, by ")
    assert (bench.node.files(), bench.node.ran, bench.record()) == (files, ran, record)


@pytest.mark.parametrize("place", PLACES)
def test_detach_without_its_record_and_config_goes_by_what_is_on_the_node(bench: Bench, place: str) -> None:
    PLACES[place](bench.node)
    bench.attach()
    (bench.node.root / STATE[1:]).unlink()
    bench.config.unlink()
    bench.node.criproxy = False
    bench.node.served = {RUNTIME}
    assert bench.detach() == 0, bench.err
    assert bench.node.endpoint == ON_RUNTIME
    assert LISTEN not in "".join(content.decode() for content in bench.node.files().values())


@pytest.mark.parametrize("place", PLACES)
def test_dry_runs_show_and_change_nothing(bench: Bench, place: str) -> None:
    PLACES[place](bench.node)
    before, ran = bench.node.files(), list(bench.node.ran)
    assert bench.attach(dry_run=True) == 0, bench.err
    assert f"{ON_PROXY}" in "".join(line for line in bench.out.splitlines() if line.startswith("+"))
    assert bench.out.endswith("would run: systemctl daemon-reload\nwould run: systemctl restart kubelet.service\n")
    assert (bench.node.files(), bench.node.ran, bench.record()) == (before, ran, None)
    bench.attach()
    attached, ran = bench.node.files(), list(bench.node.ran)
    assert bench.detach(dry_run=True) == 0
    assert f"{ON_PROXY}" in "".join(line for line in bench.out.splitlines() if line.startswith("-"))
    assert (bench.node.files(), bench.node.ran) == (attached, ran)
