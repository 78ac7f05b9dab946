"""ColocationPolicy: which nodes it selects, and what is written to them. Pure.

How it works
------------
Of all policies that select a node, the settings hold key by key: one with a higher priority wins, of equal ones the
name that comes first. So a policy for the cluster (an empty selector) and one for a group can be written apart. What
they say together goes into one annotation of the Node; what each says, the one that wins last, into another:

    {"version": "5f0c…", "name": "cluster.3+night.1", "settings": {"cpu": {"reserve_cores": 2}}}
    [{"version": "3", "name": "cluster", "settings": {…}}, {"version": "1", "name": "night", "settings": {…}}]

`settings` has the sections and keys of the node's config file, but for those that are the node's own (`NODES_OWN`):
what a policy of before says there has no effect, and its status names it. The API server refuses what is always wrong
(crd.yaml and unknown-keys.yaml in the manifests); the node checks all, and says what it thinks of it in a third
annotation. By the second it leaves out a policy that has an error, and keeps to the others; a node of before reads the
first alone, and refuses it as a whole.

`schedule` becomes the node's own schedule, so that it goes on by itself when nothing of the cluster is there.
`enabled: false` is the switch: off, and running offline pods are to leave. The label `names.SWITCH` on a node is the
same for that node, above all policies.

`owners` is no node's: what it says of offline pods' owners is `owners.rules`'. A policy that says that alone tells
nodes nothing.

The version is made of the content, so the same content is never taken for another one, however it came to be.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from criproxy_cluster.objects import Json
from criproxy_cluster.owners.rules import OwnersSpec
from criproxy_cluster.vocabulary.names import SWITCH
from criproxy_cluster.vocabulary.policy import MAX_POLICY_BYTES, MOST_DEEP, SCHEDULE, NodePolicy, is_deep, merged, split

_OFF: Final[Json] = {"colocation": {"enabled": False, "on_disable": "evict"}}
_SWITCH: Final = "switch"
MOST_REQUIREMENTS: Final = 64
MOST_VALUES: Final = 1024
"""Of a selector and of a requirement, which each node is held against. crd.yaml says the same; what was stored before
it did comes here all the same.
"""
_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")


class PolicyError(ValueError):
    """The policy can't be used. The message names the field, the value and the remedy."""


class Requirement(Struct, frozen=True):
    """Source: meta/v1 LabelSelectorRequirement."""

    key: str
    operator: str
    values: Annotated[frozenset[str], Meta(max_length=MOST_VALUES)] = frozenset()

    def __post_init__(self) -> None:
        if self.operator not in _OPERATORS:
            raise ValueError(f'"{self.operator}" is no operator: write one of {", ".join(_OPERATORS)}')
        if (self.operator in ("In", "NotIn")) != bool(self.values):
            raise ValueError(
                f"{self.operator} has {'no' if not self.values else 'some'} values: In and NotIn need them"
            )

    def holds(self, labels: Mapping[str, str]) -> bool:
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
            case _:
                return self.key not in labels


class Selector(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Of nodes, by their labels. An empty one selects all."""

    match_labels: Annotated[dict[str, str], Meta(max_length=MOST_REQUIREMENTS)] = {}
    match_expressions: Annotated[tuple[Requirement, ...], Meta(max_length=MOST_REQUIREMENTS)] = ()

    def selects(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            requirement.holds(labels) for requirement in self.match_expressions
        )


class PolicySpec(Struct, frozen=True, forbid_unknown_fields=True):
    selector: Selector = Selector()
    priority: int = 0
    enabled: bool | None = None
    settings: dict[str, dict[str, Any]] = {}
    schedule: dict[str, Any] | None = None
    owners: OwnersSpec | None = None


class Policy(Struct, frozen=True):
    """`settings` are all that it says and may say, its schedule and its switch too. `ignored`: see `split`."""

    name: str
    generation: int
    priority: int
    selector: Selector
    settings: Json
    off: bool
    ignored: tuple[str, ...] = ()
    owners: OwnersSpec | None = None

    @property
    def is_for_nodes(self) -> bool:
        return bool(self.settings or self.ignored) or self.owners is None


def parsed(name: str, generation: int, spec: Any) -> Policy:
    """Raises PolicyError."""
    if is_deep(spec):
        raise PolicyError(f"spec: it is nested more than {MOST_DEEP} levels deep: no setting is")
    try:
        found = msgspec.convert(spec or {}, PolicySpec)
    except msgspec.ValidationError as error:
        raise PolicyError(f"spec: {error}: see `kubectl explain colocationpolicy.spec`") from error
    settings, ignored = split({section: dict(table) for section, table in found.settings.items()})
    if found.schedule is not None:
        if unknown := sorted(found.schedule.keys() - SCHEDULE.keys()):
            raise PolicyError(f"spec.schedule.{unknown[0]}: there is no such key: write one of {', '.join(SCHEDULE)}")
        if "schedule" in settings:
            raise PolicyError("spec.settings.schedule: spec.schedule says the same: write one of them")
        settings["schedule"] = {SCHEDULE[key]: value for key, value in found.schedule.items()}
        settings["control"] = {**settings.get("control", {}), "policy": "schedule"}
    if found.enabled is not None:
        settings["colocation"] = {**settings.get("colocation", {}), "enabled": found.enabled}
        if not found.enabled:
            settings = merged((settings, _OFF))
    off = found.enabled is False
    policy = Policy(name, generation, found.priority, found.selector, settings, off, ignored, found.owners)
    if len(msgspec.json.encode(settings)) > MAX_POLICY_BYTES // 2:
        raise PolicyError(f"spec.settings: it has more than {MAX_POLICY_BYTES // 2} bytes: shorten it")
    return policy


def in_order(policies: Iterable[Policy]) -> tuple[Policy, ...]:
    """The one that wins comes last."""
    return tuple(sorted(sorted(policies, key=lambda one: one.name, reverse=True), key=lambda one: one.priority))


def selecting(policies: Sequence[Policy], labels: Mapping[str, str]) -> tuple[Policy, ...]:
    """Those of `policies` that select a node with these labels, in their order."""
    return tuple(policy for policy in policies if policy.is_for_nodes and policy.selector.selects(labels))


def switch_off(chosen: Sequence[Policy]) -> bool:
    """Whether policies in their order say together that nothing is lent."""
    return merged(policy.settings for policy in chosen).get("colocation", {}).get("enabled") is False


def mentions(text: str | None, names: frozenset[str]) -> bool:
    """Whether an annotation was made of one of these policies."""
    return any(part.rpartition(".")[0] in names for part in _made_of(text))


def was_switched_off(text: str | None) -> bool:
    """Whether an annotation was made with the label `names.SWITCH`."""
    return _SWITCH in _made_of(text)


def _made_of(text: str | None) -> list[str]:
    try:
        told = msgspec.json.decode(text or "{}", type=dict[str, Any]).get("name", "")
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return []
    return str(told).split("+")


class Told(Struct, frozen=True):
    """The texts of a Node's two annotations. `parts` None: they are too long, and the node gets `policy` alone."""

    policy: str
    parts: str | None
    version: str


def told_by(chosen: Sequence[Policy], *, switched_off: bool) -> Told | None:
    """What policies in their order say; None: there is nothing to say."""
    if not chosen and not switched_off:
        return None
    parts = [NodePolicy(str(policy.generation), policy.name, policy.settings) for policy in chosen]
    names = [f"{policy.name}.{policy.generation}" for policy in chosen]
    if switched_off:  # no policy has a name with a slash
        parts, names = [*parts, NodePolicy("off", SWITCH, _OFF)], [*names, _SWITCH]
    version = hashlib.blake2s(_json([[part.name, part.settings] for part in parts]), digest_size=6).hexdigest()
    settings = merged(part.settings for part in parts)
    policy, by_itself = _json(NodePolicy(version, "+".join(names), settings)), _json(parts)
    fits = len(by_itself) <= MAX_POLICY_BYTES
    return Told(policy.decode(), by_itself.decode() if fits else None, version)


def _json(value: object) -> bytes:
    return msgspec.json.encode(value, order="sorted")  # the same content is always the same text
