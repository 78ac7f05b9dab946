"""Whose turn it is: one owner, one pending retry, and pauses that nothing jumps."""

import asyncio
import itertools

from criproxy_cluster.controller.queue import Queue, Urgency

CHANGED, DUE, ROLL_OUT = Urgency


def test_a_queue_has_each_name_once_and_by_its_highest_urgency():
    async def scenario():
        queue = Queue()
        puts = (("a", ROLL_OUT), ("b", ROLL_OUT), ("b", CHANGED), ("b", DUE), ("c", ROLL_OUT), ("c", DUE), ("d", DUE))
        for name, urgency in puts:
            queue.put(name, urgency)
        assert len(queue) == 4
        assert await queue.get(CHANGED) == ("b", CHANGED)
        assert [await queue.get(DUE, ROLL_OUT) for _ in range(3)] == [("c", DUE), ("d", DUE), ("a", ROLL_OUT)]
        assert len(queue) == 0

        waiting = asyncio.create_task(queue.get(CHANGED))
        await asyncio.sleep(0)
        queue.put("e", ROLL_OUT)
        await asyncio.sleep(0)
        assert not waiting.done(), "what is less urgent is left to others"
        queue.put("e", CHANGED)
        assert await waiting == ("e", CHANGED)
        assert len(queue) == 0

    asyncio.run(scenario())


def test_a_name_that_is_at_work_has_no_second_writer_and_comes_again_with_what_came_meanwhile():
    async def scenario():
        queue = Queue()
        queue.put("a", ROLL_OUT)
        assert await queue.get(ROLL_OUT) == ("a", ROLL_OUT)
        for urgency in (DUE, CHANGED, ROLL_OUT):
            queue.put("a", urgency)
        assert len(queue) == 0
        queue.done("a")
        assert await queue.get(CHANGED) == ("a", CHANGED)
        queue.done("a")
        assert len(queue) == 0

    asyncio.run(scenario())


def test_no_event_jumps_a_pause_nor_begins_another_chain_of_retries(stepped):
    """60 events while each write fails: at most as many tries as the pauses allow."""

    async def scenario():
        queue, tries = Queue(), []
        now_s = asyncio.get_running_loop().time

        async def write():
            while True:
                name, urgency = await queue.get(CHANGED)
                tries.append(now_s())
                queue.failed(name, urgency)

        writers = [asyncio.create_task(write()) for _ in range(4)]
        for _ in range(60):
            queue.put("a", CHANGED)
            await asyncio.sleep(1.0)
        pauses = [after - before for before, after in itertools.pairwise(tries)]
        assert len(tries) <= 12
        assert all(pause_s >= 0.25 * 2**number for number, pause_s in enumerate(pauses[:6]))
        before = len(tries)
        await asyncio.sleep(300.0)
        assert len(tries) - before <= 300.0 / 15.0 + 1, "and there is no more of them for all that came"
        for writer in writers:
            writer.cancel()

    stepped(scenario())


def test_a_success_ends_a_row_of_failures(stepped):
    async def scenario():
        queue = Queue()
        for wanted in (1, 2, 3):
            queue.put("a", DUE)
            assert queue.failed(*await queue.get(DUE)) == wanted
        queue.put("a", CHANGED)
        assert await queue.get(DUE, CHANGED) == ("a", CHANGED), "with the highest urgency that came while it rested"
        queue.done("a")
        queue.put("a", DUE)
        assert queue.failed(*await queue.get(DUE)) == 1

    stepped(scenario())


def test_what_is_no_more_is_not_tried_again(stepped):
    async def scenario():
        queue = Queue()
        for name in "abc":
            queue.put(name, DUE)
        queue.failed(*await queue.get(DUE))
        queue.forget("a")
        queue.forget("b")
        assert await queue.get(DUE) == ("c", DUE)
        queue.failed("c", DUE)
        queue.close()
        await asyncio.sleep(100.0)
        assert len(queue) == 0

    stepped(scenario())
