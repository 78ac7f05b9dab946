"""The operator against an API server and a ResourceManager in memory, in stepped time."""

import asyncio
from contextlib import asynccontextmanager, suppress

import pytest
from structlog.testing import CapturingLogger

from cluster.tests.controller.test_controller import until
from cluster.tests.yarn.fake_yarn import FakeYarn
from criproxy_cluster import requests
from criproxy_cluster.cli import main
from criproxy_cluster.ledger.desk import Seen
from criproxy_cluster.ledger.law import Ledger, Pod
from criproxy_cluster.vocabulary.gives_back import RENEW_S, TOLD_S, decoded
from criproxy_cluster.vocabulary.names import GIVES_BACK
from criproxy_cluster.vocabulary.presets import NAMES
from criproxy_cluster.yarn import operator as operator_module
from criproxy_cluster.yarn.law import SETTLE_S, Size
from criproxy_cluster.yarn.managers import CLUSTER_ID, NODE_ID
from criproxy_cluster.yarn.operator import HOLDER, REFRESH_S, YarnOperator, YarnSettings

CPU, MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
GIB = 1 << 30
ID = "n.example:8041"


@pytest.fixture
def lines():
    return CapturingLogger()


@pytest.fixture
def yarn():
    made = FakeYarn()
    made.node(ID, 16384, 16)
    return made


def put_manager(kube, name="nm", node="n", annotations=None, labels=None, **fields):
    """`fields`: of metadata, spec and status."""
    found = {"app.kubernetes.io/component": "node-manager", "colocation.criproxy.io/class": "offline"}
    meta = {"name": name, "namespace": "yarn", "labels": {**found, **(labels or {})}}
    meta["annotations"] = {NODE_ID: ID} if annotations is None else annotations
    meta |= {key: value for key, value in fields.items() if key.endswith("Timestamp")}
    spec = {"nodeName": node, **({"hostname": fields["hostname"]} if "hostname" in fields else {})}
    status = {key: value for key, value in fields.items() if key in ("podIP", "phase")}
    kube.put("pods", {"metadata": meta, "spec": spec, "status": {"phase": "Running", **status}}, "yarn")


def put_node(kube, labels=None):
    kube.put("nodes", {"metadata": {"name": "n", "labels": labels or {}}})


class Term:
    def __init__(self, operator, ledger, seen):
        self.operator, self.ledger, self.seen = operator, ledger, seen
        self.leads = True

    def lend(self, cores, gib, node="n"):
        self.ledger.set_node(node, {CPU: cores * 1000, MEMORY: gib * GIB})

    def bind(self, uid, cores, gib, node="n"):
        self.ledger.see(Pod(uid, "default", uid, ((CPU, cores * 1000), (MEMORY, gib * GIB)), node=node))

    def held(self, node="n"):
        held = self.ledger._nodes[node].held.get(HOLDER)
        return held and dict(held)


@asynccontextmanager
async def operating(kube, yarn, log, **settings):
    ledger, seen = Ledger(), Seen()
    async with kube.client() as client:
        made = YarnSettings(("http://rm-1:8088", "http://rm-2:8088"), **settings)
        operator = YarnOperator(client, ledger, made, seen, leads=lambda: term.leads, log=log)
        operator._manager._client = yarn.client()
        term = Term(operator, ledger, seen)
        term.lend(8, 8)
        task = asyncio.create_task(operator.run())
        try:
            yield term
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def said(lines, event):
    return [call.kwargs for call in lines.calls if call.args == (event,)]


def test_yarn_has_its_part_and_the_ledger_knows_what_it_has(kube, stepped, yarn, lines):
    put_manager(kube)

    async def scenario():
        async with operating(kube, yarn, lines) as term:
            assert "NodeManagers" in term.seen.missing
            await until(lambda: yarn.sizes[ID] == [4096, 4])
            assert "NodeManagers" not in term.seen.missing
            await until(lambda: term.held() == {CPU: 4000, MEMORY: 4 * GIB})
            term.bind("p", 6, 6)
            await until(lambda: yarn.sizes[ID] == [2048, 2], 3.0)
            term.lend(16, 16)
            await until(lambda: yarn.sizes[ID] == [8192, 8], 12.0)
            assert term.held() == {CPU: 8000, MEMORY: 8 * GIB}

    stepped(scenario())
    assert all(body["overCommitTimeout"] == 30_000 for _, body in yarn.sent)
    assert len(said(lines, "yarn_unprotected")) == 1
    assert [one["mib"] for one in said(lines, "yarn_size_sent")] == [4096, 2048, 8192]


def test_what_containers_use_is_held_until_it_is_given_back(kube, stepped, yarn, lines):
    put_manager(kube)

    async def scenario():
        async with operating(kube, yarn, lines) as term:
            await until(lambda: yarn.sizes[ID] == [4096, 4])
            yarn.used[ID] = [4096, 4]
            term.lend(2, 2)
            await until(lambda: yarn.sizes[ID] == [1024, 1], 12.0)
            await asyncio.sleep(10.0)
            assert term.held() == {CPU: 1000, MEMORY: 4 * GIB} and term.operator.state.giving_back == 1
            yarn.used[ID] = [1024, 1]
            await until(lambda: term.held() == {CPU: 1000, MEMORY: GIB}, 2.0)

    stepped(scenario())
    assert not said(lines, "yarn_not_given_back")


def test_what_is_not_given_back_in_time_is_said_and_held_no_longer(kube, stepped, yarn, lines):
    put_manager(kube)

    async def scenario():
        async with operating(kube, yarn, lines) as term:
            await until(lambda: yarn.sizes[ID] == [4096, 4])
            yarn.used[ID] = [4096, 4]
            term.lend(2, 2)
            await asyncio.sleep(28.0)
            assert term.held()[MEMORY] == 4 * GIB
            await until(lambda: term.held()[MEMORY] == GIB + (1 << 20), 15.0 + SETTLE_S)
            assert term.operator.state.overdue == 1

    stepped(scenario())
    assert len(said(lines, "yarn_not_given_back")) == 1


def notes(kube):
    """What the node is told, now. Raises KeyError: nothing."""
    return decoded(kube.get("nodes", "n")["metadata"]["annotations"][GIVES_BACK])


def test_node_is_told_what_its_box_waits_for_and_when_that_was_given_back(kube, stepped, yarn, lines):
    put_manager(kube)
    put_node(kube)

    async def scenario():
        async with operating(kube, yarn, lines) as term:
            await until(lambda: notes(kube).bytes == 4 * GIB, 30.0)
            assert notes(kube).wait_s == 30.0 + SETTLE_S + TOLD_S, "YARN has its grace, however late it was told"
            yarn.used[ID] = [4096, 4]
            term.lend(2, 2)
            await until(lambda: notes(kube).bytes == 3 * GIB, 12.0)
            serial = notes(kube).serial
            yarn.used[ID] = [2048, 2]
            await until(lambda: notes(kube).bytes == GIB, 3.0)
            assert notes(kube).serial != serial
            yarn.used[ID] = [1024, 1]
            await until(lambda: notes(kube).bytes == 0, 3.0)
            await until(lambda: notes(kube).bytes == GIB, 30.0)
            before = len(kube.seen("patch", "nodes"))
            await asyncio.sleep(3 * RENEW_S)
            assert 2 <= len(kube.seen("patch", "nodes")) - before <= 3, "it is said anew now and then"

    stepped(scenario())
    assert not said(lines, "yarn_node_not_told")


def test_node_is_told_that_nothing_is_to_be_waited_for_where_yarn_is_overdue_or_has_it_idle(kube, stepped, yarn, lines):
    put_manager(kube)
    put_node(kube)

    async def scenario():
        async with operating(kube, yarn, lines) as term:
            await until(lambda: notes(kube).bytes == 4 * GIB, 30.0)
            term.lend(4, 4)
            await until(lambda: notes(kube).bytes == 0, 12.0)
            await until(lambda: notes(kube).bytes == 2 * GIB, 30.0)
            yarn.used[ID] = [2048, 2]
            term.lend(2, 2)
            await until(lambda: notes(kube).bytes == GIB, 12.0)
            await asyncio.sleep(30.0 + SETTLE_S)
            await until(lambda: term.operator.state.overdue, 5.0)
            await until(lambda: notes(kube).bytes <= GIB + (1 << 20), 5.0)

    stepped(scenario())


def test_node_that_can_t_be_told_is_said_once_and_yarn_is_squeezed_all_the_same(kube, stepped, yarn, lines):
    put_manager(kube)
    kube.fail("PATCH .*/nodes/n", 403, times=10_000)

    async def scenario():
        async with operating(kube, yarn, lines) as term:
            await until(lambda: yarn.sizes[ID] == [4096, 4])
            term.lend(2, 2)
            await until(lambda: yarn.sizes[ID] == [1024, 1], 12.0)
            assert not term.operator.state.problem

    stepped(scenario())
    assert len(said(lines, "yarn_node_not_told")) == 1


def test_each_node_that_can_t_be_told_is_said_once_though_others_are_told(kube, stepped, yarn, lines):
    put_node(kube)
    yarn.node("m:1", 16384, 16)
    put_manager(kube)
    put_manager(kube, "another", "m", {NODE_ID: "m:1"})
    kube.put("nodes", {"metadata": {"name": "m"}})
    kube.fail("PATCH .*/nodes/n", 403, times=10_000)

    async def scenario():
        async with operating(kube, yarn, lines) as term:
            for cores in (8, 2, 8, 2, 8):
                term.lend(cores, cores)
                term.lend(cores, cores, "m")
                await asyncio.sleep(60.0)

    stepped(scenario())
    assert [one["node"] for one in said(lines, "yarn_node_not_told")] == ["n"]
    assert "m" in kube.seen("patch", "nodes")


def test_a_node_that_is_switched_off_is_drained_with_the_longer_grace(kube, stepped, yarn, lines):
    put_manager(kube)

    async def scenario():
        async with operating(kube, yarn, lines, drain_grace_s=900.0) as term:
            await until(lambda: yarn.sizes[ID] == [4096, 4])
            yarn.used[ID] = [2048, 2]
            put_node(kube, {"colocation.criproxy.io/switch": "off"})
            await until(lambda: yarn.sizes[ID] == [0, 0], 12.0)
            assert yarn.sent[-1][1]["overCommitTimeout"] == 900_000 and term.held()[MEMORY] == 2 * GIB
            yarn.used[ID] = [0, 0]
            await until(lambda: term.held() == {CPU: 0, MEMORY: 0}, 12.0)
            put_node(kube)
            await until(lambda: yarn.sizes[ID] == [4096, 4], 22.0)

    stepped(scenario())


def test_a_nodemanager_whose_pod_is_being_deleted_is_drained_until_it_is_gone(kube, stepped, yarn, lines):
    put_manager(kube)

    async def scenario():
        async with operating(kube, yarn, lines) as term:
            await until(lambda: yarn.sizes[ID] == [4096, 4])
            yarn.used[ID] = [2048, 2]
            pod = kube.get("pods", "nm", "yarn")
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:10:00Z"
            kube.put("pods", pod, "yarn")
            await until(lambda: yarn.sizes[ID] == [0, 0], 12.0)
            assert yarn.sent[-1][1]["overCommitTimeout"] == 600_000 and term.held()[MEMORY] == 2 * GIB

    stepped(scenario())


def test_a_nodemanager_that_came_back_with_its_own_size_gets_ours(kube, stepped, yarn, lines):
    put_manager(kube)

    async def scenario():
        async with operating(kube, yarn, lines) as term:
            await until(lambda: yarn.sizes[ID] == [4096, 4])
            await asyncio.sleep(30.0)
            yarn.sizes[ID] = [16384, 16]
            await until(lambda: len(yarn.sent) == 2, REFRESH_S + 2)
            assert yarn.sizes[ID] == [4096, 4] and term.held()[MEMORY] == 4 * GIB

    stepped(scenario())


@pytest.mark.parametrize("fails", [True, 503])
def test_a_resourcemanager_that_is_away_changes_nothing_and_is_asked_less_and_less(kube, stepped, yarn, lines, fails):
    put_manager(kube)

    async def scenario():
        async with operating(kube, yarn, lines) as term:
            await until(lambda: yarn.sizes[ID] == [4096, 4])
            yarn.fails = fails
            term.lend(2, 2)
            await asyncio.sleep(120.0)
            assert term.held()[MEMORY] == 4 * GIB and term.operator.state.problem
            assert term.operator.state.failures < 20
            yarn.fails = False
            await until(lambda: yarn.sizes[ID] == [1024, 1], 32.0)

    stepped(scenario())
    assert len(said(lines, "yarn_trouble")) == len(said(lines, "yarn_well_again")) == 1


def test_resourcemanager_that_fails_is_said_once_whichever_node_is_asked_first(kube, stepped, yarn, lines):
    put_manager(kube)
    put_manager(kube, "nm-2", "n2", annotations={NODE_ID: "nm-2:8041"})
    yarn.node("nm-2:8041", 1024, 1)

    async def scenario():
        async with operating(kube, yarn, lines) as term:
            term.lend(8, 8, "n2")
            await until(lambda: yarn.sizes[ID] == yarn.sizes["nm-2:8041"] == [4096, 4])
            yarn.fails = 503
            for number in range(60):
                term.lend(2 + number % 2, 2, ("n", "n2")[number % 2])
                await asyncio.sleep(2.0)
            yarn.fails = 401
            await until(lambda: "Kerberos" in term.operator.state.problem, 60.0)

    stepped(scenario())
    first, second = (one["error"] for one in said(lines, "yarn_trouble"))
    assert "503" in first and "401" in second


def test_before_anything_is_known_all_that_it_may_have_is_held(kube, stepped, yarn, lines):
    put_manager(kube)
    yarn.fails = True

    async def scenario():
        async with operating(kube, yarn, lines) as term:
            await until(lambda: term.held() == {CPU: 4000, MEMORY: 4 * GIB})

    stepped(scenario())


def test_one_on_standby_is_passed_by(kube, stepped, yarn, lines):
    put_manager(kube)
    yarn.standby = "rm-1"

    async def scenario():
        async with operating(kube, yarn, lines) as term:
            await until(lambda: yarn.sizes[ID] == [4096, 4])
            assert not term.operator.state.problem

    stepped(scenario())


def test_a_replica_that_does_not_lead_asks_and_sends_nothing(kube, stepped, yarn, lines):
    put_manager(kube)

    async def scenario():
        async with operating(kube, yarn, lines) as term:
            term.leads = False
            await asyncio.sleep(5.0)
            before = len(yarn.asked)
            term.lend(2, 2)
            await asyncio.sleep(60.0)
            assert len(yarn.asked) == before

    stepped(scenario())


def test_a_replica_that_leads_no_more_shows_no_trouble_and_no_sums(kube, stepped, yarn, lines):
    put_manager(kube)

    async def scenario():
        async with operating(kube, yarn, lines) as term:
            state = term.operator.state  # as the metrics have it
            await until(lambda: yarn.sizes[ID] == [4096, 4] and state.size == Size(4096, 4))
            yarn.used[ID] = [4096, 4]
            term.lend(2, 2)
            await until(lambda: state.giving_back == 1, 12.0)
            yarn.fails = True
            await until(lambda: state.problem != "", 12.0)
            await asyncio.sleep(120.0)
            failures, shrunk = state.failures, state.shrunk
            term.leads = False
            await asyncio.sleep(2.0)
            assert (state.problem, state.nodes, state.unknown, state.giving_back, state.overdue) == ("", 0, 0, 0, 0)
            assert {*state.amounts.values()} == {Size()}
            assert (state.failures, state.shrunk) == (failures, shrunk) and failures > 1 and shrunk
            yarn.fails, term.leads = False, True
            before = len(yarn.asked)
            await until(lambda: len(yarn.asked) > before, 2.0)  # not after the pause of the term before
            await until(lambda: state.nodes == 1, 2.0)

    stepped(scenario())


def test_a_pod_that_somebody_else_makes_takes_no_nodemanager_s_place(kube, stepped, yarn, lines):
    yarn.node("m:1", 16384, 16)
    put_manager(kube, creationTimestamp="2026-01-01T00:00:00Z")

    async def scenario():
        async with operating(kube, yarn, lines) as term:
            await until(lambda: yarn.sizes[ID] == [4096, 4])
            yarn.used[ID] = [4096, 4]
            later = {"creationTimestamp": "2026-01-02T00:00:00Z"}
            put_manager(kube, "beside", annotations={NODE_ID: "x:1"}, **later)
            put_manager(kube, "its-id", "m", **later)
            put_manager(kube, "its-host", "m2", {}, hostname="n.example", **later)
            put_manager(kube, "ends", annotations={}, deletionTimestamp="2026-01-02T00:00:00Z")
            put_manager(kube, creationTimestamp="2026-01-01T00:00:00Z")  # its status has changed
            term.lend(2, 2)
            await until(lambda: yarn.sizes[ID] == [1024, 1], 12.0)
            await asyncio.sleep(20.0)
            assert term.held() == {CPU: 1000, MEMORY: 4 * GIB} and yarn.sizes[ID] == [1024, 1]
            assert {node_id for node_id, _ in yarn.sent} == {ID}
            assert all(body["overCommitTimeout"] == 30_000 for _, body in yarn.sent), "nothing is drained"

    stepped(scenario())


def test_nodemanagers_are_where_the_settings_say(kube, stepped, yarn, lines):
    put_manager(kube)

    async def scenario():
        async with operating(kube, yarn, lines, namespaces=("hadoop",)):
            await asyncio.sleep(20.0)

    stepped(scenario())
    assert not yarn.sent


def test_one_that_comes_back_with_another_port_is_found_again(kube, stepped, yarn, lines):
    del yarn.sizes[ID]
    yarn.node("10.0.0.7:40001", 16384, 16)
    put_manager(kube, annotations={}, podIP="10.0.0.7")

    async def scenario():
        async with operating(kube, yarn, lines) as term:
            await until(lambda: yarn.sizes["10.0.0.7:40001"] == [4096, 4])
            del yarn.sizes["10.0.0.7:40001"]
            yarn.node("10.0.0.7:40002", 16384, 16)
            await until(lambda: yarn.sizes["10.0.0.7:40002"] == [4096, 4], 60.0)
            assert term.held() == {CPU: 4000, MEMORY: 4 * GIB}

    stepped(scenario())


def test_a_list_that_fails_holds_up_nobody_that_has_an_id(kube, stepped, yarn, lines):
    yarn.unlisted = True
    put_manager(kube)
    put_manager(kube, "another", "m", {})

    async def scenario():
        async with operating(kube, yarn, lines) as term:
            term.lend(8, 8, "m")
            await until(lambda: yarn.sizes[ID] == [4096, 4])
            term.lend(2, 2)
            await until(lambda: yarn.sizes[ID] == [1024, 1], 12.0)
            assert term.operator.state.unknown == 1

    stepped(scenario())
    assert "500" in said(lines, "yarn_not_listed")[0]["error"] and not said(lines, "yarn_trouble")


def test_a_nodemanager_that_is_gone_holds_nothing(kube, stepped, yarn, lines):
    put_manager(kube)

    async def scenario():
        async with operating(kube, yarn, lines) as term:
            await until(term.held)
            kube.remove("pods", "nm", "yarn")
            await until(lambda: term.held() is None, 3.0)

    stepped(scenario())


def test_a_nodemanager_that_goes_while_it_is_asked_about_holds_nothing(kube, stepped, yarn, lines):
    put_manager(kube)

    async def scenario():
        async with operating(kube, yarn, lines) as term:
            await until(lambda: yarn.sizes[ID] == [4096, 4])
            node = term.operator._nodes["n"]
            kube.remove("pods", "nm", "yarn")
            await until(lambda: term.held() is None, 3.0)
            term.lend(2, 2)
            await term.operator._settle(node)
            assert term.held() is None and yarn.sizes[ID] == [4096, 4]

    stepped(scenario())


def test_a_node_that_the_resourcemanager_does_not_know_is_said_once(kube, stepped, yarn, lines):
    put_manager(kube, annotations={NODE_ID: "other:1"})

    async def scenario():
        async with operating(kube, yarn, lines) as term:
            await asyncio.sleep(60.0)
            assert term.operator.state.unknown == 1 and term.held() == {CPU: 4000, MEMORY: 4 * GIB}

    stepped(scenario())
    assert [one["node_id"] for one in said(lines, "yarn_node_left")] == ["other:1"] and not yarn.sent


def test_an_end_is_heard_though_what_is_asked_fails_by_it(kube, stepped, yarn, lines, monkeypatch):
    async def fails(*_):
        try:
            await asyncio.Event().wait()
        finally:
            raise requests.Trouble("cut off")

    async def scenario():
        put_node(kube)
        put_manager(kube)
        async with operating(kube, yarn, lines) as term:
            monkeypatch.setattr(term.operator, "_take_turn", fails)
            await asyncio.sleep(10.0)
            task = asyncio.create_task(term.operator._keep())
            await asyncio.sleep(10.0)
            task.cancel()
            await asyncio.wait([task], timeout=10.0)
            assert task.cancelled()

    stepped(scenario())


def test_one_node_that_it_fails_for_holds_up_no_other(kube, stepped, yarn, lines):
    put_manager(kube)
    yarn.node("broken:1", 16384, 16)
    yarn.broken = "broken:1"
    put_manager(kube, "another", "m", {NODE_ID: "broken:1"})

    async def scenario():
        async with operating(kube, yarn, lines) as term:
            term.lend(8, 8, "m")
            await until(lambda: yarn.sizes[ID] == [4096, 4])
            term.lend(2, 2)
            await until(lambda: yarn.sizes[ID] == [1024, 1], 12.0)
            await until(lambda: term.held("m") == {CPU: 4000, MEMORY: 4 * GIB})
            assert not term.operator.state.problem

    stepped(scenario())
    assert [one["node_id"] for one in said(lines, "yarn_node_left")] == ["broken:1"]


@pytest.mark.parametrize("named", ["pod name", "address", "node"])
def test_without_an_annotation_it_is_found_by_its_host(kube, stepped, yarn, lines, named):
    host = {"pod name": "nm.yarn.svc", "address": "10.0.0.7", "node": "n"}[named]
    yarn.node(f"{host}:8041", 16384, 16)
    del yarn.sizes[ID]
    put_manager(kube, annotations={}, podIP="10.0.0.7")

    async def scenario():
        async with operating(kube, yarn, lines):
            await until(lambda: yarn.sizes[f"{host}:8041"] == [4096, 4])

    stepped(scenario())


def test_another_yarn_s_nodemanager_is_left_alone(kube, stepped, yarn, lines):
    put_manager(kube, annotations={NODE_ID: ID, CLUSTER_ID: "theirs"})

    async def scenario():
        async with operating(kube, yarn, lines, cluster_id="ours"):
            await asyncio.sleep(20.0)

    stepped(scenario())
    assert not yarn.asked


def test_a_resourcemanager_that_keeps_its_own_size_is_not_flooded(kube, stepped, yarn, lines):
    """As with dynamic-resources.xml, which comes back with each heartbeat."""
    put_manager(kube)
    yarn.deaf = True

    async def scenario():
        async with operating(kube, yarn, lines):
            await asyncio.sleep(60.0)

    stepped(scenario())
    assert 4 <= len(yarn.sent) <= 8


def test_what_is_lent_in_whole_cores_is_held_in_whole_cores(kube, stepped, yarn, lines):
    put_manager(kube)

    async def scenario():
        async with operating(kube, yarn, lines, names=NAMES["crane"]) as term:
            term.ledger.set_node("n", {"gocrane.io/cpu": 8, "gocrane.io/memory": 8 * GIB})
            await until(lambda: yarn.sizes[ID] == [4096, 4])
            await until(lambda: term.held() == {"gocrane.io/cpu": 4, "gocrane.io/memory": 4 * GIB})

    stepped(scenario())


def test_sums_are_shown(kube, stepped, yarn, lines):
    put_manager(kube)

    async def scenario():
        async with operating(kube, yarn, lines) as term:
            await until(lambda: yarn.sizes[ID] == [4096, 4])
            await asyncio.sleep(2.0)
            amounts = term.operator.state.amounts
            assert amounts == {"wanted": Size(4096, 4), "size": Size(4096, 4), "used": Size(), "held": Size(4096, 4)}

    stepped(scenario())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--yarn-share", "0.5"],
        ["--resource-manager", "rm:8088"],
        ["--resource-manager", "http://rm:8088", "--yarn-share", "1.5"],
        ["--resource-manager", "http://rm:8088", "--yarn-grace", "0"],
        ["--resource-manager", "http://rm:8088", "--yarn-grace", "-1"],
        ["--resource-manager", "http://rm:8088", "--yarn-grace", "nan"],
    ],
)
def test_a_command_line_that_makes_no_sense_is_refused(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["ledger", *arguments])
    assert ended.value.code == 2 and capsys.readouterr().err


# --- killed at each step ---------------------------------------------------------------------------------------------


class Mortal:
    """Kills who speaks to the API server or the ResourceManager at its `at`th write, before or after it is done."""

    def __init__(self, at, after):
        self.left, self.after, self.killed = at, after, asyncio.Event()

    def wrap(self, call):
        async def mortal(*given, **named):
            self.left -= 1
            if self.left == 0 and not self.after:
                await self.die()
            answer = await call(*given, **named)
            if self.left == 0 and self.after:
                await self.die()
            return answer

        return mortal

    async def die(self):
        self.killed.set()
        await asyncio.Event().wait()


async def reach(condition, seconds):
    """As `until`, with a look each half a second: a walk is long."""
    for _ in range(int(seconds * 2)):
        with suppress(KeyError):
            if condition():
                return
        await asyncio.sleep(0.5)
    raise AssertionError("it did not come to pass")


async def one_life(kube, yarn, log, mortal, monkeypatch):
    """YARN has grown, is squeezed, gives back, grows again; somewhere in there its operator is killed, and the next one
    begins from what there is. Whether it has lived to its end."""

    def check(term):
        """Whatever was killed: YARN has no more than it is let have once a term has looked, and holds what it uses."""
        mib, cores = yarn.sizes[ID]
        held = term.held()
        assert held[MEMORY] >= min(mib, yarn.used[ID][0]) << 20
        assert held[CPU] >= cores * 1000

    async def course(term):
        await reach(lambda: yarn.sizes[ID] == [4096, 4], 30.0)
        yarn.used[ID] = [4096, 4]
        term.lend(2, 2)
        await reach(lambda: yarn.sizes[ID] == [1024, 1], 30.0)
        await asyncio.sleep(3.0)
        yarn.used[ID] = [1024, 1]
        await reach(lambda: notes(kube).bytes == GIB, 40.0)
        term.lend(8, 8)
        await reach(lambda: yarn.sizes[ID] == [4096, 4], 40.0)
        await reach(lambda: notes(kube).bytes == 4 * GIB, 40.0)

    with monkeypatch.context() as patched:
        patched.setattr(operator_module, "patch", mortal.wrap(requests.patch))
        async with operating(kube, yarn, log) as term:
            term.operator._manager.resize = mortal.wrap(term.operator._manager.resize)
            lived = asyncio.create_task(course(term))
            died = asyncio.create_task(mortal.killed.wait())
            await asyncio.wait((lived, died), return_when=asyncio.FIRST_COMPLETED)
            if lived.done():
                await lived
            lived.cancel()
            lent = dict(term.ledger.allocatable("n"))
            died.cancel()
    ended = mortal.left > 0
    yarn.used[ID][0] = min(yarn.used[ID][0], max(yarn.sizes[ID][0], 1024))
    async with operating(kube, yarn, log) as term:
        term.ledger.set_node("n", lent)
        part = [lent[MEMORY] >> 21, lent[CPU] // 2000]
        await reach(term.held, 10.0)
        await reach(lambda: yarn.sizes[ID] == part or yarn.sizes[ID] == [part[0] + 1, part[1]], 60.0)
        check(term)
        yarn.used[ID] = [0, 0]
        await reach(lambda: term.held() == {CPU: part[1] * 1000, MEMORY: part[0] << 20}, 60.0)
        await reach(lambda: notes(kube).bytes == part[0] << 20, 60.0)
        free = term.ledger.free("n")
        assert free == {CPU: lent[CPU] - part[1] * 1000, MEMORY: lent[MEMORY] - (part[0] << 20)}, "nothing twice"
        kube.remove("pods", "nm", "yarn")
        await reach(lambda: term.ledger.free("n") == lent, 5.0)
    return ended


@pytest.mark.parametrize("after", [False, True], ids=["before it is done", "after"])
def test_an_operator_that_is_killed_at_any_write_leaves_nothing_that_the_next_does_not_put_right(
    kube, stepped, lines, monkeypatch, after
):
    async def walk():
        for at in range(1, 40):
            yarn = FakeYarn()
            yarn.node(ID, 16384, 16)
            put_manager(kube)
            put_node(kube)
            if await one_life(kube, yarn, lines, Mortal(at, after), monkeypatch):
                return at
        raise AssertionError("it has no end")

    assert stepped(walk()) > 5, "so many writes are walked through"
