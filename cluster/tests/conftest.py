import pytest
import structlog

from cluster.tests.fake_kube import FakeKube


@pytest.fixture
def kube():
    with FakeKube().running() as api:
        yield api


@pytest.fixture
def log():
    return structlog.wrap_logger(structlog.ReturnLogger())
