"""The names that criproxy reads and writes in Kubernetes' objects. Pure. Those of what is lent are in `presets`."""

from typing import Final

PREFIX: Final = "colocation.criproxy.io/"

# --- of pods ---------------------------------------------------------------------------------------------------------

CLASS: Final = f"{PREFIX}class"
OFFLINE: Final = "offline"
"""The label that makes a pod an offline one, and its value."""

TIER: Final = f"{PREFIX}tier"
"""A pod's label: "mid" puts it into the higher of two tiers of offline pods."""

RESOURCES: Final = f"{PREFIX}resources"
"""A pod's annotation, written by the webhook: JSON, the CPU and memory that its containers asked for, in Kubernetes'
own quantities: {"containers": {NAME: {"requests": {"cpu": "1500m"}, "limits": {"memory": "1Gi"}}}}. Below
"initContainers" are those, in their order; a sidecar has "restartPolicy": "Always" beside its amounts.
"""

MOST_RECORDED: Final = 64 * 1024
"""Characters of RESOURCES, or of EXTENDED_SPEC, that a node reads."""

MOST_CONTAINERS: Final = 128
"""In such an annotation, init containers too: what a node reads of one pod, whoever wrote it."""

KEEP_REQUESTS: Final = f"{PREFIX}keep-requests"
"""A pod's annotation, "true": it is offline, but its requests stay as they are."""

NOTICE_SECONDS: Final = f"{PREFIX}notice-seconds"
"""A pod's annotation: how much notice it wants before its sandbox is stopped."""

PRIORITY: Final = f"{PREFIX}priority"
"""A pod's annotation: of two offline ones, that with the lower one goes first."""

SERVICE_CHECK: Final = f"{PREFIX}service-check"
"""An online pod's annotation: how criproxy asks it whether it serves well."""

DEADLINE: Final = f"{PREFIX}deadline"
"""A pod's annotation, written by its author: RFC 3339 in UTC, by when it has to have ended."""

ALONE_SECONDS: Final = f"{PREFIX}alone-seconds"
"""A pod's annotation, written by its author: how long the work of its owner takes where nothing disturbs it."""

OVERFLOW: Final = f"{PREFIX}overflow"
"""A pod's annotation, written by the webhook: why it was made for virtual nodes."""

RAISED: Final = f"{PREFIX}raised"
"""A waiting pod's annotation, written by the controller, RFC 3339: since when it is of the higher tier."""

PLACEMENT: Final = f"{PREFIX}placement"
"""An annotation of a placed pod's sandbox at the runtime, written by the node: its cgroup_parent in the box."""

REQUIRED_PLUGINS: Final = "required-plugins.noderesource.dev"
"""A pod's annotation, read by the runtime's NRI: a JSON list of the plugins without which it makes no container of it.
With `/pod` after it, it goes before the plain one, and with `/container.NAME` before both.
Source: containerd/nri, plugins/default-validator; pkg/plugin, GetEffectiveAnnotation.
"""

PLUGIN: Final = "criproxy"
"""What criproxy is called there."""

# --- of nodes --------------------------------------------------------------------------------------------------------

PUBLISHES: Final = f"{PREFIX}publishes"
"""A Node's annotation, written by the node: see `published`. None: the node is of before, and publishes a preset's."""

POLICY: Final = f"{PREFIX}policy"
"""A Node's annotation, written by the controller: the settings that hold above the node's own file."""

POLICIES: Final = f"{PREFIX}policies"
"""A Node's annotation, written by the controller: what that policy was made of, so that each is tried by itself."""

POLICY_STATUS: Final = f"{PREFIX}policy-status"
"""A Node's annotation, written by the node: what it makes of the policy."""

GIVES_BACK: Final = f"{PREFIX}gives-back"
"""A Node's annotation, written by the ledger: JSON, see `gives_back`."""

EVICTED: Final = f"{PREFIX}evicted"
"""A Node's annotation, written by the node: JSON, what was evicted here -> from when until when it should not come
back, FROM/UNTIL (`times.interval`). A key is the uid of the pod's controller, or of the pod.
"""

EVICTED_FROM: Final = f"evicted.{PREFIX}"
"""A Node's label, followed by such a key: pods of that controller are not to be placed here for now.

The node writes it before it evicts; the controller makes good what is missing, and takes it away in time.
"""

SWITCH: Final = f"{PREFIX}switch"
"""A Node's label, written by people: "off" drains the node and publishes nothing, whatever its policies say."""

MANAGED: Final = f"{PREFIX}managed"
"""A Node's label, written by people: "false" leaves its policy annotation alone, for a change by hand.

Above it is the switch alone.
"""

PRESSURE: Final = f"{PREFIX}pressure"
"""The taint of a node that lends nothing for now."""

FOR_OFFLINE: Final = f"{PREFIX}offline"
"""The taint that people may give to nodes that are there for offline pods alone."""

CONDITION: Final = "ColocationReady"
"""A Node's condition, written by the node each few minutes. Its lastHeartbeatTime tells the controller that the numbers
are of today: without it for 15 minutes, the controller publishes 0. Its reason is one of the following.
"""

LENDING: Final = "Lending"
HELD: Final = "Held"
"""The node lends nothing: offline pods hurt online ones, or an operator has switched criproxy off."""

WITHHELD: Final = "Withheld"
"""Nothing is lent, and no offline pod is here."""

OCCUPIED: Final = "Occupied"
"""Nothing is lent, and offline pods run on: a switch is not done yet."""

AWAY: Final = "Away"
"""criproxy does not run here, or says nothing."""

# --- of namespaces ---------------------------------------------------------------------------------------------------

ANNOTATION_MARKS: Final = f"{PREFIX}annotation-marks"
IGNORE: Final = "ignore"
"""A Namespace's label, written by people, and its value: the webhook takes no annotation there for a mark, as the pods
are another system's.
"""

# --- of Kueue's objects ----------------------------------------------------------------------------------------------

SUSPENDED: Final = f"{PREFIX}suspended"
"""A Workload's annotation, written by the controller: when it made it inactive, as nodes lend too little for it."""

SUSPENDS: Final = f"{PREFIX}suspends"
"""The Cohort's annotation, written by the controller: when it did so within the hour, RFC 3339 with commas between."""

# --- Koordinator's, which mean the same here -------------------------------------------------------------------------
# Source: Koordinator, apis/extension/constants.go, resource.go and priority.go.

EXTENDED_SPEC: Final = "node.koordinator.sh/extended-resource-spec"
"""A pod's annotation, as RESOURCES, but in the names and quantities of the preset "batch"."""

KOORDINATOR_CLASS: Final = "koordinator.sh/priority-class"
KOORDINATOR_MID: Final = "koord-mid"
"""A pod's label, and its value for the higher tier."""

KOORDINATOR_PRIORITY: Final = "koordinator.sh/priority"
EVICTION_PRIORITY: Final = "koordinator.sh/eviction-priority"
EVICTION_ENABLED: Final = "koordinator.sh/eviction-enabled"
