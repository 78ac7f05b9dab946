"""The law against a ResourceManager as it was found to be, in any order of events.

The ResourceManager's traits, as tried on Hadoop 3.4: a size that is the same changes no deadline; another size sets the
one that came with it; at a deadline the newest containers that are too many are killed; a restart forgets deadlines; a
NodeManager's restart brings the size of its own settings.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from criproxy_cluster.yarn.law import AGAIN_S, RISE_S, SETTLE_S, Lent, NodeLaw, Seen, Size, wanted

GRACE_S = 8.0
SHARE = 0.75
OWN = Size(8192, 8)
"""Of the NodeManager's settings."""

GIB = 1 << 30


class Yarn:
    """`containers`: MiB of each and since when it is too many, the newest last."""

    def __init__(self):
        self.size = OWN
        self.containers = []
        self.deadline_s = None
        self.killed = []
        """For how long each had been told."""

    @property
    def used(self):
        return sum(mib for mib, _ in self.containers)

    def seen(self):
        return Seen(self.size, Size(self.used, len(self.containers)))

    def set_size(self, size, grace_ms, now_s):
        assert grace_ms > 0 and size.mib >= 0 and size.vcores >= 0
        if size != self.size:
            self.size, self.deadline_s = size, now_s + grace_ms / 1000
        self.tell(now_s)

    def tell(self, now_s):
        before_mib = 0
        for place, (mib, told_s) in enumerate(self.containers):
            before_mib += mib
            since_s = None if before_mib <= self.size.mib else now_s if told_s is None else told_s
            self.containers[place] = mib, since_s
        if self.used <= self.size.mib:
            self.deadline_s = None

    def beat(self, now_s):
        """Containers are killed with a NodeManager's heartbeat alone."""
        self.tell(now_s)
        while self.used > self.size.mib and self.deadline_s is not None and now_s >= self.deadline_s:
            self.killed.append(now_s - self.containers.pop()[1])


class Operator(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.now_s = 0.0
        self.yarn = Yarn()
        self.law = NodeLaw()
        self.lent = Lent(8 * GIB, 8000)
        self.pods = Lent()
        self.beats = True
        """Whether the NodeManager lives: without it nothing ends."""
        self.touched = False
        """Whether YARN has changed by itself since the last look."""

    @property
    def wanted(self):
        return wanted(self.lent, self.pods, SHARE)

    @rule(delta_s=st.floats(0.1, 4.0))
    def time_passes(self, delta_s):
        self.now_s += delta_s
        if self.beats:
            self.yarn.beat(self.now_s)

    @rule(arrives=st.sampled_from(["yes", "yes", "yes", "no"]))
    def look(self, arrives):
        self.law.see(self.yarn.seen(), self.now_s)
        self.touched = False
        before = self.yarn.size
        send = self.law.step(self.wanted, GRACE_S, self.now_s)
        if send is None:
            return
        if send.size.mib > before.mib + 1:  # 1 more is for a deadline
            assert send.size.mib << 20 <= max(self.lent.bytes - self.pods.bytes, 0), "it grows into a pod's memory"
        if send.size.vcores > before.vcores:
            assert send.size.vcores * 1000 <= max(self.lent.millicores - self.pods.millicores, 0)
        if arrives == "yes":
            self.yarn.set_size(send.size, send.grace_ms, self.now_s)

    @rule(seconds=st.integers(1, 15))
    def it_looks_each_second(self, seconds):
        for _ in range(seconds):
            self.time_passes(1.0)
            self.look("yes")

    @rule(mib=st.integers(0, 8192), cores=st.integers(0, 8))
    def nodes_lend(self, mib, cores):
        self.lent = Lent(mib << 20, cores * 1000)

    @rule(mib=st.integers(0, 8192), cores=st.integers(0, 8))
    def pods_ask(self, mib, cores):
        """The ledger lets in only what leaves YARN what it holds."""
        held = self.law.held
        if held is not None and not self.touched:
            room = Lent(self.lent.bytes - (held.mib << 20), self.lent.millicores - held.vcores * 1000)
            self.pods = Lent(min(mib << 20, max(room.bytes, 0)), min(cores * 1000, max(room.millicores, 0)))

    @rule(several=st.lists(st.integers(1, 2000), min_size=1, max_size=8))
    def containers_begin(self, several):
        for mib in several:
            if self.yarn.used + mib <= self.yarn.size.mib:
                self.yarn.containers.append((mib, None))

    @rule(which=st.integers(0, 20))
    def container_ends(self, which):
        if self.yarn.containers and self.beats:
            del self.yarn.containers[which % len(self.yarn.containers)]
            self.yarn.beat(self.now_s)

    @rule()
    def resourcemanager_restarts(self):
        self.yarn.deadline_s = None

    @rule()
    def nodemanager_restarts(self):
        self.yarn.size, self.touched, self.beats = OWN, True, True
        self.yarn.beat(self.now_s)

    @rule()
    def another_replica_leads(self):
        self.law = NodeLaw()
        self.touched = True

    @rule()
    def nodemanager_stops(self):
        self.beats = False

    @precondition(lambda self: not self.beats)
    @rule()
    def nodemanager_goes_on(self):
        self.beats = True
        self.yarn.beat(self.now_s)

    @invariant()
    def nobody_is_killed_without_the_whole_notice(self):
        assert all(told_s >= GRACE_S - 0.01 for told_s in self.yarn.killed)

    @invariant()
    def what_yarn_may_use_is_held(self):
        if self.touched or self.law.held is None:
            return
        assert self.law.held.mib >= self.yarn.size.mib and self.law.held.vcores >= self.yarn.size.vcores
        if not self.law.overdue:
            assert self.law.held.mib >= self.yarn.used

    def teardown(self):
        """Left alone, it comes to rest at what is wanted, and nothing more is held."""
        self.beats = True
        for _ in range(int(2 * (GRACE_S + SETTLE_S) + AGAIN_S + 2 * RISE_S) + 10):
            self.time_passes(1.0)
            self.look("yes")
        assert self.yarn.size == self.wanted, (self.yarn.size, self.wanted)
        assert self.law.held == self.wanted and not self.law.overdue and self.yarn.used <= self.wanted.mib


TestOperator = Operator.TestCase
TestOperator.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
