"""`criproxy withdraw`: what this node lends becomes 0 in its Node's status, as nobody bounds offline pods here now.

criproxy publishes 0 itself when colocation is off. When it is away, this does: criproxy-withdraw.timer calls it 15
minutes after criproxy has ended, unless it is back. Where the node itself is away, the cluster's side sees by the age
of the condition's heartbeat that nobody reports.
"""

import asyncio
import random
from pathlib import Path
from typing import Final

from criproxy.concurrency.clock import Clock
from criproxy.config import Config
from criproxy.kube.client import STRATEGIC_MERGE_PATCH, ApiClient, ApiRequest, UnreachableError
from criproxy.kube.credential import KUBECONFIG, Credential, CredentialError, node_name
from criproxy.kube.objects import Condition, Node, ObjectError, decoded, path, status_of, status_patch
from criproxy.kube.publisher import resources_of
from criproxy.kube.retry import Meaning
from criproxy.kubelet.process import client
from criproxy.observe import client as observed
from criproxy.vocabulary.names import AWAY, CONDITION, PUBLISHES
from criproxy.vocabulary.published import annotation_of, names_of
from criproxy.vocabulary.times import rfc3339

_ASK_S: Final = 2.0
_WHY: Final = "criproxy does not run on this node: nothing is lent"


class NotWithdrawnError(Exception):
    """The reason, with the remedy."""


def withdraw(config: Config, mark: Path) -> str:
    """Returns what was done, in words. The `mark` that the node publishes goes with its annotation.

    Raises NotWithdrawnError.
    """
    settings = config.kubernetes
    if not settings.enabled:
        return "nothing to withdraw: this node publishes nothing (kubernetes.enabled)"
    if _runs(Path(config.proxy.status_path)):
        if not settings.publish:
            raise NotWithdrawnError("criproxy runs, and takes back what it published by itself; see `criproxy status`")
        remedy = "set kubernetes.publish = false, and it takes back what it published"
        raise NotWithdrawnError(f"criproxy runs, and would publish again: {remedy}")
    try:
        kubelets, given = client()
        credential = Credential(Path(settings.kubeconfig or kubelets or KUBECONFIG))
        node = node_name(credential.access(), given)
    except (OSError, CredentialError) as error:
        raise NotWithdrawnError(str(error)) from error
    names = [resource.name for resource in resources_of(settings)]
    done = asyncio.run(_publish_nothing(credential, node, names, publish=settings.publish))
    if not settings.publish:
        try:
            mark.unlink(missing_ok=True)
        except OSError as error:
            return f"{done}; remove {mark}, which could not be: {error}"
    return done


def _runs(socket: Path) -> bool:
    try:
        observed.fetch(socket, "/healthz", _ASK_S)
    except observed.NotRunningError:
        return False
    except observed.AskError as error:
        raise NotWithdrawnError(str(error)) from error
    return True


async def _publish_nothing(credential: Credential, node: str, names: list[str], *, publish: bool) -> str:
    """Returns what was done. `names` are those of the config. Others that were published before it was changed go.

    Without `publish`, all names are left to others, as the daemon leaves them. The Node's annotation has those that are
    still ours: the API server may have been away when it was switched off.
    """
    clock = Clock()
    client = ApiClient(credential, clock, random.Random())
    found = await _answer(client, ApiRequest("GET", path("nodes", node)))
    try:
        annotation = decoded(found, Node).annotation(PUBLISHES)
    except ObjectError as error:
        raise NotWithdrawnError(str(error)) from error
    left = names_of(annotation)
    if not publish:
        if annotation is None:
            return f"nothing to withdraw: node {node} publishes nothing (kubernetes.publish)"
        names = [name for name in names if name in left]
    now = rfc3339(clock.wall_s())
    condition = Condition(CONDITION, "False", AWAY, _WHY, now, now)
    quantities = {**dict.fromkeys(left), **dict.fromkeys(names, 0)}
    patch = status_patch(quantities, condition, {PUBLISHES: annotation_of(names) if publish else None})
    await _answer(client, ApiRequest("PATCH", path("nodes", node, "status"), patch, STRATEGIC_MERGE_PATCH))
    zero = f": {', '.join(names)} are 0" if names else ""
    return f"node {node} lends nothing{zero}"


async def _answer(client: ApiClient, request: ApiRequest) -> bytes:
    """Raises NotWithdrawnError."""
    try:
        answer = await client.ask_again(request)
    except UnreachableError as error:
        raise NotWithdrawnError(f"the API server does not answer: {error}; try again") from error
    if answer.meaning is not Meaning.DONE:
        raise NotWithdrawnError(f"the API server answers {answer.status} {status_of(answer.body).message}")
    return answer.body
