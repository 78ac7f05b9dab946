"""`criproxy-cluster plan`: what other policies would change in the cluster that kubectl speaks to."""

from collections.abc import Collection, Iterator, Mapping
from fractions import Fraction
from typing import Any

from lightkube.core.client import Client
from lightkube.core.exceptions import ConfigError

from criproxy_cluster.commands.manifests import ManifestError, read_documents
from criproxy_cluster.commands.plan.changes import Plan, plan
from criproxy_cluster.controller.policies import Policy, PolicyError, parsed
from criproxy_cluster.objects import NodeView, published, view
from criproxy_cluster.requests import trouble_of
from criproxy_cluster.resources import NodeResource, PolicyResource
from criproxy_cluster.vocabulary.policy import KIND, PLURAL

PAGE = 500


def plan_change(file: str | None, deleted: Collection[str]) -> Plan:
    """With the policies of a file (None: no others), and without the deleted ones, which are names.

    Raises ManifestError, PolicyError or Trouble.
    """
    planned = (
        {policy.name: policy for policy in _policies(file, [one.value for one in read_documents(file)])}
        if file is not None
        else {}
    )
    if file is not None and not planned:
        raise ManifestError(f"{file}: there is no {KIND} in it: write one, or name another file")
    with trouble_of("the cluster"):
        try:
            client = Client()
        except ConfigError as error:
            raise ManifestError(f"there is no cluster: {error}: set KUBECONFIG") from error
        with client:
            present = {one.name: one for one in _present(client)}
            for name in sorted(set(deleted) - present.keys()):
                raise ManifestError(f"there is no {KIND} {name} that is in use: see `kubectl get {PLURAL}`")
            left = {name: policy for name, policy in {**present, **planned}.items() if name not in deleted}
            return plan(_nodes(client), present.values(), left.values())


def _policies(file: str, documents: list[Any]) -> Iterator[Policy]:
    for document in documents:
        if not isinstance(document, dict) or document.get("kind") != KIND:
            continue
        meta = document.get("metadata")
        name = meta.get("name") if isinstance(meta, dict) else None
        if not isinstance(name, str):
            raise ManifestError(f"{file}: a {KIND} has no metadata.name: write one")
        try:
            yield parsed(name, 0, document.get("spec"))
        except PolicyError as error:
            raise PolicyError(f"{file}: {KIND} {name}: {error}") from error


def _present(client: Client) -> Iterator[Policy]:
    """Those of the cluster that can be used: the others do nothing there either."""
    for one in client.list(PolicyResource, chunk_size=PAGE):
        try:
            yield parsed(one.metadata.name, one.metadata.generation, one.spec)
        except PolicyError:
            continue


def _nodes(client: Client) -> Iterator[tuple[NodeView, Mapping[str, Fraction]]]:
    return ((view(node), published(node)) for node in client.list(NodeResource, chunk_size=PAGE))
