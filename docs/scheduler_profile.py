"""kube-scheduler's configuration, which places by what nodes lend. `docs.generate` writes it, a row for each name."""

from typing import Final

from criproxy.vocabulary.presets import NAMES

_BEGIN: Final = """\
# Made from criproxy/vocabulary/presets.py by `.venv/bin/python -m docs.generate`.
# The cluster's kube-scheduler, with what nodes lend in its score; Kubernetes 1.25 and later. Give it to the scheduler
# that places all pods (kube-scheduler --config FILE), and to no second one: two would fill the same room.
#
# Stock kube-scheduler scores a node by its CPU and memory alone, of which an offline pod asks for nothing: it spreads
# such pods blindly. With these resources it scores by the share of what a node lends that is still free, and what a
# node lends follows its load. A resource that a pod does not ask for has no part in its score, so online pods are
# scored as ever.
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection:
  kubeconfig: /etc/kubernetes/scheduler.conf
profiles:
"""

_PROFILE: Final = """\
  - schedulerName: {name}
    pluginConfig:
      - name: NodeResourcesFit
        args:
          scoringStrategy:
            type: LeastAllocated
            resources:
"""

_PROFILES: Final = (
    "default-scheduler",
    "koord-scheduler # Koordinator's manifests name it: without it their pods stay pending",
)
_PLAIN_WEIGHT: Final = 1
_LENT_WEIGHT: Final = 10


def kube_scheduler() -> str:
    """The file."""
    weights = dict.fromkeys(("cpu", "memory"), _PLAIN_WEIGHT)
    weights |= dict.fromkeys((name for names in NAMES.values() for name, _, _ in names.rows), _LENT_WEIGHT)
    resources = "".join(f"              - {{name: {name}, weight: {weight}}}\n" for name, weight in weights.items())
    return _BEGIN + "".join(_PROFILE.format(name=name) + resources for name in _PROFILES)
