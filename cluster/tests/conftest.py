import pytest
import structlog

from cluster.tests import stepped as stepping
from cluster.tests.fake_kube import FakeKube


@pytest.fixture
def stepped(monkeypatch):
    """Runs a scenario in stepped time, with `kube` in memory. No list of its few nodes is followed by a search for
    garbage in all that the tests hold.
    """
    monkeypatch.setattr("criproxy_cluster.controller.controller.settle", lambda: None)
    for module in ("controller", "follower", "leader"):
        monkeypatch.setattr(f"criproxy_cluster.controller.{module}.time", stepping.SteppedTime())
    return stepping.run


@pytest.fixture
def kube(request):
    """Over HTTP, but where time is stepped."""
    api = FakeKube()
    if "stepped" in request.fixturenames:
        yield api
    else:
        with api.running():
            yield api


@pytest.fixture
def log():
    return structlog.wrap_logger(structlog.ReturnLogger())
