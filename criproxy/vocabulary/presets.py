"""Other systems' marks of offline pods, and what they call the CPU and memory that nodes lend. Pure.

A new system is a row of `PRESETS`. All else follows from it: the settings `colocation.presets` and `kubernetes.names`,
what nodes take for offline and publish, what the webhook converts and to what, and, by
`.venv/bin/python -m docs.generate`, the example of the config, the CRD, the webhook's entries and the
scheduler's profile.
"""

from collections.abc import Iterator, Mapping
from typing import Final, Literal

from msgspec import Struct

from .names import CLASS, OFFLINE

MILLICORES: Final = 1000
CORES: Final = 1


SYSTEM_NAMESPACES: Final = ("kube-system", "criproxy-system")
"""Without a label no pod here waits for the webhook, so annotations are no marks here, to the nodes neither."""


class Mark(Struct, frozen=True):
    """A label, or an annotation, that makes a pod with just this value an offline one."""

    key: str
    value: str
    of: Literal["label", "annotation"] = "label"

    @property
    def not_in(self) -> tuple[str, ...]:
        """The namespaces in which it marks no pod."""
        return SYSTEM_NAMESPACES if self.of == "annotation" else ()


class ExtendedNames(Struct, frozen=True):
    """What CPU and memory are called when a node lends them. `per_core`: how much of it one core is.

    Of memory, it is bytes. `native`: below kubernetes.io/, so that a request may be less than its limit.
    """

    cpu: str
    memory: str
    per_core: int = MILLICORES

    @property
    def native(self) -> bool:
        return self.cpu.startswith("kubernetes.io/")

    @property
    def rows(self) -> Iterator[tuple[str, str, int]]:
        """Each name, of what it is ("cpu", "memory"), and how much of it a core, or a byte, is."""
        yield self.cpu, "cpu", self.per_core
        yield self.memory, "memory", 1


class Preset(Struct, frozen=True):
    """`marks` (): none that criproxy knows. `names` None: it has none of its own."""

    marks: tuple[Mark, ...] = ()
    names: ExtendedNames | None = None


PRESETS: Final[Mapping[str, Preset]] = {
    # Koordinator's and Volcano's. Source: koordinator-sh/koordinator, apis/extension/resource.go.
    "batch": Preset(names=ExtendedNames("kubernetes.io/batch-cpu", "kubernetes.io/batch-memory")),
    "mid": Preset(names=ExtendedNames("kubernetes.io/mid-cpu", "kubernetes.io/mid-memory")),
    # volcano-sh/volcano: its documentation of colocation. It has the names of "batch".
    "volcano": Preset((Mark("volcano.sh/qos-level", "BE", "annotation"),)),
    # koordinator-sh/koordinator: apis/extension/constants.go (LabelPodQoS) and qos.go. Its webhook writes the class of
    # a matching ClusterColocationProfile into this same label
    # (pkg/webhook/pod/mutating/cluster_colocation_profile.go), so kubelet sees it on every offline pod.
    "koordinator": Preset((Mark("koordinator.sh/qosClass", "BE"),)),
    # Whole cores. Source: gocrane/crane, pkg/resource/node_resource_manager.go.
    "crane": Preset(names=ExtendedNames("gocrane.io/cpu", "gocrane.io/memory", CORES)),
    # kubewharf/katalyst-core: its documentation of QoS levels.
    "katalyst": Preset(
        (Mark("katalyst.kubewharf.io/qos_level", "reclaimed_cores", "annotation"),),
        ExtendedNames(
            "resource.katalyst.kubewharf.io/reclaimed_millicpu", "resource.katalyst.kubewharf.io/reclaimed_memory"
        ),
    ),
    # Tencent/caelus: contrib/lighthouse-plugin/README.md and pkg/plugin/docker/offline/util.go there. The unit of its
    # resource is not public: whole cores are the reading that can't promise too much.
    "caelus": Preset(
        (Mark("mixer.kubernetes.io/app-class", "greedy", "annotation"),),
        ExtendedNames("mixer.kubernetes.io/ext-cpu", "mixer.kubernetes.io/ext-memory", CORES),
    ),
    # Bilibili has written about its colocation platform, but published no code that would confirm key and value; nor
    # is it known whether this is a label or an annotation, or what its unit is. Who needs another mark writes a rule.
    "bilibili": Preset(
        (
            Mark("caster.io/resource-type", "colocation"),
            Mark("caster.io/resource-type", "colocation", "annotation"),
        ),
        ExtendedNames("caster.io/colocation-cpu", "caster.io/colocation-memory", CORES),
    ),
}

MARKS: Final[Mapping[str, tuple[Mark, ...]]] = {name: one.marks for name, one in PRESETS.items() if one.marks}
NAMES: Final[Mapping[str, ExtendedNames]] = {name: one.names for name, one in PRESETS.items() if one.names}

OLDER: Final = (ExtendedNames("koordinator.sh/batch-cpu", "koordinator.sh/batch-memory"),)
"""What a system called them before: no node publishes these any more, and the webhook takes them for what they were.

Source: koordinator-sh/koordinator, its documentation of Spark jobs.
"""

OWN_MARK: Final = Mark(CLASS, OFFLINE)
EVERY_MARK: Final = (OWN_MARK, *(mark for marks in MARKS.values() for mark in marks))
"""Each of these brings a new pod to the webhook, which gives it our own."""
