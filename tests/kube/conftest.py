"""A node's client of a fake API server, and the bench of what works by it."""

import asyncio
import random
from contextlib import asynccontextmanager

import pytest

from criproxy.kube.client import ApiClient, Timeouts
from criproxy.kube.credential import Credential
from tests.fakes.apiserver import FakeApiServer, Pki
from tests.fakes.clock import FakeClock
from tests.fakes.log import FakeLog


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture
def api(authority):
    with FakeApiServer(authority).running() as server:
        server.put_node()
        yield server


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def credential(api, authority):
    return Credential(authority.kubeconfig(api.port))


@pytest.fixture
def client(credential, clock):
    return ApiClient(credential, clock, random.Random(7), Timeouts(connect_s=5.0, answer_s=5.0, silence_s=5.0))


class KubeBench:
    """A fake API server's node1, with a client, a clock and a log."""

    def __init__(self, credential, clock, api=None, timeouts=None):
        self.api, self.clock, self.log = api, clock, FakeLog()
        self.client = ApiClient(credential, clock, random.Random(5), *([timeouts] if timeouts else []))

    @property
    def how(self):
        return {"clock": self.clock, "rng": random.Random(5), "log": self.log}

    def node(self):
        return self.api.nodes["node1"]

    def annotation(self, name):
        return self.node().get("metadata", {}).get("annotations", {}).get(name)

    @asynccontextmanager
    async def running(self, *parts):
        """Meanwhile the parts run; each ends when it is cancelled, and by nothing else."""
        tasks = [asyncio.create_task(part.run()) for part in parts]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(one) for one in ends] == [asyncio.CancelledError] * len(tasks)
