"""What the demo asks of Kubernetes: an online Deployment that can burst, and a Job of offline pods. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from criproxy.control.memory_pressure import margin_bytes
from integration.demo import DemoError
from integration.demo.node import ONLINE
from integration.lab.kubelet import static_pod
from integration.lab.node import OFFLINE

BATCH_CPU: Final = "kubernetes.io/batch-cpu"
BATCH_MEMORY: Final = "kubernetes.io/batch-memory"
JOB: Final = "crunch"
PODS: Final = 3
BURST: Final = "burst"
"""A file: while it is there the online pod takes memory, step by step; then it gives all of it back."""

HOLD_AFTER_S: Final = 5
"""A pod that comes in another's place takes memory of the same machine, wherever it is placed: not at once, therefore.
"""

_LEAST_ROOM_MIB: Final = 1200
_ROOM_RATIO: Final = 0.6
_STEPS: Final = 40


@dataclass(frozen=True, slots=True)
class Sizes:
    """Memory, in MiB. kubelet evicts when it has given away `room_mib` of what was free when it started.

    Each offline pod holds `offline_mib`, which is more than the `requested_mib` that it requests; one that goes makes
    enough room for the others to stay. Online's burst takes `steps` times `step_mib`.
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
    room_mib = min(max(4000, 4 * margin_mib), int(_ROOM_RATIO * available_mib))
    if room_mib < _LEAST_ROOM_MIB:
        raise DemoError(
            f"The demo of a cluster needs {_LEAST_ROOM_MIB / _ROOM_RATIO / 1024:.0f} GiB of free memory, this machine "
            f"has {available_mib / 1024:.1f}: end something, or run it on a larger one."
        )
    offline_mib = int(0.15 * room_mib)
    return Sizes(room_mib, offline_mib, int(0.4 * offline_mib), max(room_mib // _STEPS, 1))


_ONLINE: Final = r"""
mkdir -p /tmp/www/cgi-bin
cat >/tmp/www/cgi-bin/work <<'CGI'
#!/bin/sh
i=0; while [ $i -lt 3000 ]; do i=$((i + 1)); done # beside the shell's own start, some 3 ms
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
    sleep 0.2
  done
  kill $held
done
"""


def deployment(port: int, signals: Path, sizes: Sizes) -> dict[str, Any]:
    """An online service that answers HTTP on 127.0.0.1:`port`, at the path /cgi-bin/work.

    `signals` is where it looks for the file `BURST`.
    """
    script = f"PORT={port}\nBURST=/signals/{BURST}\nSTEP={sizes.step_mib}\nSTEPS={sizes.steps}\n{_ONLINE}"
    pod = _pod(script, {"cpu": "500m", "memory": "64Mi"}, "Always")
    pod["containers"][0]["volumeMounts"] = [{"name": "signals", "mountPath": "/signals", "readOnly": True}]
    pod["volumes"] = [{"name": "signals", "hostPath": {"path": str(signals), "type": "Directory"}}]
    labels = {"app": ONLINE}
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": ONLINE}, "spec": spec}


def job(sizes: Sizes) -> dict[str, Any]:
    """Offline pods as anybody writes them: a label, and requests of CPU and memory.

    Each takes its memory after a while, and all CPU that it gets.
    """
    hold = f"dd if=/dev/zero bs={sizes.offline_mib * 9 // 10}M count=1 2>/dev/null | sleep 2147483647"
    script = f"(sleep {HOLD_AFTER_S}; {hold}) &\n(while :; do :; done) &\nwhile :; do :; done"
    pod = _pod(script, {"cpu": "100m", "memory": f"{sizes.requested_mib}Mi"}, "Never")
    template = {"metadata": {"labels": OFFLINE}, "spec": pod}
    spec = {"parallelism": PODS, "completions": PODS, "backoffLimit": 100, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": JOB}, "spec": spec}


def _pod(script: str, requests: Mapping[str, str], restart: str) -> dict[str, Any]:
    pod: dict[str, Any] = static_pod("", ("sh", "-c", script), resources={"requests": requests})["spec"]
    return {**pod, "restartPolicy": restart, "automountServiceAccountToken": False, "enableServiceLinks": False}
