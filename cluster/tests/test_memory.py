"""A replica that has read much looks through it for garbage no more."""

import gc

from criproxy_cluster.memory import settle


def test_what_was_read_is_not_looked_through_again_and_garbage_of_before_goes():
    try:
        settle()
        before = gc.get_freeze_count()
        nodes = [[number] for number in range(1000)]
        settle()
        assert gc.get_freeze_count() >= before + 900
        del nodes
        cycle: list[object] = []
        cycle.append(cycle)
        del cycle
        settle()
        assert gc.get_freeze_count() < before + 900
    finally:
        gc.unfreeze()
