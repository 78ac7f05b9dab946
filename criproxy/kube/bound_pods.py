"""The pods that are bound to this node and have not ended, as the API server tells of them."""

from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import urlencode

from criproxy.kube import client as kube_client
from criproxy.kube.client import ApiRequest, Asks, LargeAnswerError, RejectedError
from criproxy.kube.objects import BoundPod, ObjectError
from criproxy.kube.retry import Meaning
from criproxy.vocabulary.watching import Page, UnreadableError, next_limit, read_page

_PAGE: Final = 64


async def bound_pods(client: Asks, node: str) -> tuple[BoundPod, ...]:
    """All of them, but for those that can't be read. Raises UnreachableError, RejectedError or ObjectError.

    They are asked for at once, of the API server's cache. Only where that is more than one answer may have, they come
    in pages, which the cache may not know: a pod may have 9 MiB of JSON, of 1.5 MiB that etcd keeps of it.
    """
    try:
        page, _ = await _page(client, node, {"resourceVersion": "0"})
        return _read(page)
    except LargeAnswerError:
        return tuple([pod async for pod in _paged(client, node)])


async def _paged(client: Asks, node: str) -> AsyncIterator[BoundPod]:
    most, more = _PAGE, ""
    while True:
        chosen = {"limit": str(most)} | ({"continue": more} if more else {})
        try:
            page, size_bytes = await _page(client, node, chosen)
        except LargeAnswerError:
            if most == 1:
                raise
            most //= 2
            continue
        for pod in _read(page):
            yield pod
        if not (more := page.more):
            return
        most = next_limit(most, _PAGE, size_bytes, kube_client.MAX_BODY_BYTES)


async def _page(client: Asks, node: str, chosen: dict[str, str]) -> tuple[Page[BoundPod], int]:
    """A page, and how many bytes it had."""
    # Kubelet keeps its pods that have ended, until somebody removes them: there may be thousands.
    fields = f"spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"
    answer = await client.ask(ApiRequest("GET", "/api/v1/pods?" + urlencode({"fieldSelector": fields} | chosen)))
    if answer.meaning is not Meaning.DONE:
        raise RejectedError(answer)
    try:
        return read_page(answer.body, BoundPod), len(answer.body)
    except UnreadableError as error:
        raise ObjectError(f"not a list of pods: {error}") from error


def _read(page: Page[BoundPod]) -> tuple[BoundPod, ...]:
    return tuple(item.value for item in page.items if item.value is not None)
