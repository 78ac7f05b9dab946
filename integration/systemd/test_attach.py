"""`criproxy attach` and `detach` of a real kubelet that is a service of this node, as kubeadm and others set it up.

All in one process where nothing has to die: a Python starts slowly here.
"""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from criproxy.commands.attach.command import run
from integration.lab.kubelet import find_kubelet, static_pod
from integration.lab.naming import driver
from integration.lab.process import wait_until
from integration.systemd import pods, service
from integration.systemd.service import CONFIG, LISTEN, RUNTIME, systemctl

ON_PROXY, ON_RUNTIME = f"unix://{LISTEN}", f"unix://{RUNTIME}"
FLAGS = f"--v=2 --container-runtime-endpoint={ON_RUNTIME}"
UNIT = Path("/usr/lib/systemd/system/kubelet.service")
PACKAGED = UNIT.with_name("kubelet.service.d") / "10-kubeadm.conf"
LOCAL = Path("/etc/systemd/system/kubelet.service.d")
OURS = LOCAL / "zz-criproxy.conf"
KUBEADM_FLAGS = Path("/var/lib/kubelet/kubeadm-flags.env")
DEFAULTS = Path("/etc/default/kubelet")
KUBELET_CONFIG = Path("/var/lib/kubelet/config.yaml")
MANIFESTS = Path("/etc/kubernetes/manifests")
RECORD = Path("/var/lib/criproxy/attach.json")
WELL_S = 180

BARE = """\
[Service]
ExecStart=/usr/bin/kubelet --hostname-override=node --config={config} {flags}
Restart=always
RestartSec=2
"""
VARIABLES = """\
[Service]
Environment="KUBELET_CONFIG_ARGS=--hostname-override=node --config={config}"
EnvironmentFile=-{kubeadm_flags}
EnvironmentFile=-{defaults}
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
"""
PLACES: dict[str, dict[Path, str]] = {
    "unit": {UNIT: BARE.replace("{flags}", FLAGS.replace(" ", " \\\n  "))},
    "kubeadm-flags": {PACKAGED: VARIABLES, KUBEADM_FLAGS: f'KUBELET_KUBEADM_ARGS="{FLAGS}"\n'},
    "extra-args": {PACKAGED: VARIABLES, DEFAULTS: f"KUBELET_EXTRA_ARGS={FLAGS}\n"},
    "drop-in": {PACKAGED: VARIABLES, LOCAL / "20-local.conf": f'[Service]\nEnvironment="KUBELET_EXTRA_ARGS={FLAGS}"\n'},
}


@pytest.fixture(scope="module", autouse=True)
def node() -> None:
    """criproxy runs, and kubelet as kubeadm makes it, with one ordinary pod."""
    service.install(pods.STATIC)
    service.start()
    Path("/usr/bin/kubelet").symlink_to(find_kubelet())
    MANIFESTS.mkdir(parents=True)
    KUBELET_CONFIG.parent.mkdir(parents=True, exist_ok=True)
    KUBELET_CONFIG.write_text(json.dumps(_configuration(), indent=1))
    (MANIFESTS / "pod.json").write_text(json.dumps(static_pod("web")))


def _configuration() -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "staticPodPath": str(MANIFESTS),
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "readOnlyPort": 10255,
        "cgroupDriver": driver().value,
        "failSwapOn": False,
        "resolvConf": "",
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "makeIPTablesUtilChains": False,
    }


def set_up(place: str, more: Mapping[Path, str] | None = None) -> None:
    """Install kubelet's files with the endpoint at `place`, and `more`, but nothing of another place; restart it."""
    for path in (PACKAGED, KUBEADM_FLAGS, DEFAULTS, *LOCAL.glob("*")):
        path.unlink(missing_ok=True)
    files = {UNIT: BARE.replace("{flags}", ""), **PLACES[place], **(more or {})}
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            text.replace("{config}", str(KUBELET_CONFIG))
            .replace("{kubeadm_flags}", str(KUBEADM_FLAGS))
            .replace("{defaults}", str(DEFAULTS))
        )
    systemctl("daemon-reload")
    systemctl("restart", "kubelet.service")
    wait_until(is_well, WELL_S, "kubelet to be well", poll_s=0.5)
    told_pod()


@pytest.fixture
def kubeadm() -> Iterator[dict[Path, bytes]]:
    """A node as kubeadm sets it up, not attached; the files as they are then."""
    set_up("kubeadm-flags")
    yield files()


def files() -> dict[Path, bytes]:
    found = [UNIT, PACKAGED, KUBEADM_FLAGS, DEFAULTS, KUBELET_CONFIG, RECORD, *LOCAL.glob("*")]
    return {path: path.read_bytes() for path in found if path.exists()}


def is_well() -> bool:
    try:
        with urllib.request.urlopen("http://127.0.0.1:10248/healthz", timeout=5) as answer:
            status: int = answer.status
            return status == 200
    except OSError:
        return False


def endpoint() -> str:
    """What the kubelet that runs was told last."""
    words = Path(f"/proc/{service.show('kubelet.service', 'MainPID')}/cmdline").read_text().split("\0")
    return [word.partition("=")[2] for word in words if word.startswith("--container-runtime-endpoint=")][-1]


def web_pod() -> tuple[str, int] | None:
    """The container of the pod that runs all the time, and its restarts; None: it does not run."""
    try:
        with urllib.request.urlopen("http://127.0.0.1:10255/pods", timeout=5) as answer:
            pods = json.load(answer)["items"] or []
    except OSError:
        return None
    found = [status for pod in pods for status in pod.get("status", {}).get("containerStatuses", [])]
    return (found[0]["containerID"], found[0]["restartCount"]) if found and "running" in found[0]["state"] else None


def told_pod() -> tuple[str, int]:
    """`web_pod`, once kubelet tells that it runs."""
    pod = wait_until(web_pod, WELL_S, "the pod to be told of", poll_s=1)
    assert pod is not None
    return pod


def calls() -> float:
    lines = service.ask("/metrics")
    return sum(float(value) for value in re.findall(r"^criproxy_calls_total\{.*\} (\S+)$", lines, re.MULTILINE))


def attached() -> str:
    state: str = json.loads(service.ask("/status"))["attached"]["state"]
    return state


def spawn(verb: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "criproxy", verb], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.parametrize("place", PLACES)
def test_attach_and_detach_leave_pods_alone_and_give_the_bytes_back(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up(place)
    before, pod = files(), told_pod()
    assert (endpoint(), attached()) == (ON_RUNTIME, "no")
    assert run("attach", CONFIG, dry_run=True) == 0
    assert files() == before
    seen = calls()
    assert run("attach", CONFIG, dry_run=False) == 0, capsys.readouterr()
    assert (endpoint(), attached()) == (ON_PROXY, "yes")
    wait_until(lambda: calls() > seen + 5, WELL_S, "kubelet's calls to come through criproxy", poll_s=0.5)
    assert {path for path, content in files().items() if before.get(path) != content} == {OURS, RECORD}
    assert told_pod() == pod
    began = service.show("kubelet.service", "ExecMainStartTimestampMonotonic")
    assert run("attach", CONFIG, dry_run=False) == 0
    assert service.show("kubelet.service", "ExecMainStartTimestampMonotonic") == began, "already attached"
    assert run("detach", CONFIG, dry_run=False) == 0, capsys.readouterr()
    assert (files(), endpoint(), attached()) == (before, ON_RUNTIME, "no")
    assert told_pod() == pod


def test_attach_of_a_kubelet_that_cannot_reach_criproxy_rolls_back(
    kubeadm: dict[Path, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    LOCAL.mkdir(parents=True, exist_ok=True)
    (LOCAL / "50-blind.conf").write_text(f"[Service]\nInaccessiblePaths={LISTEN.parent}\nPrivateMounts=yes\n")
    systemctl("daemon-reload")
    before, pod = files(), told_pod()
    assert run("attach", CONFIG, dry_run=False) == 1
    told = capsys.readouterr()
    assert "rolled back: kubelet is as it was" in told.err
    assert "kubelet has ended after its restart" in told.out
    assert (files(), endpoint(), is_well()) == (before, ON_RUNTIME, True)
    assert told_pod() == pod


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["term", "kill"])
def test_attach_that_is_ended_in_the_middle_is_undone(
    kubeadm: dict[Path, bytes], number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    with spawn("attach") as attaching:
        wait_until(OURS.exists, WELL_S, "the drop-in", poll_s=0.05)
        attaching.send_signal(number)
        told, _ = attaching.communicate(timeout=WELL_S)
    if number == signal.SIGTERM:
        assert (attaching.returncode, "ended by SIGTERM" in told) == (1, True), told
    else:
        assert RECORD.exists()
        assert run("detach", CONFIG, dry_run=False) == 0
        assert "was ended in the middle" in capsys.readouterr().out
    assert (files(), endpoint(), is_well()) == (kubeadm, ON_RUNTIME, True)


def test_detach_with_criproxy_dead_its_config_broken_and_its_record_lost_is_done(kubeadm: dict[Path, bytes]) -> None:
    assert run("attach", CONFIG, dry_run=False) == 0
    service.fresh()
    RECORD.unlink()
    CONFIG.write_text("[proxy\n")
    try:
        assert not os.path.lexists(LISTEN)
        assert run("detach", CONFIG, dry_run=False) == 0
        assert (files(), endpoint(), is_well()) == (kubeadm, ON_RUNTIME, True)
    finally:
        service.configure(pods.STATIC)
        service.start()


def test_attach_of_a_kubelet_that_is_stopped_knows_its_endpoint_and_takes_effect_with_its_start(
    kubeadm: dict[Path, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    systemctl("stop", "kubelet.service")
    assert run("attach", CONFIG, dry_run=False) == 0
    told = capsys.readouterr().out
    assert f"kubelet uses {ON_RUNTIME}, by {KUBEADM_FLAGS}\n" in told
    assert "it will use criproxy from its start on" in told
    systemctl("start", "kubelet.service")
    wait_until(is_well, WELL_S, "kubelet to be well", poll_s=0.5)
    assert endpoint() == ON_PROXY
    assert run("detach", CONFIG, dry_run=False) == 0
    assert (files(), endpoint(), is_well()) == (kubeadm, ON_RUNTIME, True)
