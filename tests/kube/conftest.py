"""A node's client of a fake API server."""

import random

import pytest

from criproxy.kube.client import ApiClient, Timeouts
from criproxy.kube.credential import Credential
from tests.fakes.apiserver import FakeApiServer, Pki
from tests.fakes.clock import FakeClock


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
