"""What a plan knows of what a node publishes."""

from fractions import Fraction

from criproxy_cluster.objects import Meta, NodeObject, NodeStatus, published


def test_published_is_what_can_be_read_of_the_names_that_the_node_publishes():
    names = {"colocation.criproxy.io/publishes": "example.com/cores,example.com/bytes"}
    amounts = {"example.com/cores": "4", "example.com/bytes": "?", "kubernetes.io/batch-cpu": "7", "cpu": "15"}

    found = published(NodeObject(Meta("n", annotations=names), status=NodeStatus(allocatable=amounts)))

    assert found == {"example.com/cores": Fraction(4)}
