"""What one side writes into Kubernetes' objects, the other reads."""

import msgspec
import pytest

from criproxy.hooks import batch
from criproxy.kube import publisher
from criproxy.kube.extended_resources import Offer
from criproxy.kube.objects import Condition, status_patch
from criproxy.model import Asked, ContainerKind
from criproxy_cluster.objects import NodeObject, view
from criproxy_cluster.vocabulary import names
from criproxy_cluster.webhook import conversion


@pytest.mark.parametrize(
    ("offered", "reason", "empty"),
    [
        pytest.param(Offer({}, held="online waits"), names.HELD, True, id="held"),
        pytest.param(Offer({}, withheld="off", pods=frozenset({"a"})), names.OCCUPIED, False, id="occupied"),
    ],
)
def test_a_reason_is_understood(offered: Offer, reason: str, empty: bool) -> None:
    assert publisher.reason(offered) == reason
    condition = Condition(names.CONDITION, "False", reason, "", "2023-11-14T22:13:20Z", "2023-11-14T22:13:20Z")
    node = msgspec.json.decode(status_patch({}, condition, {}), type=NodeObject)
    assert (view(node).reason, view(node).empty) == (reason, empty)


def test_what_the_webhook_records_is_what_the_node_s_hook_reads() -> None:
    resources = {"requests": {"cpu": "1500m", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}
    pod = {
        "metadata": {"name": "a", "labels": {names.CLASS: names.OFFLINE}},
        "spec": {
            "initContainers": [{"name": "first", "resources": {"limits": {"cpu": "250m", "memory": "64Mi"}}}],
            "containers": [{"name": "main", "resources": resources}, {"name": "side"}],
        },
    }
    found = conversion.converted(pod, conversion.ConversionSettings())
    assert batch.asked_by(found["metadata"]["annotations"]) == {
        "first": Asked(256, 64 << 20, 250, ContainerKind.INIT),
        "main": Asked(1536, 2 << 30),
        "side": Asked(),
    }
