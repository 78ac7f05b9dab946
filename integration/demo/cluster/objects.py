"""What the demo asks of Kubernetes: an online Deployment that can burst, and a Job of offline pods. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from criproxy.control.memory_pressure import margin_bytes
from integration.demo import DemoError
from integration.demo.pods import CLASS_LABEL, ONLINE
from integration.lab.images import BUSYBOX

BATCH_CPU: Final = "kubernetes.io/batch-cpu"
BATCH_MEMORY: Final = "kubernetes.io/batch-memory"
JOB: Final = "crunch"
PODS: Final = 3
OFFLINE_MILLICORES: Final = 100
"""What each offline pod requests. It uses whatever it gets."""

BURST: Final = "burst"
"""A file: while it is there the online pod takes memory, step by step; then it gives all of it back."""

_STEP_S: Final = 0.8
HOLD_AFTER_S: Final = 5
"""A pod that comes in another's place takes memory of the same machine, wherever it is placed: not at once, therefore.
"""

_SIGNALS: Final = "/signals"
_ENOUGH_ROOM_MIB: Final = 4000
_MARGINS: Final = 4
_LEAST_ROOM_MIB: Final = 1200
_ROOM_RATIO: Final = 0.6
_OFFLINE_RATIO: Final = 0.15
_REQUESTED_RATIO: Final = 0.4
_STEPS: Final = 40
_WORK: Final = 3000
"""Turns of a shell's loop per request: beside the shell's own start, some 3 ms."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Memory, in MiB. kubelet evicts when it has given away `room_mib` of what was free when it started.

    Each offline pod holds `offline_mib`, which is more than the `requested_mib` that it requests; one that goes makes
    enough room for the others to stay.
    """

    room_mib: int
    offline_mib: int
    requested_mib: int
    step_mib: int
    steps: int = _STEPS


def sizes(available_bytes: int, capacity_bytes: int) -> Sizes:
    """For a machine with so much memory, of which so much is free. Raises DemoError when that is too little.

    One pod's memory must be more than half of the margin that criproxy keeps free, which is a share of the machine.
    """
    available_mib, margin_mib = available_bytes >> 20, int(margin_bytes(capacity_bytes)) >> 20
    room_mib = min(max(_ENOUGH_ROOM_MIB, _MARGINS * margin_mib), int(_ROOM_RATIO * available_mib))
    if room_mib < _LEAST_ROOM_MIB:
        raise DemoError(
            f"The demo of a cluster needs {_LEAST_ROOM_MIB / _ROOM_RATIO / 1024:.0f} GiB of free memory, this machine "
            f"has {available_mib / 1024:.1f}: end something, or run it on a larger one."
        )
    offline_mib = int(_OFFLINE_RATIO * room_mib)
    return Sizes(room_mib, offline_mib, int(_REQUESTED_RATIO * offline_mib), max(room_mib // _STEPS, 1))


def deployment(port: int, signals: Path, sizes: Sizes) -> dict[str, Any]:
    """An online service that answers HTTP on 127.0.0.1:`port`, at the path /cgi-bin/work.

    `signals` is where it looks for the file `BURST`.
    """
    labels = {"app": ONLINE}
    requests = {"cpu": "500m", "memory": "64Mi"}
    pod = _pod(_online_command(port, sizes), requests, "Always")
    pod["containers"][0]["volumeMounts"] = [{"name": "signals", "mountPath": _SIGNALS, "readOnly": True}]
    pod["volumes"] = [{"name": "signals", "hostPath": {"path": str(signals), "type": "Directory"}}]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": ONLINE},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}},
    }


def job(sizes: Sizes) -> dict[str, Any]:
    """Offline pods as anybody writes them: a label, and requests of CPU and memory."""
    requests = {"cpu": f"{OFFLINE_MILLICORES}m", "memory": f"{sizes.requested_mib}Mi"}
    pod = _pod(_offline_command(sizes), requests, "Never")
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": JOB},
        "spec": {
            "parallelism": PODS,
            "completions": PODS,
            "backoffLimit": 100,
            "template": {"metadata": {"labels": {CLASS_LABEL: "offline"}}, "spec": pod},
        },
    }


def _pod(command: Sequence[str], requests: dict[str, str], restart: str) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": list(command),
        "resources": {"requests": requests},
    }
    return {
        "hostNetwork": True,  # the nodes have no network for pods
        "restartPolicy": restart,
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [container],
    }


_ONLINE: Final = r"""
export WORK
mkdir -p /tmp/www/cgi-bin
cat >/tmp/www/cgi-bin/work <<'CGI'
#!/bin/sh
i=0; while [ $i -lt $WORK ]; do i=$((i + 1)); done
printf 'Content-Type: text/plain\r\n\r\ndone\n'
CGI
chmod +x /tmp/www/cgi-bin/work
busybox httpd -f -p 127.0.0.1:$PORT -h /tmp/www &
while :; do
  until [ -e $BURST ]; do sleep 0.2; done
  n=0 held=
  while [ -e $BURST ]; do
    if [ $((n % 4)) = 0 ] && [ $n -lt $((4 * STEPS)) ]; then
      dd if=/dev/zero bs=${STEP}M count=1 2>/dev/null | sleep 2147483647 &
      held="$held $!"
    fi
    n=$((n + 1))
    sleep $PAUSE
  done
  kill $held
done
"""


def _online_command(port: int, sizes: Sizes) -> tuple[str, ...]:
    settings = {
        "WORK": _WORK,
        "PORT": port,
        "BURST": f"{_SIGNALS}/{BURST}",
        "STEP": sizes.step_mib,
        "STEPS": sizes.steps,
        "PAUSE": _STEP_S / 4,
    }
    return ("sh", "-c", "".join(f"{name}={value}\n" for name, value in settings.items()) + _ONLINE)


def _offline_command(sizes: Sizes) -> tuple[str, ...]:
    """It takes its memory after a while, and all CPU that it gets."""
    hold = f"dd if=/dev/zero bs={sizes.offline_mib * 9 // 10}M count=1 2>/dev/null | sleep 2147483647"
    return ("sh", "-c", f"(sleep {HOLD_AFTER_S}; {hold}) &\n(while :; do :; done) &\nwhile :; do :; done")
