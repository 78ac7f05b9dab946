"""A walk through the lives of the cluster's parts: begun, let down at each of their awaits, ceased, and well again.

A seeded API server, and a seeded ResourceManager, decide what becomes of each request (`fates`). SCHEDULES says how
many seeds there are: `SCHEDULES=10000 .venv/bin/python -m pytest cluster/tests/test_lives.py`.
"""

import asyncio
import gc
import os
import random
from contextlib import suppress
from datetime import datetime
from itertools import count

import httpx2
import pytest
from structlog.testing import CapturingLogger

from cluster.tests.controller.test_controller import put_policy
from cluster.tests.fates import FatefulKube, never, passes
from cluster.tests.overflow.test_owners_keeper import OWNERS, book, put_pod, put_virtual, wall_s
from cluster.tests.quota.test_quota_keeper import evict, put_flavor, put_node, put_workload, quota
from cluster.tests.yarn.fake_yarn import FakeYarn
from cluster.tests.yarn.test_yarn_operator import CPU, GIB, ID, MEMORY, notes, put_manager, said
from criproxy_cluster.commands.ledger import LEASE
from criproxy_cluster.controller.controller import Controller
from criproxy_cluster.controller.leader import END_S, GIVE_BACK_S, Leader
from criproxy_cluster.ledger.desk import READ_S, AbstainedError, Desk, Seen
from criproxy_cluster.ledger.law import Ledger, Pod, Wish
from criproxy_cluster.ledger.reviews import Asked
from criproxy_cluster.ledger.watching import PodReader, Watches
from criproxy_cluster.overflow.keeper import AGAIN_S, OwnersKeeper, OwnersSettings
from criproxy_cluster.overflow.resources import BOOK
from criproxy_cluster.quota.keeper import QuotaKeeper, QuotaSettings
from criproxy_cluster.quota.pool import NOTHING
from criproxy_cluster.vocabulary.names import CLASS, OFFLINE, SUSPENDED
from criproxy_cluster.yarn.operator import YarnOperator, YarnSettings

SCHEDULES = int(os.environ.get("SCHEDULES", "5"))
"""For each part."""
pytestmark = pytest.mark.timeout(300 + SCHEDULES)

ENDS_WITHIN = 50
"""Passes of the event loop from a cancel to the end: nobody waits for anything on the way."""

RECOVERS_S = 300.0
"""From when the world is well to when the part is: a watch that is silent counts as lost after 90 s, a list takes 30 s,
one object that was refused is left alone for 120 s, and figures are written each minute.
"""

SYSTEM = "criproxy-system"


async def recovered(is_well):
    ends_s = asyncio.get_running_loop().time() + RECOVERS_S
    while True:
        with suppress(KeyError, ValueError):
            if is_well():
                return
        assert asyncio.get_running_loop().time() < ends_s, "it has not recovered"
        await asyncio.sleep(1.0)


async def let_down(part, kube, chance):
    """Some moments of a world that changes and fails."""
    for _ in range(chance.randrange(8)):
        part.change()
        if chance.random() < 0.5:
            await passes(chance.randrange(60))
        else:
            await asyncio.sleep(chance.choice((0.01, 0.5, 1.0, 3.0, 10.0, 40.0, 100.0)))
        kube.well = chance.random() < 0.2


def compact(kube, plural, name, namespace):
    """History is gone, and with it the end of this object, of which no watch has heard."""
    kube.objects.pop((plural, namespace, name), None)
    kube.forget()


def assert_all_run(tasks):
    for task in tasks:
        if task.done():
            raise AssertionError("it has ended by itself") from task.exception()


async def cease(part, kube, tasks):
    before = asyncio.current_task()
    for task in tasks:
        task.cancel()
    await passes(ENDS_WITHIN)
    assert all(task.done() for task in tasks if task is not part.leading), "it waits for something on its way out"
    if part.leading is not None:
        await asyncio.wait([part.leading], timeout=END_S + GIVE_BACK_S + 1.0)
    assert all(task.cancelled() for task in tasks), "its end is no cancel, or the Lease is not given back in time"
    assert asyncio.all_tasks() == {before}, "it has left something at work"
    assert not kube.watchers, "it has left a watch open"


async def life(part, kube, chance):
    """Begun a few times, as by leaders that lose the Lease; the last time it lives to see all well again."""
    for last in (*(False,) * chance.randrange(3), True):
        async with kube.client() as client:
            kube.well = chance.random() < 0.3
            part.lines.calls.clear()
            tasks = part.begin(client)
            await let_down(part, kube, chance)
            assert_all_run(tasks)
            if last:
                kube.well = True
                await recovered(part.is_well)
                assert_all_run(tasks)
                part.check_told()
            await cease(part, kube, tasks)


def walk(make, stepped):
    for seed in range(SCHEDULES):
        chance = random.Random(seed)
        random.seed(seed)  # the parts' own pauses
        kube = FatefulKube(chance)
        lines = CapturingLogger()

        async def scenario(chance=chance, kube=kube, lines=lines):
            await life(make(kube, chance, lines), kube, chance)

        try:
            stepped(scenario())
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    gc.collect()  # what the lives have left ends now, not amid whatever comes next


# --- the controller that overflows -----------------------------------------------------------------------------------


class Overflowing:
    """The controller with its keeper of owners."""

    leading = None

    def __init__(self, kube, chance, lines):
        self.kube, self.chance, self.lines = kube, chance, lines
        kube.put("configmaps", {"metadata": {"name": BOOK}}, SYSTEM)
        put_policy(kube, "night", owners=OWNERS)
        put_virtual(kube)
        self.began_s = wall_s()

    def begin(self, client):
        self.began_s = wall_s()
        self.keeper = OwnersKeeper(client, OwnersSettings(remakes_per_hour=5), self.lines)
        return [asyncio.create_task(Controller(client, self.lines, owners=self.keeper).run())]

    def change(self):
        kube, chance = self.kube, self.chance
        name = f"p{chance.randrange(4)}"
        match chance.randrange(6):
            case 0 | 1:
                put_pod(kube, name, chance.randrange(200))
            case 2:
                put_pod(kube, name, 20, "n1")
            case 3:
                with suppress(KeyError):
                    kube.remove("pods", name, "batch")
            case 4:
                put_virtual(kube, chance.choice(("True", "False")))
            case 5:
                compact(kube, "pods", name, "batch")

    def is_well(self):
        """The webhooks have a book of now, and the policy's status says what there is."""
        pods = [one for (kind, *_), one in self.kube.objects.items() if kind == "pods"]
        waiting = sum(not one["spec"].get("nodeName") for one in pods)
        status = self.kube.get("colocationpolicies", "night")["status"]["owners"]
        meta = self.kube.get("configmaps", BOOK, SYSTEM)["metadata"]
        written_s = datetime.fromisoformat(meta["annotations"]["colocation.criproxy.io/written"]).timestamp()
        if wall_s() - written_s > AGAIN_S + 5.0 or book(self.kube).overflowed:
            return False
        return not self.keeper.state.problem and status["waiting"] == waiting == self.keeper.state.waiting

    def check_told(self):
        told = [one["error"] for one in said(self.lines, "owners_trouble")]
        assert bool(self.keeper.state.failures) <= bool(told)


def test_the_controller_that_overflows_lives_through_whatever_becomes_of_each_of_its_awaits(stepped):
    walk(Overflowing, stepped)


# --- the controller that keeps a quota --------------------------------------------------------------------------------


BUDGET = 20
"""Of Workloads that are suspended in an hour."""


class Queueing:
    """The controller with its keeper of Kueue's quota, and Kueue, which takes quota back from what is suspended."""

    leading = None

    def __init__(self, kube, chance, lines):
        self.kube, self.chance, self.lines = kube, chance, lines
        put_flavor(kube)
        put_node(kube, "n0", "4000")

    def begin(self, client):
        self.keeper = QuotaKeeper(client, QuotaSettings(suspends_per_hour=BUDGET), self.lines)
        controller = Controller(client, self.lines, listener=self.keeper)
        return [asyncio.create_task(one) for one in (controller.run(), self.takes_quota_back())]

    async def takes_quota_back(self):
        while True:
            for name in self.names("workloads"):
                if self.kube.get("workloads", name, "batch")["spec"].get("active") is False:
                    evict(self.kube, name)
            await asyncio.sleep(self.chance.choice((0.1, 2.0, 20.0)))

    def names(self, kind):
        return [name for plural, _, name in self.kube.objects if plural == kind]

    def change(self):
        kube, chance = self.kube, self.chance
        node, workload = f"n{chance.randrange(3)}", f"w{chance.randrange(6)}"
        match chance.randrange(9):
            case 0 | 1:
                put_node(kube, node, str(chance.randrange(5) * 1000))
            case 2 | 3:
                put_workload(kube, workload, chance.randrange(60), str(chance.randrange(1, 4)))
            case 4:
                kind, namespace, name = chance.choice((("nodes", "", node), ("workloads", "batch", workload)))
                with suppress(KeyError):
                    kube.remove(kind, name, namespace)
            case 5:
                with suppress(KeyError):
                    kube.remove("resourceflavors", "lent")
            case 6:
                put_flavor(kube)
            case 7:
                with suppress(KeyError):
                    kube.remove("cohorts", "lent")
            case 8:
                compact(kube, *chance.choice((("nodes", node, ""), ("workloads", workload, "batch"))))

    def is_well(self):
        """It has all Workloads as they are, none waits for it, and neither they nor the Cohort exceed what is lent."""
        found = {name: self.kube.get("workloads", name, "batch") for name in self.names("workloads")}
        if {one.name: one.version for one in self.keeper._workloads.values()} != {
            name: one["metadata"]["resourceVersion"] for name, one in found.items()
        }:
            return False
        if any(SUSPENDED in one["metadata"]["annotations"] for one in found.values()):
            return False  # Kueue has taken its quota back
        if not self.names("resourceflavors"):
            return "there is no ResourceFlavor lent" in self.keeper.state.problem
        nodes = [self.kube.get("nodes", name)["status"]["allocatable"] for name in self.names("nodes")]
        lent = sum(int(one[CPU]) for one in nodes), len(nodes) * 8 * GIB
        known, kept = self.keeper.state.lent["lent"], self.keeper.state.quota["lent"]
        holding = [one.used["lent"] for one in self.keeper._workloads.values() if one.reserved and one.active]
        if sum(holding, NOTHING).exceeds(known) and len(self.keeper._budget._spent) < BUDGET:
            return False
        cpu, memory = quota(self.kube)
        if self.keeper.state.problem or (known.millicores, known.bytes) != lent:
            return False
        written = int(cpu.removesuffix("m")), int(memory)
        return written == (kept.millicores, kept.bytes) and written[0] <= lent[0] and written[1] <= lent[1]

    def check_told(self):
        assert bool(self.keeper.state.failures) <= bool(said(self.lines, "quota_trouble"))


def test_the_keeper_of_a_quota_lives_through_whatever_becomes_of_each_of_its_awaits(stepped, monkeypatch):
    monkeypatch.setattr("criproxy_cluster.quota.surplus.OVER_S", 20.0)  # or next to nothing would be suspended
    made = []

    def make(*arguments):
        made.append(Queueing(*arguments))
        return made[-1]

    walk(make, stepped)
    if SCHEDULES >= 100:
        assert any(one.keeper.state.suspended for one in made) and any(one.keeper.state.resumed for one in made)


# --- the ledger ------------------------------------------------------------------------------------------------------


class FatefulYarn(FakeYarn):
    def __init__(self, kube):
        super().__init__()
        self._kube = kube

    def client(self):
        return httpx2.AsyncClient(transport=httpx2.MockTransport(self.fated), verify=False, timeout=5.0)

    async def fated(self, request):
        chance = self._kube.chance
        await passes(chance.randrange(3))
        match 9 if self._kube.well else chance.randrange(8):
            case 0:
                raise httpx2.ConnectError("refused")
            case 1:
                await never(request)
            case 2:
                return httpx2.Response(chance.choice((401, 403, 404, 500, 503)), text="as the test wants it")
            case 3:
                return httpx2.Response(200, content=chance.choice((b"", b"null", b"[]", b'{"node":7}', b"[" * 5000)))
            case 4:
                self.answer(request)
                raise httpx2.ReadError("cut")
        return self.answer(request)


class Keeping:
    """A replica of the ledger with all its parts but the doors, of which it is asked as they ask it."""

    leading = None
    """The task that gives the Lease back when it ends."""

    def __init__(self, kube, chance, lines):
        self.kube, self.chance, self.lines = kube, chance, lines
        self.made = count()
        self.yarn = FatefulYarn(kube)
        self.yarn.node(ID, 16384, 16)
        kube.put("leases", {"metadata": {"name": LEASE}, "spec": {}}, SYSTEM)
        self.lend(8)
        put_manager(kube)

    def lend(self, cores):
        amounts = {CPU: str(cores * 1000), MEMORY: str(cores * GIB)}
        annotations = {}
        with suppress(KeyError):
            annotations = self.kube.get("nodes", "n")["metadata"]["annotations"]
        meta = {"name": "n", "annotations": annotations}
        self.kube.put("nodes", {"metadata": meta, "status": {"capacity": amounts, "allocatable": amounts}})

    def begin(self, client):
        self.ledger, self.seen = Ledger(), Seen()
        settings = YarnSettings(("http://rm-1:8088", "http://rm-2:8088"))
        self.desk = Desk(
            self.ledger,
            self.seen,
            PodReader(client),
            leads=lambda: leader.leads,
            now_s=asyncio.get_running_loop().time,
            log=self.lines,
        )
        leader = Leader(client, SYSTEM, "me", self.desk.lead, self.lines, lease=LEASE)
        watches = Watches(client, self.ledger, self.seen, self.lines)
        self.operator = YarnOperator(
            client, self.ledger, settings, self.seen, leads=lambda: leader.leads, log=self.lines
        )
        self.operator._manager._client = self.yarn.client()
        self.leading = asyncio.create_task(leader.run())
        parts = (watches.run(), self.desk.run(), self.operator.run(), self.asks())
        return [self.leading, *(asyncio.create_task(one) for one in parts)]

    async def asks(self):
        """Binds and reservations, each of which is answered in time. What is not refused the API server stores.

        In a world that is well nobody reserves: those last 30 s each, and `is_well` looks for a moment without.
        """
        while True:
            name = f"b{self.chance.randrange(6)}"
            began_s = asyncio.get_running_loop().time()
            if self.chance.random() < 0.3 and not self.kube.well:
                with suppress(AbstainedError):
                    await self.desk.reserve([Wish(self.pod(name), "n")], all_or_nothing=self.chance.random() < 0.5)
            elif await self.is_let_through(Asked("r", "default", name, self.uid(name), "n", dry_run=False)):
                self.store(name, bound=self.chance.random() < 0.7)
            assert asyncio.get_running_loop().time() - began_s <= READ_S + 0.01, "a bind waits for no more than a read"
            await asyncio.sleep(self.chance.choice((0.1, 2.0, 20.0)))

    async def is_let_through(self, asked):
        try:
            return (await self.desk.bind(asked)).allowed
        except AbstainedError:
            return True

    def pod(self, name):
        return Pod(self.uid(name), "default", name, ((CPU, 1000), (MEMORY, GIB)))

    def uid(self, name):
        """No two pods ever have the same. One that is not there has some."""
        found = self.kube.objects.get(("pods", "default", name))
        return found["metadata"]["uid"] if found else f"uid-{name}-{next(self.made)}"

    def store(self, name, *, bound):
        if ("pods", "default", name) in self.kube.objects:
            self.put_pod(name, "n" if bound else "")

    def put_pod(self, name, node=""):
        """One that is bound stays so."""
        found = self.kube.objects.get(("pods", "default", name))
        node = (found and found["spec"].get("nodeName")) or node
        requests = {CPU: "1000", MEMORY: str(GIB)}
        spec = {
            "containers": [{"name": "c", "resources": {"requests": requests}}],
            **({"nodeName": node} if node else {}),
        }
        meta = {"name": name, "namespace": "default", "uid": self.uid(name), "labels": {CLASS: OFFLINE}}
        self.kube.put("pods", {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}}, "default")

    def change(self):
        kube, chance = self.kube, self.chance
        name = f"b{chance.randrange(6)}"
        match chance.randrange(8):
            case 0 | 1:
                self.put_pod(name)
            case 2:
                with suppress(KeyError):
                    kube.remove("pods", name, "default")
            case 3:
                self.lend(chance.choice((4, 8, 16)))
            case 4:
                self.yarn.used[ID] = [min(2048, self.yarn.sizes[ID][0]), 1]
            case 5:
                self.yarn.sizes[ID] = [16384, 16]  # its NodeManager has come back
            case 6:
                compact(kube, "pods", name, "default")
            case 7:  # another replica has taken the Lease
                spec = {"holderIdentity": "other", "leaseDurationSeconds": 15, "leaseTransitions": 7}
                kube.put("leases", {"metadata": {"name": LEASE}, "spec": spec}, SYSTEM)

    def is_well(self):
        """It decides, has what is there and nothing else, YARN has its part, and the node knows of it."""
        if self.desk.abstains() or self.desk.reservations or self.operator.state.problem:
            return False
        pods = [one for (kind, *_), one in self.kube.objects.items() if kind == "pods"]
        bound = sum(one["spec"].get("nodeName") == "n" and one["metadata"]["namespace"] == "default" for one in pods)
        mib, cores = self.yarn.sizes[ID]
        lent = int(self.kube.get("nodes", "n")["status"]["allocatable"][CPU])
        self.yarn.used[ID] = [min(self.yarn.used[ID][0], mib), min(self.yarn.used[ID][1], cores)]
        free = lent - 1000 * (bound + cores)
        told = notes(self.kube).bytes == mib << 20
        return told and (self.ledger.free("n") or {}).get(CPU) == free and self.operator._nodes["n"].wanted.mib == mib

    def check_told(self):
        told = said(self.lines, "yarn_trouble")
        assert bool(self.operator.state.failures) <= bool(told)


def test_the_ledger_lives_through_whatever_becomes_of_each_of_its_awaits(stepped):
    walk(Keeping, stepped)


@pytest.mark.parametrize("make", [Overflowing, Queueing, Keeping])
def test_a_walk_sees_what_a_part_does_that_ends_by_itself(make, stepped, monkeypatch):
    """The walk itself can fail."""

    async def ends(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("criproxy_cluster.controller.follower.Follower._step", ends)
    with pytest.raises(AssertionError, match="ended by itself"):
        walk(make, stepped)
