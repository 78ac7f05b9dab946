import pytest

from cluster.integration.objects import until
from integration.lab import control_plane
from integration.lab.clocks import wrong_clock
from integration.lab.cluster_side import install
from integration.lab.control_plane import ControlPlane


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    """A control plane of the module's own, with the manifests applied, whose nodes are never found not ready."""
    directory = tmp_path_factory.mktemp("cluster")
    made = ControlPlane(directory, wrong_clock(-24))
    try:
        made.start(lifecycle=False)
        install(made)
        until(lambda: made.exists("/api/v1/namespaces/default/serviceaccounts/default"))
        yield made
    finally:
        control_plane.end(directory)
