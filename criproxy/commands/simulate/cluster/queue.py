"""What waits for room, and where the scheduler puts it. Needs numpy.

The scheduler is the same for all laws: it looks each step, takes shapes (what a pod asks for) by the age of their
oldest job, fills what fits, and where not all nodes are needed takes those that have most free of what they lend, one
pod a node at a time, as kube-scheduler's LeastAllocated on what is lent does.
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from criproxy.commands.simulate.cluster.record import PodsToCome

ENDLESS_CORES: Final = 1.0
ENDLESS_MEAN_S: Final = 600.0
LEAST_S: Final = 1.0

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_LEAST: Final = 1e-6
"""What a sum of floats may lack to a whole pod."""


class Room(Struct):
    """What nodes lend and what of it is free: per node, cores and bytes. Placing takes from what is free."""

    lent_cpu: Floats
    free_cpu: Floats
    lent_memory: Floats | None
    free_memory: Floats | None

    def fits(self, cpu: float, memory: float) -> Ints:
        """How many such pods fit, per node."""
        counts = np.floor(self.free_cpu / cpu + _LEAST)
        if memory and self.free_memory is not None:
            counts = np.minimum(counts, np.floor(self.free_memory / memory + _LEAST))
        whole: Ints = np.maximum(counts, 0.0).astype(np.int64)
        return whole

    def holds(self, cpu: Floats, memory: Floats) -> Bools:
        """Which of these shapes fit somewhere, as `fits` counts but for the last bit of what may be lacking."""
        order = np.argsort(self.free_cpu)
        first = np.searchsorted(self.free_cpu[order], cpu * (1.0 - _LEAST))
        held = first < len(order)
        if self.free_memory is not None:
            most = np.append(np.maximum.accumulate(self.free_memory[order][::-1])[::-1], -np.inf)
            held &= (memory == 0.0) | (memory * (1.0 - _LEAST) <= most[first])
        return held

    def take(self, counts: Ints, cpu: float, memory: float) -> None:
        self.free_cpu -= counts * cpu
        if self.free_memory is not None:
            self.free_memory -= counts * memory

    def score(self) -> Floats:
        """The free share of what is lent."""
        score: Floats = self.free_cpu / np.maximum(self.lent_cpu, _LEAST)
        if self.free_memory is not None and self.lent_memory is not None:
            score = score + self.free_memory / np.maximum(self.lent_memory, _LEAST)
        return score


class Placed(Struct):
    """Pods that begin, one entry each. `born_s`: when the job began first; NaN: now."""

    node: Ints
    cpu: Floats
    memory: Floats
    duration_s: Floats
    arrival_s: Floats
    born_s: Floats


class Waiting(Struct):
    """How many pods wait, how many core-hours of work they are, and of those that never began, s and how many came."""

    jobs: int = 0
    core_hours: float = 0.0
    not_begun: list[tuple[float, int]] = field(default_factory=list)


class Endless:
    """Pods of one core and no memory that never end to come, of 10 minutes on average, exponentially distributed."""

    finite: Final = False

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def place(self, t_s: float, room: Room) -> Placed | None:
        counts = room.fits(ENDLESS_CORES, 0.0)
        total = int(counts.sum())
        if not total:
            return None
        return Placed(
            np.repeat(np.arange(len(counts)), counts),
            np.full(total, ENDLESS_CORES),
            np.zeros(total),
            np.maximum(self._rng.exponential(ENDLESS_MEAN_S, total), LEAST_S),
            np.full(total, t_s),
            np.full(total, np.nan),
        )

    def back(self, gone: Placed) -> None:
        """Pods that were evicted: others come in their place, as there is no end of them."""

    def waiting(self, t_s: float) -> "Waiting":
        return Waiting()


class _Lot(Struct):
    arrival_s: float
    duration_s: float
    born_s: float
    count: int


class Backlog:
    """Jobs of a list: first come, first served within a shape; what fits nowhere lets others by."""

    finite: Final = True

    def __init__(self, jobs: Sequence[PodsToCome], rng: np.random.Generator) -> None:
        self._to_come = deque(sorted(jobs, key=lambda job: job.arrival_s))
        self._shapes = list(dict.fromkeys((job.cpu, job.memory) for job in self._to_come))
        self._numbers = {shape: number for number, shape in enumerate(self._shapes)}
        self._cpu, self._memory = np.array(self._shapes, np.float64).reshape(-1, 2).T
        self._lots = [deque[_Lot]() for _ in self._shapes]
        self._oldest_s = np.full(len(self._shapes), np.inf)
        """Per shape, when its first lot came; infinite: there is none."""
        self._rng = rng

    def place(self, t_s: float, room: Room) -> Placed | None:
        self._arrive(t_s)
        placed = []
        waiting = np.argsort(self._oldest_s, kind="stable")[: np.count_nonzero(np.isfinite(self._oldest_s))]
        waiting = self._that_fit(waiting, room)
        while len(waiting):
            number, waiting = int(waiting[0]), waiting[1:]
            if (found := self._fill(number, room)) is not None:
                placed.append(found)
            else:
                waiting = self._that_fit(waiting, room)
        return joined(placed)

    def _arrive(self, t_s: float) -> None:
        while self._to_come and self._to_come[0].arrival_s <= t_s:
            job = self._to_come.popleft()
            number = self._numbers[job.cpu, job.memory]
            self._lots[number].append(_Lot(job.arrival_s, job.duration_s, np.nan, job.count))
            self._oldest_s[number] = self._lots[number][0].arrival_s

    def _that_fit(self, shapes: Ints, room: Room) -> Ints:
        return shapes[room.holds(self._cpu[shapes], self._memory[shapes])] if len(shapes) else shapes

    def _fill(self, number: int, room: Room) -> Placed | None:
        """`None`: one of this shape fits nowhere."""
        shape, lots = self._shapes[number], self._lots[number]
        fits = room.fits(*shape)
        total = int(fits.sum())
        if not total:
            return None
        wanted = 0
        for lot in lots:
            wanted += lot.count
            if wanted >= total:
                break
        counts = fits if wanted >= total else self._spread(wanted, fits, shape, room)
        total = min(wanted, total)
        room.take(counts, *shape)
        nodes = np.repeat(np.arange(len(counts)), counts)
        self._rng.shuffle(nodes)
        taken = list[tuple[float, float, float, int]]()
        left = total
        while left:
            lot = lots[0]
            count = min(left, lot.count)
            taken.append((lot.arrival_s, lot.duration_s, lot.born_s, count))
            lot.count -= count
            left -= count
            if not lot.count:
                lots.popleft()
        self._oldest_s[number] = lots[0].arrival_s if lots else np.inf
        arrivals, durations, births, numbers = (np.array(column) for column in zip(*taken, strict=True))
        return Placed(
            nodes,
            np.full(total, shape[0]),
            np.full(total, shape[1]),
            np.repeat(durations, numbers),
            np.repeat(arrivals, numbers),
            np.repeat(births, numbers),
        )

    def _spread(self, wanted: int, fits: Ints, shape: tuple[float, float], room: Room) -> Ints:
        """Which nodes get how many: in turns, the best of those that have room first; equals by lot."""
        counts = np.zeros_like(fits)
        score = room.score() + 1e-9 * self._rng.random(len(fits))
        step = shape[0] / np.maximum(room.lent_cpu, _LEAST)
        if shape[1] and room.lent_memory is not None:
            step = step + shape[1] / np.maximum(room.lent_memory, _LEAST)
        while wanted:
            able = np.flatnonzero(counts < fits)
            if wanted < len(able):
                now = score[able] - counts[able] * step[able]
                able = able[np.argpartition(-now, wanted - 1)[:wanted]]
            counts[able] += 1
            wanted -= len(able)
        return counts

    def back(self, gone: Placed) -> None:
        """Pods that were evicted wait again, before the others of their shape, and begin anew."""
        rows = zip(gone.cpu, gone.memory, gone.arrival_s, gone.duration_s, gone.born_s, strict=True)
        for cpu, memory, arrival_s, duration_s, born_s in rows:
            number = self._numbers[float(cpu), float(memory)]
            self._lots[number].appendleft(_Lot(float(arrival_s), float(duration_s), float(born_s), 1))
            self._oldest_s[number] = arrival_s

    def waiting(self, t_s: float) -> Waiting:
        """What waits at this time, which is that of the last look or later."""
        self._arrive(t_s)
        found = Waiting()
        for (cpu, _), lots in zip(self._shapes, self._lots, strict=True):
            for lot in lots:
                found.jobs += lot.count
                found.core_hours += lot.count * cpu * lot.duration_s / 3600.0
                if math.isnan(lot.born_s):
                    found.not_begun.append((lot.arrival_s, lot.count))
        return found


def joined(parts: Sequence[Placed]) -> Placed | None:
    if len(parts) < 2:
        return parts[0] if parts else None
    columns = [np.concatenate([getattr(part, name) for part in parts]) for name in Placed.__struct_fields__]
    return Placed(*columns)
