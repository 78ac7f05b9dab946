"""Two replicas on a real API server: whatever happens to them, never do two write.

What the API server has answered is in its audit log. Each replica comes over a network of its own, from an address of
its own. A moment with two writers: a write of one that the API server took after the Lease had another one's name.
"""

import json
import random
import signal
import threading
import time
from contextlib import contextmanager
from itertools import cycle, pairwise

import pytest

from cluster.integration.objects import POLICIES, policy, put_node, until
from criproxy_cluster.controller.lease_law import DURATION_S, RETRY_S
from criproxy_cluster.vocabulary.names import POLICY, SWITCH
from criproxy_cluster.vocabulary.watching import SILENCE_S
from integration.lab.bad_network import BadNetwork
from integration.lab.cluster_side import Replica, leader

pytestmark = pytest.mark.timeout(1200)

NODES = 8
ROUNDS = 7
IN_FORCE_S = 5.0
UNREAD = "import os; _unread = os.pipe(); os.dup2(_unread[1], 2)"
GONE = "import os; _gone, _end = os.pipe(); os.dup2(_end, 2); os.close(_gone)"
SOURCES = ("127.0.0.11", "127.0.0.12")


class Side:
    """A replica and its network."""

    def __init__(self, plane, source):
        host, _, port = plane.url.rpartition("//")[2].rpartition(":")
        self.source = source
        self.network = BadNetwork((host, int(port)), source)
        self.replica = Replica(plane, f"side-{source}-{time.monotonic_ns()}", self.network.url)

    def start(self, before=""):
        self.replica.start(before=before)

    def heal(self):
        self.network.swallows, self.network.late_s = False, 0.0
        self.replica.process.signal(signal.SIGCONT)


@pytest.fixture
def sides(plane):
    both = [Side(plane, source) for source in SOURCES]
    yield both
    for side in both:
        side.heal()
        side.replica.process.stop()
        side.network.close()


def freezes(side, rng, least_s=3.0, most_s=DURATION_S + 6.0):
    side.replica.process.signal(signal.SIGSTOP)
    time.sleep(rng.uniform(least_s, most_s))
    side.heal()


def freezes_for_long(side, rng):
    """The other one leads afterwards."""
    freezes(side, rng, DURATION_S + 5.0, DURATION_S + 8.0)


def dies(side, rng):
    side.replica.process.kill()
    time.sleep(rng.uniform(0.0, 3.0))
    side.start(rng.choice(["", UNREAD, GONE]))


def is_cut(side, rng):
    for _ in range(20):
        side.network.cut()
        time.sleep(rng.uniform(0.05, 0.6))


def loses_its_network(side, rng):
    side.network.swallows = True
    time.sleep(rng.uniform(3.0, DURATION_S + 6.0))
    side.heal()


def is_answered_late(side, rng):
    side.network.late_s = rng.uniform(1.0, 7.0)
    time.sleep(rng.uniform(10.0, 20.0))
    side.heal()


def freezes_without_a_network(side, rng):
    side.network.swallows = True
    time.sleep(rng.uniform(0.0, 4.0))
    freezes(side, rng)


@contextmanager
def stirred(plane, nodes):
    """There is always something to write: a node is switched off or on again, ten times a second."""
    ended = threading.Event()

    def stir():
        for node, off in zip(cycle(nodes), cycle([True] * len(nodes) + [False] * len(nodes)), strict=False):
            if ended.wait(0.1):
                return
            plane.merge(node, {"metadata": {"labels": {SWITCH: "off" if off else None}}})

    thread = threading.Thread(target=stir)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        for node in nodes:
            plane.merge(node, {"metadata": {"labels": {SWITCH: None}}})


EVILS = (freezes_for_long, dies, is_cut, loses_its_network, is_answered_late, freezes_without_a_network)


def audited(plane):
    """(when it came, when it was answered, whose address, what, the Lease's holder or "") of each that was done."""
    found = []
    for line in plane.audit.read_text().splitlines():
        event = json.loads(line)
        about = event["objectRef"]
        if event["sourceIPs"][0] in SOURCES and event["responseStatus"]["code"] < 300:
            of_lease = about["resource"] == "leases"
            holder = event["requestObject"]["spec"].get("holderIdentity", "") if of_lease else ""
            times = event["requestReceivedTimestamp"], event["stageTimestamp"]
            found.append((*times, event["sourceIPs"][0], about["resource"], holder))
    return sorted(found, key=lambda one: one[1])


def two_at_once(events):
    """The writes that were begun after another one had taken the Lease."""
    found, holds, since = [], "", ""
    for begun, done, source, resource, holder in events:
        if resource == "leases":
            if holder and source != holds:
                holds, since = source, done
        elif source != holds and begun > since:
            found.append((begun, source, resource, holds, since))
    return found


def test_whatever_happens_never_do_two_write_and_all_comes_into_force(plane, sides):
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    print(f"seed {seed}")
    nodes = [put_node(plane, f"two-{number}", labels={"pool": "two"}) for number in range(NODES)]
    plane.call("POST", POLICIES, policy("two", {"pool": "two"}, {"cpu": {"reserve_cores": 1}}))
    for side, before in zip(sides, ("", UNREAD), strict=True):
        side.start(before)
    until(lambda: leader(plane), 60.0)
    with stirred(plane, nodes):
        for number in range(ROUNDS):
            plane.merge(f"{POLICIES}/two", {"spec": {"settings": {"cpu": {"reserve_cores": number + 2}}}})
            evil = EVILS[number % len(EVILS)]
            print(f"{number}: {evil.__name__}")
            if evil is freezes_for_long:
                until(lambda: any(side.replica.leads() for side in sides), 60.0)
            leads = next((side for side in sides if side.replica.leads()), sides[0])
            evil(leads if evil is freezes_for_long or rng.random() < 0.8 else rng.choice(sides), rng)
    settings = {"cpu": {"reserve_cores": ROUNDS + 1}}
    until(lambda: all(told(plane, node) == settings for node in nodes), 2 * DURATION_S + 30.0)

    events = audited(plane)
    assert two_at_once(events) == []
    terms = [source for *_, source, resource, holder in events if resource == "leases" and holder]
    changes = sum(one != other for one, other in pairwise(terms))
    print(f"{len(events)} writes, {changes} changes of the leader")
    assert changes >= 2, "nothing was tried"


def told(plane, node):
    text = plane.call("GET", node)["metadata"].get("annotations", {}).get(POLICY)
    return None if text is None else json.loads(text)["settings"]


@pytest.mark.parametrize(
    "stderr", [pytest.param(UNREAD, id="unread"), pytest.param(GONE, id="gone", marks=pytest.mark.by_command)]
)
def test_a_switch_is_in_force_within_seconds_though_nobody_takes_the_log(plane, sides, stderr):
    first = sides[0]
    first.start(stderr)
    until(first.replica.leads, DURATION_S + 2 * RETRY_S + 30.0)
    sides[1].start()
    nodes = [put_node(plane, f"quiet-{stderr.count('_end')}-{number}") for number in range(200)]
    label = {"metadata": {"labels": {SWITCH: "off"}}}
    for node in nodes[:150]:  # enough of its lines to fill a pipe
        plane.merge(node, label)
    until(lambda: all(told(plane, node) for node in nodes[:150]), 60.0)
    began_s = time.monotonic()
    plane.merge(nodes[-1], label)
    until(lambda: told(plane, nodes[-1]), IN_FORCE_S)
    print(f"in force after {time.monotonic() - began_s:.2f} s")
    assert first.replica.leads()
    first.replica.process.signal(signal.SIGTERM)
    began_s = time.monotonic()
    until(sides[1].replica.leads, 2 * RETRY_S + 10.0)
    print(f"the other one leads after {time.monotonic() - began_s:.2f} s")


def test_a_watch_that_has_died_without_a_word_is_found_and_the_switch_is_in_force(plane, sides):
    """The connections that there are bring nothing any more, and new ones work: so the Lease is kept."""
    for side in sides:
        side.start()
    until(lambda: leader(plane), 60.0)
    node = put_node(plane, "silent")
    first = until(lambda: next((side for side in sides if side.replica.leads()), None))
    time.sleep(2.0)
    first.network.deaden()
    plane.merge(node, {"metadata": {"labels": {SWITCH: "off"}}})
    began_s = time.monotonic()
    until(lambda: told(plane, node), SILENCE_S + IN_FORCE_S)
    print(f"in force after {time.monotonic() - began_s:.2f} s")
    assert first.replica.leads()
