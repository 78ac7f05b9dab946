"""What the simulated scheduler tries is what has room somewhere, however many kinds of pods wait."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from criproxy.commands.simulate.cluster.queue import Backlog, Room
from criproxy.commands.simulate.cluster.record import PodsToCome

GIB = 2.0**30
amounts = st.integers(0, 12)
nodes = st.lists(st.tuples(amounts, st.one_of(amounts, st.just(-1e-10))), max_size=6)
shapes = st.lists(st.tuples(st.integers(1, 12), amounts), max_size=8)


def room(nodes, *, memory=True):
    cpu = np.array([cpu / 4 for cpu, _ in nodes])
    free = np.array([gib * GIB for _, gib in nodes]) if memory else None
    return Room(cpu.copy(), cpu, free if free is None else free.copy(), free)


@given(nodes, shapes, st.booleans())
def test_what_is_said_to_fit_is_what_some_node_has_room_for(nodes, shapes, memory):
    free = room(nodes, memory=memory)
    cpu, held = np.array([cpu / 4 for cpu, _ in shapes]), np.array([gib * GIB for _, gib in shapes])
    one_by_one = [bool(free.fits(*shape).sum()) for shape in zip(cpu, held, strict=True)]
    assert free.holds(cpu, held).tolist() == one_by_one


@given(nodes, shapes)
def test_nothing_waits_that_would_fit_and_nothing_is_placed_where_there_is_no_room(nodes, shapes):
    jobs = [PodsToCome(arrival_s=0.0, cpu=cpu / 4, memory=gib * GIB, duration_s=60.0, count=1) for cpu, gib in shapes]
    free, queue = room(nodes), Backlog(jobs, np.random.default_rng(0))
    placed = queue.place(0.0, free)
    assert (free.free_cpu >= -1e-6).all()
    assert (free.free_memory >= -1.0).all()
    begun = 0 if placed is None else len(placed.node)
    assert begun + queue.waiting(0.0).jobs == len(jobs)
    assert queue.place(30.0, free) is None
