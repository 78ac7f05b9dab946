"""The names that criproxy reads and writes in Kubernetes' objects, and other systems' names for the same. Pure."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

PREFIX: Final = "colocation.criproxy.io/"

# --- of pods ---------------------------------------------------------------------------------------------------------

CLASS: Final = f"{PREFIX}class"
OFFLINE: Final = "offline"

RESOURCES: Final = f"{PREFIX}resources"
"""A pod's annotation: JSON, the CPU and memory that its containers asked for, in Kubernetes' own quantities:
{"containers": {NAME: {"requests": {"cpu": "1500m"}, "limits": {"memory": "1Gi"}}}}.
"""

KEEP_REQUESTS: Final = f"{PREFIX}keep-requests"
"""A pod's annotation, "true": it is offline, but its requests stay as they are."""

EVICTED_FROM: Final = f"evicted.{PREFIX}"
"""A Node's label, followed by the uid of a pod's controller: pods of that controller are not to come here for now.

The node writes it before it evicts; the controller makes good what is missing, and takes it away in time.
"""

# --- of nodes --------------------------------------------------------------------------------------------------------

POLICY: Final = f"{PREFIX}policy"
"""A Node's annotation, written by the controller: the settings that hold above the node's own file."""

POLICIES: Final = f"{PREFIX}policies"
"""A Node's annotation, written by the controller: what that policy was made of, so that each is tried by itself."""

POLICY_STATUS: Final = f"{PREFIX}policy-status"
"""A Node's annotation, written by the node: what it makes of the policy."""

EVICTED: Final = f"{PREFIX}evicted"
"""A Node's annotation, written by the node: JSON, uid of a pod's controller -> FROM/UNTIL (RFC 3339)."""

PUBLISHES: Final = f"{PREFIX}publishes"
"""A Node's annotation, written by the node: the names of what it publishes, with commas between. None: the presets'."""

CONDITION: Final = "ColocationReady"
"""A Node's condition, written by the node each few minutes."""

HELD: Final = "Held"
"""The condition's reason while offline pods are held back, as they hurt online ones."""

OCCUPIED: Final = "Occupied"
"""The condition's reason while nothing is lent, and offline pods run on."""

SWITCH: Final = f"{PREFIX}switch"
"""A Node's label, written by people: "off" drains the node and publishes nothing, whatever its policies say."""

MANAGED: Final = f"{PREFIX}managed"
"""A Node's label, written by people: "false" leaves its policy annotation alone, for a change by hand.

Above it is the switch alone.
"""

PRESSURE: Final = f"{PREFIX}pressure"
"""The taint of a node whose offline pods are held back."""


class Mark(Struct, frozen=True):
    """A label that makes a pod an offline one. Only labels can choose what reaches a webhook."""

    key: str
    value: str


MARKS: Final = (
    Mark(CLASS, OFFLINE),
    Mark("koordinator.sh/qosClass", "BE"),
    Mark("caster.io/resource-type", "colocation"),
)


class ExtendedNames(Struct, frozen=True):
    """What CPU and memory are called when a node lends them. `per_core`: how much of it one core is.

    `native`: below kubernetes.io/, so that a request may be less than its limit.
    """

    cpu: str
    memory: str
    per_core: int = 1000

    @property
    def native(self) -> bool:
        return self.cpu.startswith("kubernetes.io/")


PRESETS: Final[Mapping[str, ExtendedNames]] = {
    "batch": ExtendedNames("kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"),
    "mid": ExtendedNames("kubernetes.io/mid-cpu", "kubernetes.io/mid-memory"),
    "crane": ExtendedNames("gocrane.io/cpu", "gocrane.io/memory", 1),
    "katalyst": ExtendedNames(
        "resource.katalyst.kubewharf.io/reclaimed_millicpu", "resource.katalyst.kubewharf.io/reclaimed_memory"
    ),
    "bilibili": ExtendedNames("caster.io/colocation-cpu", "caster.io/colocation-memory", 1),
    "caelus": ExtendedNames("mixer.kubernetes.io/ext-cpu", "mixer.kubernetes.io/ext-memory", 1),
}
"""The same as in criproxy/kube/extended_resources.py, which has their sources."""
