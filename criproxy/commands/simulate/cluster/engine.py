"""The replay of some nodes by one law, in steps of 30 s or less. Needs numpy.

One step
--------
    report   what differs enough, or is due, is what the scheduler knows from now on
    end      pods that have done their work leave; of what they did beyond it in their last step, nothing counts
    go       pods of a node whose record is over are evicted: the node has left
    evict    by criproxy's law the youngest of a node where pods starve for CPU; then pods that memory has no room
              for, the youngest first; their work is lost, and the node takes no others for 5 minutes
    place    the scheduler looks (`queue`)
    run      online has what it uses; what the law leaves of the rest is shared: all pods of a node run at one speed

    speed = min(1, what the law lets offline use / what its pods asked for)

Pods use all the CPU that they asked for, and all the memory, from their beginning. A pod's end is known by the work of
its node, which is the sum of speed x time since the record began, so that a step costs the same however many end.

A law knows online's use of the cells before the present one. Where a node's use is not on record, nothing is lent and
no time is counted; in a gap of its record its pods run on at full speed.
"""

import math
from array import array
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from criproxy.commands.simulate.cluster.figures import (
    SLOWDOWN_RATIO,
    SLOWDOWN_STEPS,
    WAIT_STEP_S,
    WAIT_STEPS,
    Counted,
)
from criproxy.commands.simulate.cluster.forecast import HARD, OPEN_BOX, Foreseen
from criproxy.commands.simulate.cluster.laws import BY_NAME, CHANGE_RATIO, Law
from criproxy.commands.simulate.cluster.queue import Backlog, Bools, Endless, Floats, Ints, Placed, Room
from criproxy.commands.simulate.cluster.record import Grid, PodsToCome
from criproxy.config.settings import Config
from criproxy.control.interference.ladder import Budget
from criproxy.control.memory_pressure import TOLERATED_RATIO, halfway_bytes, kept_free_bytes
from criproxy.control.pod_speed import FULL_RATIO, RELIEF_S, STARVED_RATIO, Feedback
from criproxy.control.publication import RECENT_S, by_forecast, falls, within

STEP_S: Final = 30.0
AVOIDED_S: Final = 300.0
"""After an eviction a node takes no pod for so long: kubelet's eviction-pressure-transition-period."""

BUDGET: Final = Budget()
_MEMORY: Final = Config().memory

Floats32 = NDArray[np.float32]


class NodesByLaw(Struct, frozen=True):
    """Some nodes to replay by one law. `jobs` None: an endless queue."""

    law: str
    grid: Grid
    nodes: tuple[Foreseen, ...]
    jobs: tuple[PodsToCome, ...] | None
    seed: tuple[int, ...]

    @property
    def weight(self) -> int:
        return len(self.nodes) * self.grid.cells


def replay(part: NodesByLaw) -> Counted:
    return _Replay(part).run()


class _Pods:
    """All pods that run, in the order in which they began; one entry each in arrays of equal length."""

    def __init__(self) -> None:
        self.node = np.empty(0, np.int64)
        self.ends = np.empty(0)
        """At which work of the node."""
        self.cpu = np.empty(0)
        self.memory = np.empty(0)
        self.duration_s = np.empty(0)
        self.arrival_s = np.empty(0)
        self.born_s = np.empty(0)

    def begin(self, placed: Placed, work: Floats, t_s: float) -> None:
        self.node = np.concatenate((self.node, placed.node))
        self.ends = np.concatenate((self.ends, work[placed.node] + placed.duration_s))
        self.cpu = np.concatenate((self.cpu, placed.cpu))
        self.memory = np.concatenate((self.memory, placed.memory))
        self.duration_s = np.concatenate((self.duration_s, placed.duration_s))
        self.arrival_s = np.concatenate((self.arrival_s, placed.arrival_s))
        born_s = np.where(np.isnan(placed.born_s), t_s, placed.born_s)
        self.born_s = np.concatenate((self.born_s, born_s))

    def keep(self, kept: Bools) -> None:
        self.node, self.ends, self.cpu, self.memory = (
            self.node[kept],
            self.ends[kept],
            self.cpu[kept],
            self.memory[kept],
        )
        self.duration_s, self.arrival_s, self.born_s = self.duration_s[kept], self.arrival_s[kept], self.born_s[kept]

    def as_placed(self, chosen: Bools) -> Placed:
        return Placed(
            self.node[chosen], self.cpu[chosen], self.memory[chosen], self.duration_s[chosen], self.arrival_s[chosen],
            self.born_s[chosen],
        )  # fmt: skip


class _Replay:
    def __init__(self, part: NodesByLaw) -> None:
        self.law: Law = BY_NAME[part.law]  # type: ignore[index]
        self.grid, nodes = part.grid, part.nodes
        count = len(nodes)
        self.steps = max(1, round(self.grid.cell_s / STEP_S))
        self.step_s = self.grid.cell_s / self.steps
        self.rng = np.random.default_rng(part.seed)
        self.queue = Endless(self.rng) if part.jobs is None else Backlog(part.jobs, self.rng)
        self.cores = np.array([node.capacity_cores for node in nodes])
        self.cpu = _by_cell([node.cpu for node in nodes])
        self.last_cell = len(self.cpu) - 1 - np.argmax(~np.isnan(self.cpu[::-1]), axis=0)
        """On record, of each node."""
        self.lent_cpu = _by_cell([node.lent_cpu[self.law.amounts] for node in nodes])
        self.has_memory = all(node.memory is not None for node in nodes)
        self.bytes = np.array([node.capacity_bytes for node in nodes])
        self.memory = _by_cell([node.memory for node in nodes if node.memory is not None])
        self.lent_memory = _by_cell([node.lent_memory[self.law.amounts] for node in nodes if node.lent_memory])
        self.kept = np.array([kept_free_bytes(HARD, size) for size in self.bytes])
        self.halfway = np.array([halfway_bytes(HARD, size) for size in self.bytes])
        self.hard = np.array([HARD.of(size) for size in self.bytes])

        self.open_boxes = [node.open_box for node in nodes if self.law.feeds_back and node.open_box is not None]
        self.feedbacks = [Feedback(OPEN_BOX.speed_ratio)] * len(self.open_boxes)
        self.slow_s, self.run_s = np.zeros(count), np.zeros(count)
        """Since the cell began: pods' time, and that at less than the speed that they are to keep."""

        self.work = np.zeros(count)
        self.speed = np.ones(count)
        self.squeezed = np.zeros(count, bool)
        self.asked = np.zeros(count)
        self.held = np.zeros(count)
        self.pods_of = np.zeros(count)
        self.published_cpu, self.published_memory = np.zeros(count), np.zeros(count)
        self.due_s = np.zeros(count)
        self.avoided_until_s = np.zeros(count)
        self.gone = np.zeros((max(1, round(BUDGET.window_s / self.step_s)), count))
        """How many pods the ladder evicted, per step of its window."""
        self.works = np.zeros((max(1, round(RECENT_S / self.step_s)), count))
        """The nodes' work at the end of the latest steps, in a ring, of which the next is the oldest."""
        self.measured_since = np.zeros(count, np.int64)
        """From which step on it is measured how a node's pods fare: since one of them went for that."""
        self.relieving = np.zeros(count, bool)
        self.pods = _Pods()
        self.counted = Counted(slowdowns=[0] * SLOWDOWN_STEPS, waits=[0] * WAIT_STEPS)
        self.slowdowns, self.waits = np.zeros(SLOWDOWN_STEPS, np.int64), np.zeros(WAIT_STEPS, np.int64)

    def run(self) -> Counted:
        number = 0
        for cell in range(self.grid.cells):
            used, known = self.cpu[cell], ~np.isnan(self.cpu[cell])
            if self.has_memory:
                known &= ~np.isnan(self.memory[cell])
            used = np.where(known, used, 0.0).astype(np.float64)
            memory = np.where(known, self.memory[cell], 0.0).astype(np.float64) if self.has_memory else None
            counts = cell >= self.grid.warm_cells
            if counts:
                self._look_at_online(used, memory, known)
            self._feed_back(cell)
            want_cpu, want_memory = self._wanted(self.lent_cpu, cell, known), None
            if memory is not None:
                want_memory = self._wanted(self.lent_memory, cell, known)
            offline = 0.0
            for _ in range(self.steps):
                t_s = number * self.step_s
                self._report(t_s, want_cpu, want_memory, known, counts=counts)
                self._end(t_s, counts=counts)
                self._go_with_nodes(cell, counts=counts)
                self.gone[number % len(self.gone)] = 0.0
                before = self.pods_of.copy()
                if self.law.relieves:
                    self._relieve(number, counts=counts)
                if memory is not None:
                    self._evict(number, memory, counts=counts)
                self.avoided_until_s[self.pods_of < before] = t_s + AVOIDED_S
                self._place(t_s, counts=counts)
                offline += self._run(used, known, counts=counts)
                number += 1
            self.counted.course.append(
                (
                    float(self.cores[known].sum()),
                    float(used.sum()),
                    float(np.maximum(self.published_cpu, self.asked)[known].sum()),
                    offline / self.grid.cell_s,
                )
            )
        waiting = self.queue.waiting(self.grid.duration_s)
        self.counted.waiting, self.counted.waiting_work_h = waiting.jobs, waiting.core_hours
        not_begun = np.array(waiting.not_begun).reshape(-1, 2)
        self._count_waits(self.grid.duration_s, not_begun[:, 0], not_begun[:, 1].astype(np.int64))
        self.counted.slowdowns, self.counted.waits = self.slowdowns.tolist(), self.waits.tolist()
        return self.counted

    def _wanted(self, amounts: Floats32, cell: int, known: Bools) -> Floats:
        """What the law would publish in this cell; 0 where nothing is known."""
        known_at = cell if self.law.amounts == "foresight" else cell - 1
        if known_at < 0:
            return np.zeros(len(known))
        amount = amounts[known_at].astype(np.float64)
        return np.where(known & ~np.isnan(amount), amount, 0.0)

    def _feed_back(self, cell: int) -> None:
        """What pods got in the cell before moves what criproxy makes of the sample of that."""
        if not cell or not self.open_boxes:
            return
        ratios = self.slow_s / np.maximum(self.run_s, 1e-9)
        for node in np.flatnonzero(self.run_s > 0.0):
            self.feedbacks[node] = self.feedbacks[node].adjusted(float(ratios[node]), self.grid.cell_s / 3600.0)
        known_at = cell - 1
        self.lent_cpu[known_at] = [
            box.lent(known_at, cores, feedback.factor)
            for box, cores, feedback in zip(self.open_boxes, self.cores.tolist(), self.feedbacks, strict=True)
        ]
        self.slow_s[:], self.run_s[:] = 0.0, 0.0

    def _look_at_online(self, used: Floats, memory: Floats | None, known: Bools) -> None:
        """A sample is broken where offline holds what online wants as it comes, before anything is done about it."""
        self.counted.samples += int(known.sum())
        if not self.law.yields:
            over = (used + self.asked * self.speed > self.cores * (1.0 + 1e-9)) & known & (self.asked > 0.0)
            self.counted.broken_cpu += int(over.sum())
        if memory is not None:
            over = (memory + self.held > self.bytes) & known & (self.held > 0.0)
            self.counted.broken_memory += int(over.sum())

    def _report(self, t_s: float, want_cpu: Floats, want_memory: Floats | None, known: Bools, *, counts: bool) -> None:
        now = self._differs(want_cpu, self.published_cpu) | (t_s >= self.due_s)
        if want_memory is not None:
            now |= self._differs(want_memory, self.published_memory)
        if not now.any():
            return
        self.published_cpu[now] = want_cpu[now]
        if want_memory is not None:
            self.published_memory[now] = want_memory[now]
        every_s = math.inf if self.law.every_s is None else self.law.every_s
        self.due_s[now] = t_s + every_s * (1.0 + self.law.longer_ratio * self.rng.random(int(now.sum())))
        if counts:
            self.counted.reports += int((now & known).sum())

    def _differs(self, wanted: Floats, published: Floats) -> Bools:
        if self.law.falls_only:
            return falls(wanted, published)  # type: ignore[arg-type, return-value]  # it is arithmetic, of arrays too
        return np.abs(wanted - published) > CHANGE_RATIO * published

    def _end(self, t_s: float, *, counts: bool) -> None:
        pods = self.pods
        ended = pods.ends <= self.work[pods.node]
        if not ended.any():
            return
        if counts:
            node = pods.node[ended]
            over = self.work[node] - pods.ends[ended]
            lasted = t_s - over / self.speed[node] - pods.born_s[ended]
            steps = np.log(np.maximum(lasted / pods.duration_s[ended], 1.0)) / math.log(SLOWDOWN_RATIO)
            steps = np.minimum(np.rint(steps), SLOWDOWN_STEPS - 1).astype(np.int64)
            self.slowdowns += np.bincount(steps, minlength=SLOWDOWN_STEPS)
            self.counted.ended += len(node)
        self._leave(ended)
        pods.keep(~ended)

    def _go_with_nodes(self, cell: int, *, counts: bool) -> None:
        left = (self.last_cell < cell) & (self.pods_of > 0.0)
        if left.any():
            self._gone(np.flatnonzero(left[self.pods.node]), counts=counts)

    def _leave(self, chosen: Bools) -> None:
        pods, count = self.pods, len(self.cores)
        node = pods.node[chosen]
        self.asked = np.maximum(self.asked - np.bincount(node, pods.cpu[chosen], count), 0.0)
        self.pods_of -= np.bincount(node, minlength=count)
        self.asked[self.pods_of == 0.0] = 0.0
        if self.has_memory:
            self.held = np.maximum(self.held - np.bincount(node, pods.memory[chosen], count), 0.0)
            self.held[self.pods_of == 0.0] = 0.0

    # --- who starves ------------------------------------------------------------------------------------------------

    def _relieve(self, number: int, *, counts: bool) -> None:
        """The youngest goes where a pod got less than half for five minutes; then one a minute until the rest get all.

        All pods of a node run at one speed and want all that they asked for, so the node's work tells it.
        """
        ring, relief = len(self.works), max(1, round(RELIEF_S / self.step_s))
        measured = number - self.measured_since
        minute_ago = self.works[(number - relief) % ring]
        judged = self.relieving & (measured >= relief)
        lacking = self.work - minute_ago < FULL_RATIO * relief * self.step_s
        self.relieving &= ~judged | (lacking & (self.pods_of > 0.0))
        oldest = self.works[number % ring]
        limit = min(STARVED_RATIO, OPEN_BOX.speed_ratio) * ring * self.step_s
        starved = ~self.relieving & (measured >= ring) & (self.work - oldest < limit) & (self.pods_of > 0.0)
        for at in np.flatnonzero((judged & self.relieving) | starved):
            node = int(at)
            if starved[node] and not self._has_one_since(node, oldest[node]):
                continue
            if self._left(node, emergency=False) > 0:
                gone = self._evict_youngest(node, counts=counts)
                self.gone[number % len(self.gone), node] += gone
                self.counted.starved += gone if counts else 0
            self.relieving[node], self.measured_since[node] = True, number
        self.works[number % ring] = self.work

    def _has_one_since(self, node: int, work: float) -> bool:
        """Whether a pod of the node has run since its work was that."""
        of_node = self.pods.node == node
        return bool((self.pods.ends[of_node] - self.pods.duration_s[of_node] <= work).any())

    def _evict_youngest(self, node: int, *, counts: bool) -> int:
        """The one that has used least CPU time; how many went."""
        pods = self.pods
        of_node = np.flatnonzero(pods.node == node)
        used = (self.work[node] - pods.ends[of_node] + pods.duration_s[of_node]) * pods.cpu[of_node]
        return self._gone(of_node[[int(np.argmin(used))]], counts=counts)

    def _left(self, node: int, *, emergency: bool) -> int:
        """How many more the ladder may evict on a node."""
        return BUDGET.of(emergency=emergency) - int(self.gone[:, node].sum())

    # --- memory -----------------------------------------------------------------------------------------------------

    def _evict(self, number: int, memory: Floats, *, counts: bool) -> None:
        """The law's own rule, then kubelet's."""
        law, slot = self.law, number % len(self.gone)
        if law.ladder:
            self._by_ladder(slot, memory, counts=counts)
        elif law.evict_ratio is not None:
            full = (memory + self.held > law.evict_ratio * self.bytes) & (self.held > 0.0)
            for node in np.flatnonzero(full):
                self._down_to(int(node), float(law.evict_to_ratio * self.bytes[node] - memory[node]), counts=counts)
        full = (memory + self.held > self.bytes - self.hard) & (self.held > 0.0)
        for node in np.flatnonzero(full):
            self._down_to(int(node), float(self.bytes[node] - self.hard[node] - memory[node]), counts=counts)

    def _by_ladder(self, slot: int, memory: Floats, *, counts: bool) -> None:
        """A pod goes while the box is above what online's use leaves it, as its memory can't be taken back."""
        most_used = np.minimum(_MEMORY.watermark_ratio * self.bytes, self.bytes - self.kept)
        for at in np.flatnonzero((self.held > 0.0) & (memory + self.held > most_used)):
            node = int(at)
            bound = by_forecast(
                float(self.bytes[node]), float(memory[node]), watermark_ratio=_MEMORY.watermark_ratio,
                reserve=_MEMORY.reserve_bytes, kept=float(self.kept[node]),
            )  # fmt: skip
            bound = within(bound, float(self.bytes[node]), _MEMORY.min_bytes, _MEMORY.max_bytes)
            if self.held[node] <= bound * (1.0 + TOLERATED_RATIO):
                continue
            emergency = bool(self.bytes[node] - memory[node] - self.held[node] < self.halfway[node])
            fits = max(1, int(self.step_s / BUDGET.pause(emergency=emergency)))
            most = min(self._left(node, emergency=emergency), fits)
            if most > 0:
                self.gone[slot, node] += self._down_to(node, bound, most, counts=counts)

    def _down_to(self, node: int, memory: float, most: int | None = None, *, counts: bool) -> int:
        """Evict the youngest pods of a node until they hold no more, and `most` of them; how many went."""
        pods = self.pods
        of_node = np.flatnonzero((pods.node == node) & (pods.memory > 0.0))[::-1]
        held = self.held[node] - np.concatenate(([0.0], np.cumsum(pods.memory[of_node])))
        number = int(np.argmax(held <= max(memory, 0.0) + 1.0)) if held[-1] <= max(memory, 0.0) + 1.0 else len(of_node)
        return self._gone(of_node[: number if most is None else min(number, most)], counts=counts)

    def _gone(self, which: NDArray[np.int64], *, counts: bool) -> int:
        """Evict these, by their places among all pods; how many went."""
        if not len(which):
            return 0
        pods = self.pods
        chosen = np.zeros(len(pods.node), bool)
        chosen[which] = True
        if counts:
            done = pods.duration_s[chosen] - (pods.ends[chosen] - self.work[pods.node[chosen]])
            self.counted.evictions += len(which)
            self.counted.lost += float((done * pods.cpu[chosen]).sum())
        self.queue.back(pods.as_placed(chosen))
        self._leave(chosen)
        pods.keep(~chosen)
        return len(which)

    # --- the scheduler, and a step's running --------------------------------------------------------------------------

    def _place(self, t_s: float, *, counts: bool) -> None:
        free_memory = np.maximum(self.published_memory - self.held, 0.0) if self.has_memory else None
        room = Room(
            lent_cpu=self.published_cpu,
            free_cpu=np.where(t_s < self.avoided_until_s, 0.0, np.maximum(self.published_cpu - self.asked, 0.0)),
            lent_memory=self.published_memory if self.has_memory else None,
            free_memory=free_memory,
        )
        placed = self.queue.place(t_s, room)
        if placed is None:
            return
        if counts and self.queue.finite:
            self._count_waits(t_s, placed.arrival_s[np.isnan(placed.born_s)], 1)
        count = len(self.cores)
        self.asked += np.bincount(placed.node, placed.cpu, count)
        self.pods_of += np.bincount(placed.node, minlength=count)
        if self.has_memory:
            self.held += np.bincount(placed.node, placed.memory, count)
        self.pods.begin(placed, self.work, t_s)

    def _count_waits(self, t_s: float, arrival_s: Floats, count: int | Ints) -> None:
        """So many jobs of each arrival have waited until now; from the record's begin on, if they came before it."""
        steps = np.minimum((t_s - np.maximum(arrival_s, 0.0)) / WAIT_STEP_S, WAIT_STEPS - 1)
        np.add.at(self.waits, steps.astype(np.int64), count)

    def _run(self, used: Floats, known: Bools, *, counts: bool) -> float:
        """Returns the core-seconds that offline used on nodes on record, of its work alone."""
        free = np.maximum(self.cores - used, 0.0)
        may = free
        if self.law.suppress_ratio is not None:
            may = np.minimum(free, np.maximum(self.law.suppress_ratio * self.cores - used, 0.0))
        may = np.where(known, may, self.cores)
        self.speed = np.minimum(1.0, may / np.maximum(self.asked, 1e-12))
        self.work += self.speed * self.step_s
        self.run_s += self.pods_of * self.step_s
        self.slow_s += np.where(self.speed < OPEN_BOX.speed_ratio, self.pods_of, 0.0) * self.step_s
        placed = float((self.asked * self.speed)[known].sum()) * self.step_s - self._beyond(known)
        if counts:
            self._count(used, free, known, placed)
        return placed

    def _beyond(self, known: Bools) -> float:
        """The core-seconds of the step on nodes on record that pods had beyond their work."""
        pods = self.pods
        over = np.where(known, self.work, 0.0)[pods.node] - pods.ends
        return float(np.maximum(over, 0.0) @ pods.cpu)

    def _count(self, used: Floats, free: Floats, known: Bools, placed: float) -> None:
        counted, step_s = self.counted, self.step_s
        pods = np.where(known, self.pods_of, 0.0)
        counted.capacity += float(self.cores[known].sum()) * step_s
        counted.online += float(used[known].sum()) * step_s
        counted.free += float(free[known].sum()) * step_s
        counted.promised += float(self.asked[known].sum()) * step_s
        counted.placed += placed
        counted.pods_s += float(pods.sum()) * step_s
        counted.below_half_s += float(pods[self.speed < 0.5].sum()) * step_s
        counted.below_09_s += float(pods[self.speed < 0.9].sum()) * step_s
        counted.nodes_s += float(known.sum()) * step_s
        squeezed = (self.speed < 1.0 - 1e-9) & (pods > 0.0)
        counted.squeezed_s += float(squeezed.sum()) * step_s
        counted.squeezes += int((squeezed & ~self.squeezed).sum())
        self.squeezed = squeezed


def _by_cell(rows: list["array[float]"]) -> Floats32:
    """One row per cell, from one per node."""
    if not rows:
        return np.empty((0, 0), np.float32)
    return np.ascontiguousarray(np.array([np.frombuffer(row, np.float32) for row in rows]).T)
