import pytest

from cluster.integration.objects import PODS, pod, until
from integration.lab import control_plane
from integration.lab.clocks import wrong_clock
from integration.lab.cluster_side import install
from integration.lab.control_plane import ApiError, ControlPlane


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


@pytest.fixture
def converted(plane):
    """The requests that a marked pod would have; None: the webhook can't be asked (yet)."""

    def ask():
        try:
            made = plane.call("POST", f"{PODS}?dryRun=All", pod("probe", {"cpu": "1500m"}))
        except ApiError as error:
            print(error)
            return None
        return made["spec"]["containers"][0]["resources"]["requests"]

    return ask
