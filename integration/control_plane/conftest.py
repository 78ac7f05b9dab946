from collections.abc import Callable, Iterator

import pytest

from integration.control_plane.cluster import Cluster, joined


@pytest.fixture(scope="module")
def cluster(say: Callable[[str], object]) -> Iterator[Cluster]:
    with joined(say) as cluster:
        yield cluster
