"""Two stock kube-schedulers on a real control plane fight for full nodes, with a ledger and without."""

import time

import pytest

from cluster.integration.objects import until
from integration.lab import control_plane, ledger_side
from integration.lab.control_plane import ControlPlane
from integration.lab.crowd import Crowd
from integration.lab.ledger_side import LedgerReplica

pytestmark = pytest.mark.timeout(600)

SCHEDULERS = ("sched-0", "sched-1")
NODES = 20
LIFE_S = 15.0
ABSTAINED_S = 3.5
"""Of a new leader, and a little more."""

SETTLED_S = 3.0
LOOK_S = 15.0
TERM_S = 10.0
"""Within the 15 s for which a leader that is killed has its Lease."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    directory = tmp_path_factory.mktemp("ledger")
    made = ControlPlane(directory)
    try:
        made.start(lifecycle=False, scheduler=False)
        made.call("POST", "/api/v1/namespaces", {"metadata": {"name": "criproxy-system"}})
        until(lambda: made.exists("/api/v1/namespaces/default/serviceaccounts/default"))
        yield made
    finally:
        control_plane.end(directory)


@pytest.fixture(scope="module")
def crowd(plane):
    made = Crowd(plane, NODES, SCHEDULERS, LIFE_S)
    made.fill()
    made.start()
    yield made
    made.end()
    assert not made.errors


@pytest.fixture(scope="module")
def without(crowd):
    """What happens without a ledger: before there is one."""
    crowd.run(SETTLED_S)
    tally = crowd.run(LOOK_S)
    print(f"without: {tally}")
    return tally


@pytest.fixture(scope="module")
def replicas(plane, without):
    ledger_side.install(plane)
    first, second = (LedgerReplica(plane, name) for name in ("ledger-a", "ledger-b"))
    first.start()
    until(first.leads)
    second.start()
    until(first.is_ready)
    time.sleep(ABSTAINED_S)
    first.take_binds()
    yield first, second
    for one in (first, second):
        one.process.stop()


def test_without_a_ledger_many_pods_fail_for_good(without):
    assert without.failed_ratio > 0.05


def test_with_a_ledger_none_fails_and_no_fewer_are_placed(crowd, without, replicas):
    crowd.run(SETTLED_S)
    tally = crowd.run(LOOK_S)
    print(f"with: {tally}")
    assert tally.failed == 0
    assert tally.placed > 0.7 * without.placed


def test_only_the_one_that_leads_is_ready(replicas):
    first, second = replicas
    assert first.is_ready() and not second.is_ready()
    status, why = second.ask("/readyz")
    assert (status, why) == (503, b"criproxy: another replica leads\n")


def test_a_ledger_that_hangs_costs_no_scheduler_its_binds_and_comes_back(crowd, without, replicas):
    first, _ = replicas
    first.hang()
    tally = crowd.run(5.0)
    first.go_on()
    print(f"hangs: {tally}")
    assert tally.placed > 0.4 * without.placed * 5.0 / LOOK_S
    until(first.is_ready)
    crowd.run(SETTLED_S)
    assert crowd.run(5.0).failed == 0


def test_a_leader_that_is_killed_is_followed_by_one_that_knows_as_much(crowd, without, replicas):
    first, second = replicas
    first.process.kill()
    second.take_binds()
    tally = crowd.run(TERM_S)
    print(f"killed: {tally}")
    assert tally.placed > 0.4 * without.placed * TERM_S / LOOK_S
    until(second.is_ready)
    time.sleep(ABSTAINED_S)
    crowd.run(SETTLED_S)
    assert crowd.run(LOOK_S / 2).failed == 0
