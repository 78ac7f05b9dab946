from collections.abc import Callable, Iterator

import pytest

from integration.control_plane.cluster import POLICIES, SOON_S, Cluster, joined
from integration.lab import cluster_side
from integration.lab.cluster_side import Replica
from integration.lab.control_plane import wait_for


@pytest.fixture(scope="module")
def cluster(say: Callable[[str], object]) -> Iterator[Cluster]:
    with joined(say) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def replica(cluster: Cluster) -> Iterator[Replica]:
    """The cluster's side, with a policy that has the node lend a core however busy this machine is."""
    cluster_side.install(cluster.plane)
    made = Replica(cluster.plane, "replica")
    made.take_webhooks()
    made.start()
    wait_for(made.leads, SOON_S, "the replica to lead")
    policy = {
        "apiVersion": "colocation.criproxy.io/v1alpha1",
        "kind": "ColocationPolicy",
        "metadata": {"name": "all"},
        "spec": {"settings": {"cpu": {"min_cores": 1.0}}},
    }
    cluster.plane.call("POST", POLICIES, policy)
    yield made
    made.process.kill()
