"""The end of a replica, as a process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

CLUSTER = Path(__file__).parents[2]
HANGS = """
import asyncio, sys
from criproxy_cluster.commands import controller as module

async def goes_on():
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

async def run(*_):
    asyncio.create_task(goes_on())
    await asyncio.sleep(0.1)

class Client:
    def __init__(self, **_):
        pass

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

module.run, module.AsyncClient, module.prepare, module.END_S = run, Client, lambda _: None, 1
module.main()
"""


def test_a_task_that_goes_on_though_it_was_cancelled_keeps_no_process():
    began_s = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": str(CLUSTER)}
    ended = subprocess.run([sys.executable, "-c", HANGS], env=environment, timeout=60, check=False)
    assert ended.returncode == -signal.SIGALRM
    assert time.monotonic() - began_s < 30.0
