"""The ColocationPolicy, and the three annotations of a Node by which it gets there and is answered. Pure.

    colocation.criproxy.io/policy         {"version": "7", "name": "night.3", "settings": {"cpu": {"reserve_cores": 2}}}
    colocation.criproxy.io/policies       [{"version": "3", "name": "night", "settings": {"cpu": {"reserve_cores": 2}}}]
    colocation.criproxy.io/policy-status  {"version": "7", "inForce": true, "problems": [], "refused": {},
                                           "ignored": []}

The first two are written by the controller, the third by the node. `settings` has the sections and keys of the node's
config file: criproxy/config/settings.py has them, and docs/policy_schema.py makes the CRD of them.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

GROUP: Final = "colocation.criproxy.io"
VERSION: Final = "v1alpha1"
KIND: Final = "ColocationPolicy"
PLURAL: Final = "colocationpolicies"

MAX_POLICY_BYTES: Final = 64 * 1024
"""Of each annotation. All of an object together have 256 KiB. Source: apimachinery, TotalAnnotationSizeLimitB."""

MOST_DEEP: Final = 16
"""Levels of nesting in settings. What follows a value down has a stack that ends somewhere."""

SCHEDULE: Final[Mapping[str, str]] = {
    "timeZone": "time_zone",
    "windows": "windows",
    "outside": "outside",
    "graceSeconds": "grace_s",
    "onClose": "on_close",
}
"""The keys of spec.schedule, and what [schedule] of a node's settings calls them."""


NODES_OWN: Final = (
    "proxy.bypass_after_s",
    "colocation.on_runtime_overload",
    "colocation.on_unbounded",
    "colocation.presets",
    "colocation.rules",
    "colocation.runtime_max_cores",
    "hardening.allow",
    "hardening.cache_classes",
    "hardening.capabilities",
    "hardening.proc_mount",
    "hardening.refuse_host_namespaces",
    "hardening.refuse_host_paths",
    "hardening.refuse_host_ports",
    "hardening.refuse_privileged",
    "hardening.seccomp",
    "hardening.verified_only",
    "hardening.writable_host_paths",
    "interference.queries",
    "pids.max_ratio",
)
"""Keys that a policy can't set, though a change of them needs no restart: which pods are offline, which are stopped as
they run outside the box or have the runtime work too much, what is kept from offline pods, which queries a Prometheus
gets, and what holds while criproxy is down. A node's own file has them. What a policy says there has no effect, and the
rest of it holds: refused as a whole, a policy of before would take its switch with it.
"""


class NodePolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """What a Node is given, or a part of it. `version` and `name` are the controller's, for people.

    A key that is misspelled must not make it a policy without settings.
    """

    version: str = ""
    name: str = ""
    settings: Mapping[str, Any] = {}


class PolicyReport(Struct, frozen=True, gc=False, rename="camel"):
    """What a node says of the policy that it was given last. `problems`: why it is not in force."""

    version: str
    in_force: bool
    problems: tuple[str, ...] = ()
    instead: str = ""
    """The version that is in force instead as a whole; "": the file alone, or all parts but the refused."""
    refused: Mapping[str, str] = {}
    """By name, the parts that are refused, and why. With some, all others are in force."""
    ignored: tuple[str, ...] = ()
    """The keys of `NODES_OWN` that it has: they have no effect."""


def merged(documents: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Settings together: key by key the last that has it. What is no table wins as a whole."""
    together: dict[str, Any] = {}
    for document in documents:
        for section, table in document.items():
            below = together.get(section)
            together[section] = {**below, **table} if isinstance(below, dict) and isinstance(table, dict) else table
    return together


def split(settings: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What a policy may set, and the keys that it has of `NODES_OWN`."""
    left, ignored = dict(settings), list[str]()
    for key in NODES_OWN:
        section, _, name = key.partition(".")
        table = left.get(section)
        if isinstance(table, Mapping) and name in table:
            ignored.append(key)
            left[section] = {other: value for other, value in table.items() if other != name}
    return left, tuple(ignored)


def is_deep(value: object, levels: int = MOST_DEEP) -> bool:
    """Whether a value, as read from JSON, is nested more than so many levels deep."""
    if isinstance(value, dict):
        value = list(value.values())
    return isinstance(value, list) and (levels == 0 or any(is_deep(one, levels - 1) for one in value))
