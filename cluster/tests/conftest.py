import pytest
import structlog

from cluster.tests import stepped as stepping
from cluster.tests.fake_kube import FakeKube


@pytest.fixture
def stepped(monkeypatch):
    """Runs a scenario in stepped time, with `kube` in memory. No list of its few nodes is followed by a search for
    garbage in all that the tests hold.
    """
    for module in ("controller.controller", "ledger.watching"):
        monkeypatch.setattr(f"criproxy_cluster.{module}.settle", lambda: None)
    clock = stepping.SteppedTime()
    for module in (
        "controller.controller",
        "controller.follower",
        "controller.leader",
        "ledger.watching",
        "quota.keeper",
        "overflow.keeper",
        "requests",
        "yarn.operator",
    ):
        monkeypatch.setattr(f"criproxy_cluster.{module}.time", clock)
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


@pytest.fixture
def short(monkeypatch):
    """A lease of a second."""
    for name, value in (("DURATION_S", 1.0), ("RETRY_S", 0.1), ("RENEW_WITHIN_S", 0.5), ("REQUEST_S", 0.2)):
        monkeypatch.setattr(f"criproxy_cluster.controller.lease_law.{name}", value)
    monkeypatch.setattr("criproxy_cluster.controller.leader.LOOK_S", 0.05)
