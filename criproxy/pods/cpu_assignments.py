"""Which CPUs kubelet's CPU manager has given to whom, by its state file, and which of them are the box's.

Source: kubernetes/pkg/kubelet/cm/cpumanager/state/checkpoint.go; policy_static.go.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct, field

from criproxy.model import UNLIMITED, Unlimited
from criproxy.model.cpulist import Cpus, parse_cpus
from criproxy.pods.inventory import Inventory

_SHOWN: Final = 3
"""How many of the entries that are not understood are named."""

_STATIC: Final = "static"


class CpuAssignments(Struct, frozen=True):
    """What kubelet's CPU manager has decided. `shared`: its shared pool, None when it bounds nobody (policy none).

    `exclusive`: the CPUs that a pod or its containers have for themselves, by the uid of the pod, or, before Kubernetes
    1.18, by the container's id. `unread` names what the file says of such CPUs in a way that is not known here; "":
    nothing.
    """

    shared: Cpus | None
    exclusive: Mapping[str, Cpus] = field(default_factory=dict)
    unread: str = ""


NOBODY_BOUND: Final = CpuAssignments(None)


class _Envelope(Struct):
    """The file since Kubernetes 1.37: the checkpoint is the text `data` within it.

    Beside it stands a checkpoint as of 1.18, for a kubelet that is rolled back: without pods' own CPUs.
    """

    data: str = ""


class _Checkpoint(Struct, rename="camel"):
    """The checkpoint. `entries` holds the CPUs of containers, `pod_entries` those of whole pods:

    | Kubernetes | entries                      | podEntries                  |
    | ---------- | ---------------------------- | --------------------------- |
    | to 1.17    | {container id: cpus}         |                             |
    | from 1.18  | {pod uid: {container: cpus}} |                             |
    | from 1.36  | {pod uid: {container: cpus}} | {pod uid: {"cpuSet": cpus}} |

    Kubelet gives CPUs to whole pods by its feature gate PodLevelResourceManagers alone. A container's id names no pod,
    so its CPUs are taken for an online pod's.
    """

    policy_name: str
    default_cpu_set: str = ""
    entries: dict[str, object] = {}
    pod_entries: dict[str, object] = {}


def parse_state(content: bytes) -> CpuAssignments:
    """The state that a cpu_manager_state file holds, in any version since its first. Raises ValueError.

    A pod's own pool is all its own: those of its containers that have no CPUs for themselves share what is left of it.
    """
    data = msgspec.json.decode(content, type=_Envelope).data
    try:
        checkpoint = msgspec.json.decode(data or content, type=_Checkpoint)
    except ValueError as error:
        raise ValueError(f"in its data, {error}" if data else str(error)) from error
    if checkpoint.policy_name != _STATIC:
        return NOBODY_BOUND
    shared = parse_cpus(checkpoint.default_cpu_set)
    exclusive: dict[str, Cpus] = {}
    unread = []
    for key, entries in (("entries", checkpoint.entries), ("podEntries", checkpoint.pod_entries)):
        for id, entry in entries.items():
            lists = list(entry.values()) if isinstance(entry, dict) else [entry]
            texts = [one for one in lists if isinstance(one, str)]
            exclusive[id] = exclusive.get(id, frozenset()).union(*map(parse_cpus, texts))
            if len(texts) < len(lists):
                unread.append(f"{key} of {id}")
    return CpuAssignments(shared, exclusive, ", ".join(unread[:_SHOWN]))


class CpusOfBox(Struct):
    """The CPUs that kubelet's CPU manager leaves to the box, by the state that was read last. Safe in any thread.

    `contradicted`: kubelet bounds containers to CPUs, and its file says nothing of it: the problem, in words.
    """

    inventory: Inventory
    state: CpuAssignments = NOBODY_BOUND
    contradicted: str = ""

    def cpus(self) -> Cpus | Unlimited:
        """All CPUs but those that online pods have alone. Empty when kubelet has given away all there are."""
        state = self.state
        return UNLIMITED if state.shared is None else state.shared | self._own(state)

    def own(self) -> Cpus:
        """The CPUs that offline pods have alone."""
        return self._own(self.state)

    def exclusive(self) -> Cpus:
        """The CPUs that online pods have alone; those that kubelet reserves are not among them."""
        state = self.state
        return frozenset().union(*state.exclusive.values()) - self._own(state)

    def _own(self, state: CpuAssignments) -> Cpus:
        uids = {sandbox.pod.uid for sandbox in self.inventory.placed} if state.exclusive else set()
        return frozenset().union(*(state.exclusive[uid] for uid in uids & state.exclusive.keys()))
