"""The leader: its terms, the Lease at a slow or broken API server, and that it ends at every moment."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from lightkube import AsyncClient
from lightkube.config.kubeconfig import KubeConfig
from lightkube.config.models import Cluster, User
from structlog.testing import CapturingLogger

from cluster.tests.controller.test_controller import install_lease, node, until
from cluster.tests.stepped import SteppedTime
from criproxy_cluster.controller import leader as module
from criproxy_cluster.controller import lease_law
from criproxy_cluster.controller.leader import END_S, LEASE, UNKNOWN, Leader, WorkError
from criproxy_cluster.requests import Trouble, trouble_of
from criproxy_cluster.resources import NodeResource

SYSTEM = "criproxy-system"


def holder(kube):
    return kube.get("leases", LEASE, SYSTEM)["spec"].get("holderIdentity")


def client_of(server):
    config = KubeConfig.from_one(user=User(token="t"), cluster=Cluster(server=server), namespace=SYSTEM)
    return AsyncClient(config.get(), namespace=SYSTEM)


@asynccontextmanager
async def running(kube, work, log, me="a"):
    """A replica, which need not lead."""
    async with kube.client() as client:
        one = Leader(client, SYSTEM, me, work, log)
        task = asyncio.create_task(one.run())
        try:
            yield one, task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def leading(kube, work, log):
    """A replica, from the moment when it leads."""
    async with running(kube, work, log) as (one, task):
        await until(lambda: one.leads)
        await asyncio.sleep(0.01)
        yield one, task


class Works:
    """Counts who is at work."""

    def __init__(self):
        self.at_work = set()
        self.most = 0

    def of(self, name):
        async def work():
            self.at_work.add(name)
            self.most = max(self.most, len(self.at_work))
            try:
                await asyncio.Event().wait()
            finally:
                self.at_work.discard(name)

        return work


def test_one_of_two_leads_and_the_other_follows_at_once_when_it_stops(kube, stepped, log, short):
    async def scenario():
        install_lease(kube)
        works = Works()
        async with kube.client() as client:
            one, other = (Leader(client, "criproxy-system", name, works.of(name), log) for name in "ab")
            tasks = {"a": asyncio.create_task(one.run()), "b": asyncio.create_task(other.run())}
            (leader,) = await until(lambda: works.at_work)
            assert kube.get("leases", LEASE, "criproxy-system")["spec"]["holderIdentity"] == leader
            await asyncio.sleep(0.5)
            assert works.at_work == {leader}

            now_s = asyncio.get_running_loop().time
            began_s = now_s()
            tasks[leader].cancel()
            await until(lambda: works.at_work and works.at_work != {leader})
            assert now_s() - began_s < 0.9, "the lease was given back"
            assert works.most == 1
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    stepped(scenario())


def test_a_lease_that_is_deleted_is_made_anew_and_taken_when_nobody_may_act_by_the_old_one(kube, stepped, short):
    lines = CapturingLogger()

    async def scenario():
        install_lease(kube)
        works = Works()
        now_s = asyncio.get_running_loop().time
        async with leading(kube, works.of("a"), lines), running(kube, works.of("b"), lines, "b"):
            kube.remove("leases", LEASE, SYSTEM)
            removed_s = now_s()
            await until(lambda: not works.at_work, 2.0)
            await until(lambda: holder(kube) == UNKNOWN)
            assert now_s() - removed_s >= lease_law.DURATION_S, "who installs it comes first"
            made_s = now_s()
            await until(lambda: works.at_work)
            assert now_s() - made_s >= lease_law.DURATION_S
            assert works.most == 1

    stepped(scenario())
    (trouble, *_) = [call.kwargs["error"] for call in lines.calls if call.args == ("lease_trouble",)]
    assert "404" in trouble and "rbac.yaml" in trouble


def test_a_lease_that_was_never_there_is_made(kube, stepped, log, short):
    async def scenario():
        async with leading(kube, forever, log):
            assert holder(kube) == "a"

    stepped(scenario())


def test_a_lease_that_is_installed_late_is_not_in_its_installer_s_way(kube, stepped, log, short):
    """Helm creates a Lease after the Deployments, and fails where it finds one."""

    async def scenario():
        async with running(kube, forever, log) as (one, _):
            await asyncio.sleep(lease_law.DURATION_S - lease_law.RETRY_S)
            assert ("leases", SYSTEM, LEASE) not in kube.objects
            install_lease(kube)
            await until(lambda: one.leads, 2 * lease_law.RETRY_S)
        assert not kube.seen("create", "leases")

    stepped(scenario())


def test_a_lease_that_is_away_while_its_holder_ends_is_not_made(kube, stepped, log, short):
    """As with `kubectl delete -k`."""

    async def scenario():
        install_lease(kube)
        async with leading(kube, forever, log) as (_, task):
            kube.remove("leases", LEASE, SYSTEM)
            task.cancel()
            await ends(task)
        assert not kube.seen("create", "leases")

    stepped(scenario())


def test_a_leader_that_cannot_write_stops_before_another_begins(kube, stepped, log, short):
    async def scenario():
        install_lease(kube)
        works = Works()
        async with kube.client() as client, kube.client() as rival:
            task = asyncio.create_task(Leader(client, "criproxy-system", "a", works.of("a"), log).run())
            await until(lambda: works.at_work == {"a"})
            kube.fail("PUT .*/leases", 500, 10_000)
            await until(lambda: not works.at_work, 2.0)
            held = kube.get("leases", LEASE, "criproxy-system")["spec"]
            assert held["holderIdentity"] == "a", "nobody else could begin yet"
            kube.faults.clear()
            other = asyncio.create_task(Leader(rival, "criproxy-system", "b", works.of("b"), log).run())
            await until(lambda: works.at_work)
            assert works.most == 1
            for one in (task, other):
                one.cancel()
            await asyncio.gather(task, other, return_exceptions=True)

    stepped(scenario())


def test_a_leader_whose_work_has_failed_gives_the_lease_back_and_says_why(kube, stepped, log):
    async def work():
        raise ZeroDivisionError

    async def scenario():
        install_lease(kube)
        async with kube.client() as client:
            with pytest.raises(ZeroDivisionError):
                await Leader(client, "criproxy-system", "a", work, log).run()
        assert not holder(kube)

    stepped(scenario())


# --- it ends, whatever it waits for -----------------------------------------------------------------------------------


class EndsSlowly:
    """Work that ends only when it is cancelled a second time."""

    def __init__(self):
        self.begun, self.ending, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def __call__(self):
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ending.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.ended.set()


async def forever():
    await asyncio.Event().wait()


async def ends(task, within_s=1.0):
    await asyncio.wait((task,), timeout=within_s)
    assert task.cancelled(), "it goes on"


def test_a_leader_that_is_cancelled_while_it_waits_for_the_end_of_its_work_ends_at_once(kube, stepped, log, short):
    """Its API server was away, so that it leads no more; and then comes SIGTERM."""

    async def scenario():
        install_lease(kube)
        work = EndsSlowly()
        async with leading(kube, work, log) as (_, task):
            kube.fail(".*", 503, 10_000)
            await work.ending.wait()
            kube.faults.clear()
            task.cancel()
            await ends(task)
        assert not holder(kube), "the others need not wait"

    stepped(scenario())


def test_a_leader_waits_for_its_work_for_a_while_and_gives_the_lease_back(kube, stepped):
    log = CapturingLogger()

    async def scenario():
        install_lease(kube)
        work = EndsSlowly()
        async with leading(kube, work, log) as (_, task):
            task.cancel()
            await work.ending.wait()
            assert holder(kube) == "a"
            await ends(task, END_S + 1.0)
        assert not holder(kube)

    stepped(scenario())


def test_work_that_does_not_end_ends_the_replica_and_no_second_work_begins_beside_it(kube, stepped, log, short):
    async def scenario():
        install_lease(kube)
        work = EndsSlowly()
        async with leading(kube, work, log) as (one, task):
            kube.put("leases", {"metadata": {"name": LEASE}, "spec": {"holderIdentity": "b"}}, SYSTEM)
            await until(lambda: not one.leads, 0.5)
            await asyncio.wait((task,), timeout=END_S + 1.0)
            with pytest.raises(WorkError):
                task.result()

    stepped(scenario())


@pytest.mark.parametrize("steps", range(60))
def test_a_leader_that_is_cancelled_at_any_step_ends_at_once_and_gives_the_lease_back(kube, stepped, log, short, steps):
    """Each turn of the event loop is a step; the first ones are before it leads, the last ones after renewals."""

    async def scenario():
        install_lease(kube)
        async with kube.client() as client:
            task = asyncio.create_task(Leader(client, SYSTEM, "a", forever, log).run())
            for _ in range(steps * 3):
                await asyncio.sleep(0)
                await asyncio.sleep(0.0004 * (steps % 5))
            task.cancel()
            await ends(task)
            await asyncio.sleep(0.01)
        assert not holder(kube)

    stepped(scenario())


@pytest.mark.parametrize("fault", [None, {}, {"metadata": {}}, {"metadata": {"resourceVersion": ""}}, []], ids=str)
@pytest.mark.parametrize("method", ["GET", "PUT"])
@pytest.mark.usefixtures("short")
def test_a_lease_that_cannot_be_read_or_written_ends_nobody(kube, stepped, log, method, fault):
    async def scenario():
        install_lease(kube)
        kube.fail(f"{method} .*/leases", 500 if fault is None else 200, 3, fault)
        works = Works()
        async with leading(kube, works.of("a"), log) as (one, task):
            await asyncio.sleep(1.0)
            kube.fail(f"{method} .*/leases", 500 if fault is None else 200, 1, fault)
            await asyncio.sleep(1.0)
            assert one.leads and works.at_work and not task.done()

    stepped(scenario())


def test_work_that_ends_by_itself_is_a_failure_of_the_replica(kube, stepped, log, short):
    async def work():
        pass

    async def scenario():
        install_lease(kube)
        async with kube.client() as client:
            with pytest.raises(WorkError):
                await Leader(client, SYSTEM, "a", work, log).run()
        assert not holder(kube)

    stepped(scenario())


# --- a term -----------------------------------------------------------------------------------------------------------


class Writes:
    """Work that writes a node as often as it can, also while it is told to end."""

    def __init__(self, kube, client):
        self.kube, self.client = kube, client

    async def __call__(self):
        while True:
            try:
                with trouble_of("write"):
                    await self.client.patch(NodeResource, "n1", {"metadata": {"labels": {"n": "1"}}})
            except Trouble:
                pass
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                await asyncio.sleep(0.05)


@asynccontextmanager
async def writing(kube, log):
    async with kube.client() as client:
        kube.put("nodes", node("n1"))
        one = Leader(client, SYSTEM, "a", Writes(kube, client), log)
        task = asyncio.create_task(one.run())
        try:
            await until(lambda: kube.seen("patch", "nodes"))
            yield one
        finally:
            task.cancel()
            await asyncio.wait((task,), timeout=0.1)
            for left in asyncio.all_tasks() - {asyncio.current_task()}:
                left.cancel()


def test_no_write_leaves_after_the_term_though_requests_of_the_lease_hang(kube, stepped, log, short):
    async def scenario():
        install_lease(kube)
        async with writing(kube, log):
            kube.hangs = "leases"
            await asyncio.sleep(lease_law.RENEW_WITHIN_S + 0.01)
            before = len(kube.seen("patch", "nodes"))
            await asyncio.sleep(5.0)
            assert len(kube.seen("patch", "nodes")) == before

    stepped(scenario())


def test_no_write_leaves_after_the_machine_was_suspended(kube, stepped, log, short, monkeypatch):
    async def scenario():
        install_lease(kube)
        async with writing(kube, log):
            kube.hangs = "leases"
            monkeypatch.setattr(SteppedTime, "suspended_s", 60.0)
            before = len(kube.seen("patch", "nodes"))
            await asyncio.sleep(5.0)
            assert len(kube.seen("patch", "nodes")) == before

    stepped(scenario())


def test_work_that_goes_on_writes_in_no_later_term(kube, stepped, log, short):
    """A task that somebody has left behind."""

    async def scenario():
        install_lease(kube)
        kube.put("nodes", node("n1"))
        async with kube.client() as client:
            writes, left = Writes(kube, client), list[asyncio.Task]()

            async def work():
                if not left:
                    left.append(asyncio.create_task(writes()))
                await forever()

            one = Leader(client, SYSTEM, "a", work, log)
            task = asyncio.create_task(one.run())
            await until(lambda: kube.seen("patch", "nodes"))
            kube.put("leases", {"metadata": {"name": LEASE}, "spec": {"holderIdentity": "b"}}, SYSTEM)
            await until(lambda: not one.leads, 0.5)
            before = len(kube.seen("patch", "nodes"))
            kube.put("leases", {"metadata": {"name": LEASE}, "spec": {"holderIdentity": ""}}, SYSTEM)
            await until(lambda: one.leads)
            await asyncio.sleep(1.0)
            assert len(kube.seen("patch", "nodes")) == before
            for either in (task, *left):
                either.cancel()
            await asyncio.wait((task,))

    stepped(scenario())


def test_a_lease_whose_requests_each_take_just_less_than_their_limit_is_kept(kube, stepped, log):
    async def scenario():
        install_lease(kube)
        kube.answers_in_s = lease_law.REQUEST_S - 0.2
        works = Works()
        async with kube.client() as client:
            task = asyncio.create_task(Leader(client, SYSTEM, "a", works.of("a"), log).run())
            await until(lambda: works.at_work, 30.0)
            for _ in range(600):
                await asyncio.sleep(0.5)
                assert works.at_work
            task.cancel()
            await asyncio.wait((task,))

    stepped(scenario())


def test_the_follower_counts_from_after_the_answer(kube, stepped, log, short):
    """The holder's write is done, and a slow answer shows it."""

    async def scenario():
        install_lease(kube)
        now_s = asyncio.get_running_loop().time
        kube.put("leases", {"metadata": {"name": LEASE}, "spec": {"holderIdentity": "b"}}, SYSTEM)
        kube.answers_in_s, began_s = 0.15, now_s()
        async with kube.client() as client:
            one = Leader(client, SYSTEM, "a", forever, log)
            task = asyncio.create_task(one.run())
            await until(lambda: one.leads)
            assert now_s() - began_s >= 0.15 + lease_law.DURATION_S
            task.cancel()
            await asyncio.wait((task,))

    stepped(scenario())


def test_the_client_asks_right_before_the_bytes_are_sent(log):
    """After the wait for a connection, which may be long: over HTTP, with a server that is slow to accept."""

    async def scenario():
        got = []

        async def serve(reader, writer):
            got.append(await reader.read(100))
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        checks = list[None]()

        class Asked(module.Term):
            def check(self):
                checks.append(None)
                if len(checks) == 2:
                    raise Trouble("this replica leads no more")

        async with client_of(f"http://127.0.0.1:{port}") as client:
            module._TERM.set(Asked(Leader(client, SYSTEM, "a", forever, log)))
            with pytest.raises(Trouble, match="leads no more"):
                await client.patch(NodeResource, "n1", {})
            assert len(checks) == 2
            await asyncio.sleep(0.05)
            assert got in ([], [b""]), "a connection was made, and nothing was sent"
        server.close()

    asyncio.run(scenario())
