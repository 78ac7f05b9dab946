"""What an offline pod may not ask for, as by that it could leave every bound: said when it is made. Pure.

The node says the same last, as what a path leads to shows there alone, and a pod may come past this webhook. Where an
administrator's rule on the nodes (`hardening.allow`) lets pods of a namespace have it, that namespace is trusted here.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from criproxy_cluster.objects import Json
from criproxy_cluster.vocabulary import unboundable
from criproxy_cluster.vocabulary.unboundable import (
    CAPABILITIES,
    HOST_NAMESPACES,
    HOST_PATHS,
    MOST_CAPABILITIES,
    SYS_NICE,
    WRITABLE_HOST_PATHS,
    host_path_refusal,
    plain,
)

BY = "--trusted-namespace of criproxy-cluster, and hardening.allow in the nodes' files"

_LISTS = ("initContainers", "containers", "ephemeralContainers")


class HardeningSettings(Struct, frozen=True):
    """`trusted`: namespaces whose pods may have all of it. `own_users`: pods get a user namespace of their own.
    `lent`: the folders in which hostPath volumes may be writable.
    """

    trusted: frozenset[str] = frozenset()
    own_users: bool = False
    lent: tuple[str, ...] = WRITABLE_HOST_PATHS


def refusal(spec: Json, namespace: str, settings: HardeningSettings) -> str:
    """Why an offline pod with this spec is refused, in words; "": it is not."""
    return "" if namespace in settings.trusted else next(_refusals(spec, settings.lent), "")


def _refusals(spec: Json, lent: Sequence[str]) -> Iterator[str]:
    for kind in _LISTS:
        for container in _tables(spec.get(kind)):
            if _table(container.get("securityContext")).get("privileged") is True:
                yield unboundable.privileged(BY)
    for name, field in HOST_NAMESPACES.items():
        if spec.get(field) is True:
            yield unboundable.host_namespace(name, BY)
    for kind in _LISTS:
        for container in _tables(spec.get(kind)):
            for port in _tables(container.get("ports")):
                if isinstance(number := port.get("hostPort"), int) and number > 0:
                    yield unboundable.host_port(number, BY)
            if len(_added(container)) > MOST_CAPABILITIES:
                yield unboundable.capabilities(BY)
    yield from _refusals_of_volumes(spec, lent)


def _refusals_of_volumes(spec: Json, lent: Sequence[str]) -> Iterator[str]:
    written = _written(spec)
    for volume in _tables(spec.get("volumes")):
        path, readonly = str(_table(volume.get("hostPath")).get("path", "")), str(volume.get("name")) not in written
        if path and (why := host_path_refusal(path, BY, HOST_PATHS, lent, readonly=readonly)):
            yield why


def drop_real_time(spec: Json) -> None:
    """Takes from an offline pod's containers, where they add it, the capability to run in real time. Nodes do so, too,
    but those whose runtime calls criproxy by NRI, which can't. The containers are replaced, as others may have them.
    """
    for kind in _LISTS:
        for number, container in enumerate(spec.get(kind) or ()):
            if not isinstance(container, dict) or not unboundable.may_run_in_real_time(_added(container)):
                continue
            security = container["securityContext"]
            dropped = security["capabilities"].get("drop") or []
            if SYS_NICE not in dropped:
                capabilities = {**security["capabilities"], "drop": [*dropped, SYS_NICE]}
                spec[kind][number] = {**container, "securityContext": {**security, "capabilities": capabilities}}


def cut_capabilities(container: Json) -> tuple[str, ...]:
    """Those that it adds, and nodes take away by the list that they have unless their own files say otherwise."""
    return tuple(sorted({plain(one) for one in _added(container)}.difference(CAPABILITIES)))


def can_have_own_users(spec: Json) -> bool:
    """Whether the API server takes `hostUsers: false` for it, and the author has not said otherwise.

    Source: Kubernetes, pkg/apis/core/validation, validateHostUsers.
    """
    shares = any(spec.get(field) is True for field in HOST_NAMESPACES.values())
    devices = any(container.get("volumeDevices") for kind in _LISTS for container in _tables(spec.get(kind)))
    return spec.get("hostUsers") is None and not shares and not devices


def _written(spec: Json) -> frozenset[str]:
    """The names of the volumes that any of its containers mounts, and not read-only."""
    return frozenset(
        str(mount.get("name"))
        for kind in _LISTS
        for container in _tables(spec.get(kind))
        for mount in _tables(container.get("volumeMounts"))
        if mount.get("readOnly") is not True
    )


def _added(container: Json) -> list[str]:
    """The capabilities that it adds."""
    added = _table(_table(container.get("securityContext")).get("capabilities")).get("add")
    return [str(one) for one in added] if isinstance(added, list) else []


def _table(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _tables(value: Any) -> list[Json]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
