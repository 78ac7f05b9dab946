"""Fakes of what the control loop speaks to: a box that holds its limits, an observer, a capacity."""

from dataclasses import dataclass, field

from criproxy.model import UNLIMITED, Capacity, LimitChange, Limits, Usage, UsageReading
from tests.fakes.clock import FakeClock

GIB = 2**30


def or_error(read):
    try:
        return read()
    except Exception as error:
        return error


@dataclass
class FakeBox:
    """A node with some online load and a box that takes all it may, of its `cpus`.

    `jump_s`: what the node's counter jumps by at the next reading.
    """

    clock: FakeClock
    cpus: float = 4.0
    jump_s: float = 0.0
    online_cores: float = 1.0
    online_bytes: int = 4 * GIB
    limits: Limits | None = None
    starting: int = 0
    applied: list = field(default_factory=list)
    usage_error: Exception | None = None
    apply_error: Exception | None = None
    apply_takes_s: float = 0.0
    drifts: bool = False
    _last_s: float | None = None
    _node_s: float = 0.0
    _box_s: float = 0.0

    async def usage(self, beside=None):
        return or_error(self._usage), None if beside is None else or_error(lambda: beside(self, "/offline"))

    def _usage(self):
        now_s = self.clock.now - self.clock.suspended_s
        dt = 0.0 if self._last_s is None else now_s - self._last_s
        self._last_s = now_s
        box_cores = 0.0
        if self.limits:
            limit, free = self.limits["cpu"], self.cpus - self.online_cores
            box_cores = free if limit is UNLIMITED else min(limit, free)
        self._box_s += dt * box_cores
        self._node_s += dt * (self.online_cores + box_cores) + self.jump_s
        self.jump_s = 0.0
        if self.usage_error:
            raise self.usage_error
        return UsageReading(Usage(self._node_s, self.online_bytes + GIB), Usage(self._box_s, GIB), now_s)

    async def apply(self, limits):
        self.clock.advance(self.apply_takes_s)
        if self.apply_error:
            raise self.apply_error
        self.applied.append(limits)
        if limits == self.limits and not self.drifts:
            return ()
        change = LimitChange("cpu.max", str(self.limits), str(limits), drift=self.drifts)
        self.limits = limits
        return (change,)


@dataclass
class FakeObserver:
    """Remembers what it is told; once `deaf`, it raises instead."""

    seen: list = field(default_factory=list)
    seconds: list = field(default_factory=list)
    missed: list = field(default_factory=list)
    discarded: list = field(default_factory=list)
    failed: int = 0
    deaf: bool = False

    def ticked(self, snapshot, decision, changes, seconds):
        self._listen()
        self.seen.append((snapshot, decision, changes))
        self.seconds.append(seconds)

    def tick_failed(self, seconds):
        self._listen()
        self.failed += 1

    def sample_discarded(self, reason):
        self._listen()
        self.discarded.append(reason)

    def ticks_missed(self, count):
        self.missed.append(count)

    def _listen(self):
        if self.deaf:
            raise RuntimeError("the observer broke")


class FakeCapacity:
    def __init__(self, cores=4.0, memory_bytes=16 * GIB):
        self.value = Capacity(cores, memory_bytes)

    def __call__(self):
        return self.value


@dataclass
class FakeGuardedBox:
    """What the guard looks at and acts on: counters that go on with the clock, at what node and box use."""

    clock: FakeClock
    online_cores: float = 0.6
    box_cores: float = 1.0
    squeezed: list = field(default_factory=list)
    read_error: Exception | None = None
    squeeze_error: Exception | None = None
    has_box: bool = True
    stalls: int = 0
    cost_s: float = 0.0
    read_s: float = 0.0
    """How long each read takes."""
    _at_s: float = 0.0
    _node_s: float = 50.0
    _box_s: float = 20.0

    def cpu_times(self):
        if self.read_error:
            raise self.read_error
        if not self.has_box:
            return None
        self.clock.cpu_s += self.cost_s
        seconds, self._at_s = self.clock.now - self._at_s, self.clock.now
        self._box_s += seconds * self.box_cores
        self._node_s += seconds * (self.box_cores + self.online_cores)
        node_s = self._node_s
        self.clock.advance(self.read_s)
        if self.stalls:
            self.stalls -= 1
            self.clock.advance(0.2)
            self._at_s = self.clock.now
            self._box_s += 0.2 * self.box_cores
            self._node_s += 0.2 * (self.box_cores + self.online_cores)
        return node_s, self._box_s

    def jumps(self, node_s, box_s):
        """The counters, as when a virtual machine goes on elsewhere."""
        self._node_s += node_s
        self._box_s += box_s

    def made_anew(self):
        self._box_s = 0.0

    async def squeeze(self, cores):
        if self.squeeze_error:
            raise self.squeeze_error
        self.squeezed.append(cores)
