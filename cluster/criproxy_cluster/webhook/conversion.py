"""An offline pod is made to ask for what nodes lend, instead of what online pods are promised. Pure.

How it works
------------
`converted` takes a pod as Kubernetes has it in JSON and returns another one; the one that came stays as it is.

- Requests and limits of CPU and memory, of all containers, become the extended resources that nodes publish:

      cpu: 1500m, memory: 1Gi   ──▶   kubernetes.io/batch-cpu: "1500", kubernetes.io/batch-memory: "1073741824"

  The author's own requests stay in an annotation (`names.RESOURCES`), which the node's hook reads: the container
  runtime knows of CPU and memory only. An author may also ask for extended resources, of these or of another system's
  names, in the container or as Koordinator's annotation has it. They win over CPU and memory in the same container,
  which is what a LimitRange adds: to its requests, to its limits or to both.
- Of CPU and memory themselves, nothing is left; huge pages stay, with a request of 0 beside them that makes them valid.
- A pod that asks for nothing asks for the least, or it would be placed on nodes that lend nothing.
- A quantity that makes no sense is refused, with what to write instead.
- It gets our priority class, unless it has one of the priorities for offline pods: with a high one it
  could preempt online pods. The API server fills in the number.
- It tolerates the taint of nodes that are there for offline pods alone, and it prefers nodes that have not just evicted
  a pod of the same controller: such a node has a label for as long.
- Its anti-affinity to pods counts offline pods alone: whom a pod wants to be away from, the scheduler keeps away from
  it, so that an offline pod could keep online ones off a node, or off all of them.
- It gets a user namespace of its own (`hostUsers: false`) where the settings say so, and it does not ask otherwise.
- A pod that is annotated to keep its requests has all of that but the first. Its annotation says that nothing was
  converted: nodes take it for a mark, too. What else its author has written there of what it asks for, which nodes
  would believe, is taken away.
- A Spark driver, whose end is its application's, loses its marks and so runs online with its own requests, unless it is
  annotated to keep them.

A pod that is to overflow (`left_for_virtual_nodes`) keeps its requests, in CPU and memory also where its author wrote
them in what nodes lend, as virtual nodes are sized by these. It tolerates virtual nodes, whoever provides them, and may
run on no other: on a node of the cluster, its requests would take what online pods are promised. It stays marked, so if
it should ever be there, it is in the box.

`spec.overhead` stays: the API server's RuntimeClass admission refuses a pod whose overhead is not its RuntimeClass's,
also after a webhook. `warnings` says so, and that the RuntimeClass may have its overhead in extended resources.

Converting a second time changes nothing, and a container that another webhook adds in between is converted then.

Source: Koordinator, pkg/webhook/pod/mutating (its labels, annotation and priorities); Kubernetes,
plugin/pkg/admission/{runtimeclass,priority}/admission.go, pkg/apis/core/validation (what an extended resource may be),
pkg/scheduler/framework/plugins/interpodaffinity/filtering.go (whom the anti-affinity of a pod that runs keeps away).
"""

import copy
from collections.abc import Collection, Iterator, Mapping
from fractions import Fraction
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import Struct

from criproxy_cluster.objects import Json
from criproxy_cluster.vocabulary.names import (
    CLASS,
    EVICTED_FROM,
    EXTENDED_SPEC,
    FOR_OFFLINE,
    KEEP_REQUESTS,
    OFFLINE,
    OVERFLOW,
    PLUGIN,
    RAISED,
    REQUIRED_PLUGINS,
    RESOURCES,
)
from criproxy_cluster.vocabulary.presets import EVERY_MARK, NAMES, OLDER, ExtendedNames
from criproxy_cluster.vocabulary.quantities import amount, rounded_up
from criproxy_cluster.webhook.hardening import (
    HardeningSettings,
    can_have_own_users,
    cut_capabilities,
    drop_real_time,
    refusal,
)

MIRROR: Final = "kubernetes.io/config.mirror"
"""The annotation of the API's copy of a static pod, which kubelet makes: to change it makes no difference."""

VIRTUAL_PROVIDER: Final = "virtual-kubelet.io/provider"
"""The key of the taint of virtual nodes. Its value is the provider's name."""

VIRTUAL_NODES: Final[Json] = {"key": "type", "operator": "In", "values": ["virtual-kubelet"]}
"""The label of virtual nodes, as an affinity asks for it."""

OFFLINE_PODS: Final[Json] = {"key": CLASS, "operator": "In", "values": [OFFLINE]}
"""As a selector of pods asks for them; each pod that is converted has the label."""

VPA_UPDATES: Final = "vpaUpdates"
"""The annotation of a pod whose requests a VerticalPodAutoscaler has written when it was made.
Source: Kubernetes autoscaler, vertical-pod-autoscaler, admission-controller, ResourceUpdatesAnnotation.
"""

SPARK_DRIVER: Final = ("spark-role", "driver")

LEAST: Final[Mapping[str, tuple[str, Fraction]]] = {
    "cpu": ("10m", Fraction(1, 100)),
    "memory": ("4Mi", Fraction(4 << 20)),
}
"""What a pod asks for that asks for nothing."""

MOST_CORES: Final = 4096
LEAST_MILLICORES: Final = 10
LEAST_BYTES: Final = 1 << 20

MAX_CONTAINERS: Final = 512

MOST_WEIGHT: Final = 100
"""Of a preference. Source: core/v1 PreferredSchedulingTerm."""

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_KINDS: Final = ("requests", "limits")
_LISTS: Final = ("initContainers", "containers", "ephemeralContainers")
_RECORDED: Final = ("containers", "initContainers")
"""Ephemeral containers ask for nothing."""

_OFFLINE_PRIORITIES: Final = range(3000, 8000)
"""Koordinator's: free 3000-3999, batch 5000-5999, mid 7000-7999, which are above online pods' default of 0: they must
never preempt.
"""

Asked = dict[str, tuple[str, Fraction]]
"""Of "cpu" (in cores) and "memory" (in bytes): the quantity as it was written, and what it is."""


class ConversionError(ValueError):
    """The pod can't be converted as it is. The message names the place, the value and the remedy."""

    def __init__(self, where: str, problem: str, remedy: str) -> None:
        super().__init__(f"{where}: {problem}: {remedy}")


class ConversionSettings(Struct, frozen=True):
    names: ExtendedNames = NAMES["batch"]
    priority_class: str = "colocation-expendable"
    tolerated: str = FOR_OFFLINE
    """The taint's key."""
    hardening: HardeningSettings = HardeningSettings()
    require_plugin: bool = False
    """Whether runtimes wait for criproxy's plugin of NRI with such a pod's containers."""


def is_offline(pod: Json) -> bool:
    """Whether a label or an annotation marks it so in its namespace. The API's copies of static pods do not count."""
    meta = _table(pod.get("metadata"), "metadata")
    found = {of: _table(meta.get(f"{of}s"), f"metadata.{of}s") for of in ("label", "annotation")}
    if MIRROR in found["annotation"]:
        return False
    marks = (mark for mark in EVERY_MARK if meta.get("namespace") not in mark.not_in)
    return any(found[mark.of].get(mark.key) == mark.value for mark in marks)


def converted(pod: Json, settings: ConversionSettings) -> Json:
    """The pod as it should be; one that is not offline comes back as it is. Raises ConversionError."""
    if not is_offline(pod):
        return pod
    if runs_online(pod):
        return {**pod, "metadata": _without_marks(pod["metadata"])}
    pod = _copied(pod)
    meta, spec = pod["metadata"], pod["spec"]
    _mark(meta)
    _take_away(meta, OVERFLOW, RAISED)
    if keeps_requests(pod):
        meta["annotations"] = _without_records(meta)
        _record(meta, {})
    else:
        _convert_resources(meta, spec, settings)
    if settings.require_plugin:
        _require_plugin(meta)
    _set_priority(spec, settings)
    _tolerate(spec, settings)
    _keep_away(spec, meta)
    _count_offline_pods_alone(spec)
    drop_real_time(spec)
    if settings.hardening.own_users and can_have_own_users(spec):
        spec["hostUsers"] = False
    return pod


def may_overflow(pod: Json) -> bool:
    """Whether an offline pod can be left for virtual nodes: its author has not said which nodes it runs on."""
    spec = _table(pod.get("spec"), "spec")
    affinity = _table(_table(spec.get("affinity"), "spec.affinity").get("nodeAffinity"), "spec.affinity.nodeAffinity")
    bound = spec.get("nodeName") or spec.get("nodeSelector")
    return not (bound or affinity.get(_REQUIRED) or keeps_requests(pod))


def left_before(pod: Json) -> str:
    """Why it was left for virtual nodes by an earlier call about the same pod; "": it was not.

    An author may write the same. It brings him what a pod without the mark has: to run there, and nowhere else.
    """
    why = _table(_table(pod.get("metadata"), "metadata").get("annotations"), "metadata.annotations").get(OVERFLOW)
    spec = _table(pod.get("spec"), "spec")
    affinity = _table(_table(spec.get("affinity"), "spec.affinity").get("nodeAffinity"), "spec.affinity.nodeAffinity")
    required = _table(affinity.get(_REQUIRED), "spec.affinity.nodeAffinity")
    terms = _list(required.get("nodeSelectorTerms"), "nodeSelectorTerms")
    kept = [VIRTUAL_NODES in _list(_table(one, "").get("matchExpressions"), "matchExpressions") for one in terms]
    return str(why) if why and kept and all(kept) else ""


def left_for_virtual_nodes(pod: Json, why: str, settings: ConversionSettings) -> Json:
    """An offline pod as it should be where it is to overflow. Raises ConversionError."""
    pod = _copied(pod)
    meta, spec = pod["metadata"], pod["spec"]
    _mark(meta)
    _ask_plainly(meta, spec, settings)
    _take_away(meta, RAISED)
    meta["annotations"] = {**_without_records(meta), OVERFLOW: why}
    _record(meta, {})
    _set_priority(spec, settings)
    _add_toleration(spec, {"key": VIRTUAL_PROVIDER, "operator": "Exists"})
    _require(spec, VIRTUAL_NODES)
    _count_offline_pods_alone(spec)
    return pod


def refusal_of(pod: Json, namespace: str, settings: ConversionSettings) -> str:
    """Why a pod of this namespace may not be made, in words; "": it may. Raises ConversionError."""
    return refusal(_table(pod.get("spec"), "spec"), namespace, settings.hardening) if stays_offline(pod) else ""


def _take_away(meta: Json, *annotations: str) -> None:
    """Of what is criproxy's to write. With the author's own, his pods would count as what they are not."""
    found = _table(meta.get("annotations"), "metadata.annotations")
    if not found.keys().isdisjoint(annotations):
        meta["annotations"] = {name: text for name, text in found.items() if name not in annotations}


def _copied(pod: Json) -> Json:
    """Copied is what may be changed. All else, such as environments, is the same object, which need not be compared."""
    spec = dict(_table(pod.get("spec"), "spec"))
    for kind in _LISTS:
        if isinstance(spec.get(kind), list):
            spec[kind] = [_copied_container(one) for one in spec[kind]]
    if "affinity" in spec:
        spec["affinity"] = copy.deepcopy(spec["affinity"])
    return {**pod, "metadata": dict(pod["metadata"]), "spec": spec}


def _copied_container(container: Any) -> Any:
    if not isinstance(container, dict) or not isinstance(container.get("resources"), dict):
        return dict(container) if isinstance(container, dict) else container
    return {**container, "resources": dict(container["resources"])}


def _mark(meta: Json) -> None:
    """As a node knows it that knows no other mark."""
    meta["labels"] = {**_table(meta.get("labels"), "metadata.labels"), CLASS: OFFLINE}


def _without_marks(meta: Json) -> Json:
    """The annotations that say what an offline pod asks for are a mark, too."""
    before = {**meta, "annotations": _without_records(meta)} if "annotations" in meta else meta
    marks = [(f"{mark.of}s", mark.key, mark.value) for mark in EVERY_MARK]
    tables = {
        name: {key: value for key, value in before[name].items() if (name, key, value) not in marks}
        for name in ("labels", "annotations")
        if before.get(name)
    }
    return {**before, **tables}


def keeps_requests(pod: Json) -> bool:
    return bool((pod["metadata"].get("annotations") or {}).get(KEEP_REQUESTS) == "true")


def runs_online(pod: Json) -> bool:
    """Of an offline pod: whether its role has it run online all the same."""
    key, value = SPARK_DRIVER
    return (pod["metadata"].get("labels") or {}).get(key) == value and not keeps_requests(pod)


def stays_offline(pod: Json) -> bool:
    return is_offline(pod) and not runs_online(pod)


def warnings(pod: Json, settings: ConversionSettings) -> tuple[str, ...]:
    """What the author should know of a pod that is converted all the same."""
    if not is_offline(pod):
        return _unmarked(pod)
    if runs_online(pod):
        return (f"spark-role: driver runs online, as its end is the application's: {KEEP_REQUESTS} keeps it offline",)
    spec = _table(pod.get("spec"), "spec")
    asked = () if keeps_requests(pod) else (*_of_overhead(spec, settings), *_of_autoscaler(pod))
    return *_of_anti_affinity(spec), *asked, *_of_preemption(spec, settings), *_of_capabilities(pod, settings)


def _of_capabilities(pod: Json, settings: ConversionSettings) -> Iterator[str]:
    """Of what nodes cut without a word to the author, as a service mesh's init container adds it."""
    if pod["metadata"].get("namespace") in settings.hardening.trusted:
        return
    for kind in _LISTS:
        for where, container in _containers(pod["spec"], kind):
            if cut := cut_capabilities(container):
                yield (
                    f"{where[:95]} adds {', '.join(cut)[:36]}, which nodes cut: do without (a service mesh by its CNI "
                    "plugin), or list it in the nodes' hardening.capabilities"
                )


def _of_preemption(spec: Json, settings: ConversionSettings) -> tuple[str, ...]:
    """Of a class that is made for offline pods, and yet lets them preempt online ones."""
    if spec.get("priority") not in _OFFLINE_PRIORITIES or spec.get("preemptionPolicy") == "Never":
        return ()
    return (
        f"spec.priorityClassName: {str(spec.get('priorityClassName'))[:100]} may preempt online pods, so that the pod "
        f"has {settings.priority_class}: delete the class, and create it with preemptionPolicy: Never",
    )


def _of_anti_affinity(spec: Json) -> tuple[str, ...]:
    if not any(_selects_others(term, where) for where, term in _terms_of_anti_affinity(spec)):
        return ()
    return ("spec.affinity.podAntiAffinity counts offline pods alone: it would keep online pods off this pod's node",)


def _of_overhead(spec: Json, settings: ConversionSettings) -> tuple[str, ...]:
    plain = sorted({"cpu", "memory"} & _table(spec.get("overhead"), "spec.overhead").keys())
    if not plain:
        return ()
    return (
        f"spec.overhead: {' and '.join(plain)} of the pod's RuntimeClass still count as online's: give the "
        f"RuntimeClass an overhead in {settings.names.cpu} and {settings.names.memory}",
    )


def _of_autoscaler(pod: Json) -> tuple[str, ...]:
    if VPA_UPDATES not in (pod["metadata"].get("annotations") or {}):
        return ()
    return (
        "its VerticalPodAutoscaler finds no request of CPU in it, as it was converted, and evicts it again and again, "
        "unless it says updateMode: Off or Initial",
    )


def _unmarked(pod: Json) -> tuple[str, ...]:
    """Of a pod that asks for what nodes lend, and has no mark: as the admission policy `unmarked` says it."""
    meta, spec = _table(pod.get("metadata"), "metadata"), _table(pod.get("spec"), "spec")
    if MIRROR in _table(meta.get("annotations"), "metadata.annotations"):
        return ()
    asked = {
        name
        for where, container in _containers(spec, "containers")
        for name in _table(_table(container.get("resources"), where).get("requests"), where).keys() & _EXTENDED
    }
    remedy = f"give it the label {CLASS}: {OFFLINE}"
    return tuple(f"it asks for {name}, and has no mark of an offline pod: {remedy}" for name in sorted(asked))


# --- resources -------------------------------------------------------------------------------------------------------


def _convert_resources(meta: Json, spec: Json, settings: ConversionSettings) -> None:
    if spec.get("resources"):
        raise ConversionError(
            "spec.resources", "an offline pod can't ask as a whole", "write requests and limits for its containers"
        )
    annotations = _table(meta.get("annotations"), "metadata.annotations")
    before = _recorded(annotations.get(RESOURCES))
    by_annotation = _recorded(annotations.get(EXTENDED_SPEC), EXTENDED_SPEC)
    record: dict[str, Json] = {kind: {} for kind in _RECORDED}
    for kind in _LISTS:
        for where, container in _containers(spec, kind):
            name = str(container.get("name", ""))
            resources = dict(_table(container.get("resources"), f"{where}.resources"))  # YAML may have one for several
            known = _plain(before.get(name, {}))
            made = _convert(where, resources, by_annotation.get(name, {}), known, settings)
            if resources:
                container["resources"] = resources
            if kind in record:
                sidecar = {"restartPolicy": "Always"} if container.get("restartPolicy") == "Always" else {}
                record[kind][name] = made | (sidecar if kind == "initContainers" else {})
    for what in LEAST:
        _ask_for_the_least(what, spec, record["containers"], settings)
    _record(meta, {kind: dict(sorted(of.items())) if kind == "containers" else of for kind, of in record.items() if of})


def _ask_plainly(meta: Json, spec: Json, settings: ConversionSettings) -> None:
    """Turns requests of what nodes lend back into requests of CPU and memory."""
    annotations = _table(meta.get("annotations"), "metadata.annotations")
    by_annotation = _recorded(annotations.get(EXTENDED_SPEC), EXTENDED_SPEC)
    for kind in _LISTS:
        for where, container in _containers(spec, kind):
            resources = dict(_table(container.get("resources"), f"{where}.resources"))
            asked = _convert(
                where, dict(resources), by_annotation.get(str(container.get("name", "")), {}), {}, settings
            )
            for table in _KINDS:
                kept = {name: text for name, text in (resources.get(table) or {}).items() if name not in _KNOWN}
                if asked.get(table) or resources.get(table):
                    resources[table] = {**kept, **asked.get(table, {})}
            if resources:
                container["resources"] = resources


def _record(meta: Json, converted: Json) -> None:
    """Write our own in any case: whatever an author has written there, nodes would take for ours."""
    text = msgspec.json.encode({"containers": {}, **converted}).decode()
    meta["annotations"] = {**_table(meta.get("annotations"), "metadata.annotations"), RESOURCES: text}


def _require_plugin(meta: Json) -> None:
    """Beside the plugins that the author requires, in each list that the runtime may go by. One that is none would have
    the runtime refuse the pod.
    """
    annotations = dict(_table(meta.get("annotations"), "metadata.annotations"))
    annotations.setdefault(REQUIRED_PLUGINS, "[]")
    for key, text in annotations.items():
        if key != REQUIRED_PLUGINS and not key.startswith(f"{REQUIRED_PLUGINS}/"):
            continue
        try:
            required = msgspec.json.decode(str(text), type=list[str])
        except msgspec.DecodeError as error:
            where, remedy = f"metadata.annotations[{key}]", 'write a JSON list of names, ["a", "b"], or none'
            raise ConversionError(where, f"{str(text)[:80]!r} is no list of plugins: {error}", remedy) from error
        if PLUGIN not in required:
            annotations[key] = msgspec.json.encode([*required, PLUGIN]).decode()
    meta["annotations"] = annotations


def _without_records(meta: Json) -> Json:
    annotations = _table(meta.get("annotations"), "metadata.annotations")
    return {name: text for name, text in annotations.items() if name not in (RESOURCES, EXTENDED_SPEC)}


def _convert(where: str, resources: Json, spare: Json, before: Json, settings: ConversionSettings) -> Json:
    """Changes `resources`, and returns what is to be recorded of them.

    `spare` is used when they name no extended resource. `before` is what was recorded, perhaps by somebody else: it is
    believed when it makes what is there, which then need not look as if people had written it.
    """
    if not any(_table(resources.get(kind), f"{where}.resources.{kind}").keys() & _EXTENDED for kind in _KINDS):
        for kind in _KINDS:
            if said := {name: text for name, text in _table(spare.get(kind), where).items() if name in _EXTENDED}:
                resources[kind] = {**(resources.get(kind) or {}), **said}
    old = {kind: dict(resources.get(kind) or {}) for kind in _KINDS}
    extended = {_EXTENDED[name] for table in old.values() for name in table if name in _EXTENDED}
    said = old
    if believed := _makes(before, old, settings):
        plain = {"cpu", "memory"} - extended
        said = {
            kind: {name: text for name, text in old[kind].items() if name in plain} | before.get(kind, {})
            for kind in _KINDS
        }
        extended = set()
    asked = {kind: _asked(said[kind], f"{where}.resources.{kind}", settings, extended) for kind in _KINDS}
    asked["requests"] = {**asked["limits"], **asked["requests"]}
    named = dict.fromkeys(asked["requests"], "0") if _has_huge_pages(old) else {}
    for kind, table in _extended(asked, settings).items():
        kept = {name: text for name, text in old[kind].items() if name not in _KNOWN}
        if kind == "requests":
            kept |= named
        wanted = {name: _as_it_was(text, old[kind].get(name)) for name, text in table.items()}
        if kept or wanted or kind in resources:
            resources[kind] = {**kept, **wanted}
    recorded = {kind: {what: text for what, (text, _) in asked[kind].items()} for kind in _KINDS if asked[kind]}
    if believed and all((resources.get(kind) or {}) == old[kind] for kind in _KINDS):
        return before
    return recorded


def _has_huge_pages(resources: Json) -> bool:
    """Then it has to name CPU or memory, though it be with 0, or the API server refuses the pod.

    Source: pkg/apis/core/validation, "HugePages require cpu or memory".
    """
    return any(name.startswith("hugepages-") for kind in _KINDS for name in resources.get(kind) or {})


def _asked(table: Json, where: str, settings: ConversionSettings, extended: Collection[str] = ()) -> Asked:
    """CPU in cores and memory in bytes, by the first name that is there: the published one, any other system's, the
    plain one. Of `extended`, by no plain one: the container names them otherwise, here or in its other table.
    """
    found: Asked = {}
    for what, name, per_core in _in_order(settings.names) if table else ():
        if name in table and what not in found and not (name == what and what in extended):
            found[what] = _understood(what, name, per_core, table[name], f"{where}[{name}]")
    return found


@cache
def _in_order(names: ExtendedNames) -> tuple[tuple[str, str, int], ...]:
    """`names` first, and the plain ones last."""
    return (*_named((names, *NAMES.values(), *OLDER)), *((what, what, 0) for what in ("cpu", "memory")))


def _named(presets: Any) -> Iterator[tuple[str, str, int]]:
    for names in presets:
        yield "cpu", names.cpu, names.per_core
        yield "memory", names.memory, 0


_EXTENDED: Final = {name: what for what, name, _ in _named((*NAMES.values(), *OLDER))}
_KNOWN: Final = frozenset({"cpu", "memory", *_EXTENDED})


def _understood(what: str, name: str, per_core: int, text: Any, where: str) -> tuple[str, Fraction]:
    """One quantity: how it is recorded, and what it is. `per_core` 0: it is a plain CPU, or memory."""
    try:
        value = amount(text)
    except ValueError as error:
        example = "500m" if name == "cpu" else "1000" if what == "cpu" else "1Gi"
        raise ConversionError(where, str(error), f'write "{example}", or the like') from None
    shown = f'"{text}"'
    if value < 0:
        raise ConversionError(where, f"{shown} is negative", "write 0 or more")
    if what == "memory":
        if 0 < value < LEAST_BYTES:
            meant = f"{shown} is {float(value):g} bytes"
            digits = "".join(letter for letter in str(text) if letter.isdigit()) or "512"
            raise ConversionError(where, meant, f'for {digits} MiB write "{digits}Mi"')
        return str(text) if name == "memory" else str(rounded_up(value)), value
    if per_core:
        _check_extended_cpu(name, per_core, value, shown, where)
        value /= per_core
    if value > MOST_CORES:
        raise ConversionError(where, f"{shown} is {float(value):g} cores", _fewer(per_core, value))
    return str(text) if not per_core else f"{rounded_up(value * 1000)}m", value


def _check_extended_cpu(name: str, per_core: int, value: Fraction, shown: str, where: str) -> None:
    """A number that is small or has a fraction was written by somebody who thinks of another unit."""
    cores = f"{float(value):g}"
    if per_core == 1 and value.denominator != 1:
        raise ConversionError(where, f"{shown} is a part of a core, but {name} counts whole ones", 'write "1"')
    if per_core == 1000 and value.denominator != 1:
        problem = f"{shown} is {cores} thousandths of a core, as {name} counts thousandths"
        raise ConversionError(where, problem, f'for {cores} cores write "{rounded_up(value * 1000)}"')
    if per_core == 1000 and 0 < value < LEAST_MILLICORES:
        problem = f"{shown} is {cores} thousandths of a core, as {name} counts thousandths"
        raise ConversionError(where, problem, f'for {cores} cores write "{rounded_up(value * 1000)}"')


def _fewer(per_core: int, value: Fraction) -> str:
    meant = rounded_up(value / 1000)
    return f'for {meant} cores write "{meant * (per_core or 1)}"'


def _extended(asked: Mapping[str, Asked], settings: ConversionSettings) -> dict[str, Json]:
    """In the published names. Whole numbers, rounded up; equal, where Kubernetes does not let them differ."""
    names = settings.names

    def made(found: Asked) -> Json:
        table: Json = {}
        if "cpu" in found:
            table[names.cpu] = str(rounded_up(found["cpu"][1] * names.per_core))
        if "memory" in found:
            table[names.memory] = str(rounded_up(found["memory"][1]))
        return table

    requests = made(asked["requests"])
    return {"requests": requests, "limits": made(asked["limits"]) if names.native else dict(requests)}


def _as_it_was(text: str, before: Any) -> Any:
    """The API server writes 1000 as 1k: between two calls of this webhook, too."""
    return text if before is None or amount(before) != amount(text) else before


def _makes(record: Json, resources: Json, settings: ConversionSettings) -> bool:
    """Whether these amounts in CPU and memory are the ones in `resources`. An empty record makes nothing."""
    if not record:
        return False
    try:
        asked = {kind: _asked(_table(record.get(kind), ""), "", settings) for kind in _KINDS}
        now = {
            kind: {
                name: str(rounded_up(amount(text)))
                for name, text in (resources.get(kind) or {}).items()
                if name in _EXTENDED
            }
            for kind in _KINDS
        }
    except ValueError:  # what is wrong is said where `resources` are read
        return False
    return _extended({**asked, "requests": {**asked["limits"], **asked["requests"]}}, settings) == now


def _ask_for_the_least(what: str, spec: Json, record: Json, settings: ConversionSettings) -> None:
    name = settings.names.cpu if what == "cpu" else settings.names.memory
    containers = _list(spec.get("containers"), "spec.containers")
    tables = [((one.get("resources") or {}).get("requests") or {}) for one in containers]
    if not containers or any(amount(table.get(name, "0")) for table in tables):
        return
    first = containers[0]
    resources = first["resources"] = first.get("resources") or {}
    least = _extended({"requests": {what: LEAST[what]}, "limits": {}}, settings)
    for kind in _KINDS:
        # A limit of 0 is none; with one, the request may not be above it.
        if least[kind] or name in (resources.get(kind) or {}):
            resources[kind] = {**(resources.get(kind) or {}), **(least[kind] or least["requests"])}
    if _has_huge_pages(resources):
        resources["requests"][what] = "0"
    entry = record.setdefault(str(first.get("name", "")), {})
    entry["requests"] = {**entry.get("requests", {}), what: LEAST[what][0]}
    if what in entry.get("limits", {}):
        entry["limits"] = {**entry["limits"], what: LEAST[what][0]}


_Amounts = dict[str, str | int | float] | None


class _RecordedContainer(Struct):
    requests: _Amounts = None
    limits: _Amounts = None


_RecordedContainers = dict[str, _RecordedContainer] | None


class _Record(Struct):
    containers: _RecordedContainers = None
    initContainers: _RecordedContainers = None


def _recorded(text: Any, required: str = "") -> dict[str, Json]:
    """The containers of such an annotation. Raises ConversionError for one that is `required`, else it is {}."""
    try:
        found = msgspec.json.decode(text or "{}", type=_Record)
    except (msgspec.DecodeError, TypeError, RecursionError, UnicodeEncodeError) as error:
        if required:
            shape = '{"containers": {NAME: {"requests": {…}, "limits": {…}}}}'
            where = f"metadata.annotations[{required}]"
            raise ConversionError(where, f"it can't be read: {str(error)[:200]}", f"write {shape}") from None
        return {}
    containers = {**(found.initContainers or {}), **(found.containers or {})}
    return {
        name: {kind: table for kind in _KINDS if (table := getattr(one, kind)) is not None}
        for name, one in containers.items()
    }


def _plain(record: Json) -> Json:
    """What `_convert` records: of CPU and memory alone. Another name could say what is there, and these much more."""
    tables = {kind: {what: text for what, text in record.get(kind, {}).items() if what in LEAST} for kind in _KINDS}
    return {kind: table for kind, table in tables.items() if table}


def _containers(spec: Json, kind: str) -> Iterator[tuple[str, Json]]:
    for number, container in enumerate(_list(spec.get(kind), f"spec.{kind}")):
        where = f"spec.{kind}[{number}]"
        one = _table(container, where)
        yield f"{where} ({one['name']})" if "name" in one else where, one


# --- where it may run ------------------------------------------------------------------------------------------------


def _set_priority(spec: Json, settings: ConversionSettings) -> None:
    """The number is the API server's to fill in: it refuses one that is not the class's."""
    chosen, number = spec.get("priorityClassName"), spec.get("priority")
    if chosen and chosen != settings.priority_class and isinstance(number, int):
        kept = number < 0 or (number in _OFFLINE_PRIORITIES and spec.get("preemptionPolicy") == "Never")
    else:
        kept = bool(chosen) and not str(chosen).startswith("system-")
    if kept:
        return
    spec["priorityClassName"] = settings.priority_class
    spec.pop("priority", None)
    spec.pop("preemptionPolicy", None)


def _tolerate(spec: Json, settings: ConversionSettings) -> None:
    _add_toleration(spec, {"key": settings.tolerated, "operator": "Exists"})


def _add_toleration(spec: Json, wanted: Json) -> None:
    tolerations = _list(spec.get("tolerations"), "spec.tolerations")
    if wanted not in tolerations:
        spec["tolerations"] = [*tolerations, wanted]


def _keep_away(spec: Json, meta: Json) -> None:
    """From nodes with the label for this pod's controller, while others have room for it.

    A requirement would hold for the pods of this controller that run on such a node, too: kubelet fails those whose
    required affinity does not match when it restarts, and a descheduler evicts them.
    Source: Kubernetes, pkg/scheduler/eventhandlers.go, AdmissionCheck; descheduler, RemovePodsViolatingNodeAffinity.
    """
    owners = _list(meta.get("ownerReferences"), "metadata.ownerReferences")
    uid = next((str(one.get("uid", "")) for one in owners if _table(one, "").get("controller")), "")
    if uid:
        _prefer(spec, {"key": f"{EVICTED_FROM}{uid}", "operator": "DoesNotExist"})


def _prefer(spec: Json, wanted: Json) -> None:
    """Of the nodes that it may run on, as much as an affinity can."""
    where = "spec.affinity.nodeAffinity"
    affinity = _table(spec.get("affinity"), "spec.affinity")
    node = _table(affinity.get("nodeAffinity"), where)
    known = _list(node.get(_PREFERRED), where)
    term = {"weight": MOST_WEIGHT, "preference": {"matchExpressions": [wanted]}}
    if term not in known:
        node[_PREFERRED] = [*known, term]
    spec["affinity"] = {**affinity, "nodeAffinity": node}


def _require(spec: Json, wanted: Json) -> None:
    """Of the nodes that it may run on."""
    affinity = _table(spec.get("affinity"), "spec.affinity")
    node = _table(affinity.get("nodeAffinity"), "spec.affinity.nodeAffinity")
    required = _table(node.get(_REQUIRED), "spec.affinity.nodeAffinity")
    terms = _list(required.get("nodeSelectorTerms"), "nodeSelectorTerms") or [{"matchExpressions": [wanted]}]
    required["nodeSelectorTerms"] = [_narrowed(_table(term, "nodeSelectorTerms"), wanted) for term in terms]
    node[_REQUIRED] = required
    affinity["nodeAffinity"] = node
    spec["affinity"] = affinity


def _narrowed(term: Json, wanted: Json) -> Json:
    """An empty term matches no node, and would match some with a condition in it."""
    known = _list(term.get("matchExpressions"), "matchExpressions")
    if wanted in known or not (known or term.get("matchFields")):
        return term
    return {**term, "matchExpressions": [*known, wanted]}


def _count_offline_pods_alone(spec: Json) -> None:
    """Of the pods that its anti-affinity selects."""
    for where, term in _terms_of_anti_affinity(spec):
        if _selects_others(term, where):
            selector = term["labelSelector"]
            term["labelSelector"] = {**selector, "matchExpressions": [*_expressions(selector), OFFLINE_PODS]}


def _selects_others(term: Json, where: str) -> bool:
    """Whether it can select a pod that is not offline. Without a selector, it selects none."""
    if term.get("labelSelector") is None:
        return False
    return OFFLINE_PODS not in _expressions(_table(term["labelSelector"], f"{where}.labelSelector"))


def _expressions(selector: Json) -> list[Any]:
    return _list(selector.get("matchExpressions"), "matchExpressions")


def _terms_of_anti_affinity(spec: Json) -> Iterator[tuple[str, Json]]:
    """Required and preferred; and where each stands."""
    where = "spec.affinity.podAntiAffinity"
    asked = _table(_table(spec.get("affinity"), "spec.affinity").get("podAntiAffinity"), where)
    for term in _list(asked.get(_REQUIRED), where):
        yield where, _table(term, where)
    for one in _list(asked.get(_PREFERRED), where):
        yield where, _table(_table(one, where).get("podAffinityTerm"), where)


# --- shapes ----------------------------------------------------------------------------------------------------------


def _table(value: Any, where: str) -> Json:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConversionError(where, f"{str(value)[:40]!r} is no table", "write names and values")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > MAX_CONTAINERS:
        raise ConversionError(where, f"it is no list of at most {MAX_CONTAINERS}", "write a list")
    return value
