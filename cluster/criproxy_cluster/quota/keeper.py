"""Keeps one Cohort of Kueue at what nodes lend, and suspends Workloads for which there is no room any more.

The Cohort's `spec.resourceGroups` is this controller's alone, by server-side apply without force: what somebody else
owns is left, and said. It is applied when a quota changes, and each `AGAIN_S` besides: one that was deleted is there
again by then. An annotation of it says when Workloads were suspended, so that the next leader, too, keeps to the budget
of the hour.
"""

import asyncio
import time
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from lightkube.core.async_client import AsyncClient
from lightkube.types import PatchType
from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from criproxy_cluster.budget import Budget
from criproxy_cluster.controller.follower import Follower, Hearing
from criproxy_cluster.objects import CohortObject, FlavorSpec, Json, NodeObject, PodSetAssignment, WorkloadObject
from criproxy_cluster.quota.law import Law
from criproxy_cluster.quota.pool import NOTHING, Amounts, Pool, QuotaState, usage
from criproxy_cluster.quota.surplus import Surplus, Workload, to_resume
from criproxy_cluster.requests import CONFLICT, FORBIDDEN, NOT_FOUND, Attempts, Refusals, Trouble, patch, trouble_of
from criproxy_cluster.resources import KUEUE, CohortResource, FlavorResource, WorkloadResource, WorkloadsResource
from criproxy_cluster.vocabulary.names import SUSPENDED, SUSPENDS
from criproxy_cluster.vocabulary.presets import NAMES, ExtendedNames
from criproxy_cluster.vocabulary.quantities import amount
from criproxy_cluster.vocabulary.times import rfc3339, wall_s
from criproxy_cluster.vocabulary.watching import Item

LOOK_S: Final = 1.0
AGAIN_S: Final = 30.0
TOLD_RATIO: Final = 0.10
"""A quota that differs by more from the one that the log has last is logged."""

LISTED_S: Final = 10.0
"""Whether Kueue is there is not said before."""

VERSION: Final = "/".join(KUEUE)


class QuotaSettings(Struct, frozen=True):
    """`cohort` is the Cohort's name, `flavors` are ResourceFlavors'.

    `suspends_per_hour` 0: none is suspended, and those that were are made active again. None: Workloads are left alone.
    """

    cohort: str = "lent"
    flavors: tuple[str, ...] = ("lent",)
    names: ExtendedNames = NAMES["batch"]
    suspends_per_hour: int | None = None


class _Laws:
    """Of the two resources of one flavor."""

    def __init__(self, before: Amounts | None) -> None:
        self._cpu = Law(before.millicores if before else None)
        self._memory = Law(before.bytes if before else None)

    def step(self, lent: Amounts, now_s: float) -> Amounts:
        return Amounts(self._cpu.step(lent.millicores, now_s), self._memory.step(lent.bytes, now_s))


class QuotaKeeper:
    """A `Listener` of the controller's, of one term."""

    def __init__(self, client: AsyncClient, settings: QuotaSettings, log: FilteringBoundLogger) -> None:
        self.state = QuotaState()
        self._client = client
        self._settings = settings
        self._log = log
        self._pool = Pool(settings.names)
        self._flavors: dict[str, FlavorSpec] = {}
        self._listed = False
        """Whether flavors were."""
        self._began_s = time.monotonic()
        self._laws: dict[str, _Laws] = {}
        self._before: dict[str, Amounts] | None = None
        """What the Cohort had when this began; None: not read yet."""
        self._workloads: dict[str, Workload] = {}
        """By uid."""
        self._budget = Budget(settings.suspends_per_hour or 0)
        self._surplus = Surplus(self._budget)
        self._refusals = Refusals()
        self._to_suspend: list[Workload] = []
        self._hearing = Hearing()
        """Of Workloads."""
        self._written: tuple[Json, float] | None = None
        self._told: dict[str, Amounts] = {}
        consequence = "what it concerns stays as it is; tried again"
        self._attempts = Attempts(self.state, log, "quota", consequence, cohort=settings.cohort)

    # --- what is seen -------------------------------------------------------------------------------------------------

    def see(self, node: NodeObject, labels: Mapping[str, str]) -> None:
        self._pool.see(node, labels)

    def forget(self, name: str) -> None:
        self._pool.forget(name)

    def forget_all_but(self, names: set[str]) -> None:
        self._pool.forget_all_but(names)

    async def run(self) -> None:
        """Until cancelled. Nodes were listed."""
        flavors = Follower(
            self._client, FlavorResource, self._flavor_changed, self._flavors_listed, hearing=Hearing(), log=self._log
        )
        async with asyncio.TaskGroup() as parts:
            parts.create_task(flavors.run())
            if self._settings.suspends_per_hour is not None:
                workloads = Follower(
                    self._client,
                    WorkloadsResource,
                    self._workload_changed,
                    self._workloads_listed,
                    hearing=self._hearing,
                    log=self._log,
                )
                parts.create_task(workloads.run())
            parts.create_task(self._keep())

    def _flavor_changed(self, item: Item[FlavorResource]) -> None:
        if item.event == "DELETED":
            self._flavors.pop(item.name, None)
        elif item.name in self._settings.flavors and item.value is not None:
            self._flavors[item.name] = item.value.spec

    def _flavors_listed(self, names: set[str]) -> None:
        self._flavors = {name: spec for name, spec in self._flavors.items() if name in names}
        self._listed = True

    def _workload_changed(self, item: Item[WorkloadsResource]) -> None:
        if item.event == "DELETED":
            self._workloads.pop(item.name, None)
        elif item.value is not None:
            self._workloads[item.name] = _workload(item.value, self._settings.flavors)

    def _workloads_listed(self, uids: set[str]) -> None:
        for gone in self._workloads.keys() - uids:
            del self._workloads[gone]

    # --- what is done -------------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        """All that is due now. What fails is said once, and tried again after a pause that grows."""
        now_s = time.monotonic()
        try:
            self._step(now_s)  # also in a pause: what is lent meanwhile counts
            if self._attempts.left_s:
                return
            await self._act(now_s)
        except Exception as error:  # whatever is wrong with the quota, nodes and policies go on
            self._attempts.failed(error)
        else:
            self._attempts.done(self._missing() or self._refusals.problem)

    async def _act(self, now_s: float) -> None:
        """Raises Trouble. Neither Cohort nor Workloads wait for the other; nobody goes for a Cohort that can't fall."""
        failed = [await _attempted(self._keep_cohort(now_s)), await _attempted(self._resume())]
        for trouble in failed:
            if trouble is not None:
                raise trouble
        await self._suspend(now_s)

    async def _keep_cohort(self, now_s: float) -> None:
        """Raises Trouble."""
        if self._before is None:
            found = await self._read()
            self._budget.restore(suspends_of(found), now_s, time.time())
            self._before = quotas_of(found)
            self._step(now_s)
        if self._pool.lent:
            await self._apply(now_s)

    def _missing(self) -> str:
        """What people have to make first; "": nothing."""
        if not self._listed and time.monotonic() - self._began_s < LISTED_S:
            return ""
        if not self._listed:
            return (
                f"Kueue's ResourceFlavors can't be listed ({VERSION}): install Kueue 0.15 or later, and have the "
                "component cluster/manifests/queue, which has the right (docs/kueue.md)"
            )
        gone = [name for name in self._settings.flavors if name not in self._flavors]
        return f"there is no ResourceFlavor {', '.join(gone)}: apply one (examples/kueue/queues.yaml)" if gone else ""

    def _step(self, now_s: float) -> None:
        if not self._listed or self._before is None:
            return
        self._pool.set_flavors({name: self._flavors[name] for name in self._settings.flavors if name in self._flavors})
        for flavor, lent in self._pool.lent.items():
            laws = self._laws.get(flavor)
            if laws is None:
                laws = self._laws[flavor] = _Laws(self._before.get(flavor))
            self.state.quota[flavor] = laws.step(lent, now_s)
        self.state.lent = dict(self._pool.lent)
        self._to_suspend = (
            []
            if self._hearing.is_lost
            else self._surplus.chosen(
                self._workloads.values(), self._pool.carried, now_s, lambda one: one.key in self._refusals
            )
        )

    async def _read(self) -> CohortObject:
        """The Cohort as the leader before has left it; one without anything: it is not there. Raises Trouble."""
        what = f"Cohort {self._settings.cohort}"
        try:
            with trouble_of(what):
                return await self._client.get(CohortResource, self._settings.cohort)
        except Trouble as trouble:
            if trouble.code == NOT_FOUND:
                return CohortObject()
            raise _in_words(trouble) from trouble

    async def _apply(self, now_s: float) -> None:
        """Raises Trouble."""
        quotas = {name: self.state.quota[name] for name in self._pool.lent}
        wanted = cohort(self._settings.cohort, quotas, self._budget.times(now_s))
        if self._written is not None and self._written[0] == wanted and now_s - self._written[1] < AGAIN_S:
            return
        name = self._settings.cohort
        self._written = None  # whether it is done is known by its answer alone
        try:
            await patch(self._client, CohortResource, name, wanted, PatchType.APPLY, what=f"Cohort {name}")
        except Trouble as trouble:
            raise _in_words(trouble) from trouble
        self._written = wanted, now_s
        self.state.writes += 1
        if any(_differ(quota, self._told.get(flavor)) for flavor, quota in quotas.items()):
            self._told = quotas
            said = {flavor: {"cores": one.millicores / 1000, "bytes": one.bytes} for flavor, one in quotas.items()}
            self._log.info("quota_written", cohort=name, quotas=said)

    async def _resume(self) -> None:
        """Raises Trouble."""
        for one in to_resume(self._workloads.values()):
            if one.key not in self._refusals and await self._set_active(one, active=True):
                self.state.resumed += 1
                self._log.info("workload_resumed", namespace=one.namespace, workload=one.name)

    async def _suspend(self, now_s: float) -> None:
        """Raises Trouble."""
        for one in self._to_suspend:
            try:
                if not await self._set_active(one, active=False):
                    continue
            except Trouble as trouble:
                if trouble.may_be_done:
                    self._budget.spend(now_s, time.time())
                raise
            self._budget.spend(now_s, time.time())
            self.state.suspended += 1
            self._log.info("workload_suspended", namespace=one.namespace, workload=one.name, why="nodes lend less")
            await self._apply(now_s)  # before the next one goes: this may be the end of the term

    async def _set_active(self, one: Workload, *, active: bool) -> bool:
        """Whether it is written. One that has changed since it was seen is seen again first, one that is refused is
        left alone for a while. Raises Trouble.
        """
        mark = None if active else rfc3339(time.time())
        body = {
            "metadata": {"resourceVersion": one.version, "annotations": {SUSPENDED: mark}},
            "spec": {"active": active},
        }
        what = f"Workload {one.namespace}/{one.name}"
        try:
            await patch(
                self._client, WorkloadResource, one.name, body, PatchType.MERGE, what=what, namespace=one.namespace
            )
        except Trouble as trouble:
            if trouble.code not in (NOT_FOUND, CONFLICT):
                self._refusals.add(one.key, trouble)
            return False
        self._refusals.done(one.key)
        return True


async def _attempted(write: Awaitable[None]) -> Trouble | None:
    try:
        await write
    except Trouble as trouble:
        return trouble
    return None


def cohort(name: str, quotas: Mapping[str, Amounts], suspends: Sequence[int]) -> Json:
    """The object that is applied. `suspends`: when Workloads were suspended lately."""
    flavors = [
        {
            "name": flavor,
            "resources": [
                {"name": "cpu", "nominalQuota": f"{one.millicores}m"},
                {"name": "memory", "nominalQuota": str(one.bytes)},
            ],
        }
        for flavor, one in quotas.items()
    ]
    groups = [{"coveredResources": ["cpu", "memory"], "flavors": flavors}]
    annotations = {SUSPENDS: ",".join(map(rfc3339, suspends))} if suspends else {}
    metadata = {"name": name, "annotations": annotations}
    return {"apiVersion": VERSION, "kind": "Cohort", "metadata": metadata, "spec": {"resourceGroups": groups}}


def suspends_of(found: CohortObject) -> Iterator[float]:
    """When Workloads were suspended lately. What can't be read is left out."""
    for text in (found.metadata.annotations or {}).get(SUSPENDS, "").split(","):
        with suppress(ValueError):
            yield wall_s(text)


def quotas_of(found: CohortObject) -> dict[str, Amounts]:
    """By flavor. What can't be read is not there."""
    quotas: dict[str, Amounts] = {}
    try:
        for group in found.spec["resourceGroups"]:
            for flavor in group["flavors"]:
                said = {one["name"]: amount(one["nominalQuota"]) for one in flavor["resources"]}
                quotas[flavor["name"]] = Amounts(int(said["cpu"] * 1000), int(said["memory"]))
    except (KeyError, TypeError, ValueError):
        return {}
    return quotas


def _workload(found: WorkloadObject, flavors: tuple[str, ...]) -> Workload:
    meta, status = found.metadata, found.status
    conditions = {one.type: one for one in status.conditions or ()}
    admitted = conditions.get("QuotaReserved")
    finished = conditions.get("Finished")
    reserved = status.admission is not None and not (finished and finished.status == "True")
    parts = (status.admission.pod_set_assignments or ()) if status.admission and reserved else ()
    pods = {one.name: one.count for one in found.spec.pod_sets or ()}
    for one in status.reclaimable_pods or ():
        pods[one.name] = max(pods.get(one.name, 0) - one.count, 0)
    used = {flavor: sum((_used(part, flavor, pods.get(part.name)) for part in parts), NOTHING) for flavor in flavors}
    return Workload(
        namespace=meta.namespace,
        name=meta.workload_name,
        version=meta.resource_version,
        active=found.spec.active is not False,
        marked=SUSPENDED in (meta.annotations or {}),
        reserved=reserved,
        since=(admitted.last_transition_time or "") if admitted else "",
        used=used,
    )


def _used(part: PodSetAssignment, flavor: str, pods: int | None) -> Amounts:
    """What Kueue counts as used of a flavor: of what it granted, the part of the pods that are left. None: all of it.

    Source: Kueue, pkg/workload/workload.go, totalRequestsFromAdmission.
    """
    granted = usage(part.flavors, part.resource_usage, flavor)
    if pods is None or part.count is None or pods >= part.count:
        return granted
    return Amounts(granted.millicores // part.count * pods, granted.bytes // part.count * pods)


def _differ(quota: Amounts, told: Amounts | None) -> bool:
    if told is None:
        return True
    return any(
        abs(now - before) > TOLD_RATIO * before
        for now, before in ((quota.millicores, told.millicores), (quota.bytes, told.bytes))
    )


_REMEDIES: Final = {
    NOT_FOUND: f"the API server knows no Cohort of {VERSION}: install Kueue 0.15 or later, or take --cohort away",
    FORBIDDEN: "have the component cluster/manifests/queue, which has the rights (docs/kueue.md)",
    CONFLICT: "somebody else owns the quotas there: delete the Cohort, and it is made anew, or take "
    "spec.resourceGroups out of what is applied to it",
}


def _in_words(trouble: Trouble) -> Trouble:
    remedy: Any = _REMEDIES.get(trouble.code)
    return Trouble(f"{trouble}: {remedy}", trouble.code) if remedy else trouble
