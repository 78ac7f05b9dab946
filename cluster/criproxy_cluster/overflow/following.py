"""Follows the book of owners, for a webhook that overflows."""

from collections.abc import Mapping
from typing import Final

from lightkube.core.async_client import AsyncClient
from structlog.typing import FilteringBoundLogger

from criproxy_cluster.controller.follower import Follower, Hearing
from criproxy_cluster.overflow.resources import BOOK, KEY, WRITTEN, BookResource
from criproxy_cluster.vocabulary.times import wall_s
from criproxy_cluster.vocabulary.watching import Item
from criproxy_cluster.webhook.overflow import Overflow

ONE: Final = {"fieldSelector": f"metadata.name={BOOK}"}


async def follow(client: AsyncClient, overflow: Overflow, log: FilteringBoundLogger) -> None:
    """Until cancelled: it hears of each book."""

    def changed(item: Item[BookResource]) -> None:
        if item.event == "DELETED":
            overflow.forget()
        elif item.value is not None:
            meta = item.value.metadata
            written_s = _written_s(meta.annotations or {}) if item.event == "LISTED" else None
            try:
                overflow.hear((item.value.data or {}).get(KEY, ""), meta.resource_version, written_s)
            except ValueError as error:
                log.warning(
                    "owners_unreadable", error=str(error), consequence="what was known before holds for minutes"
                )

    def listed(names: set[str]) -> None:
        if BOOK not in names:
            overflow.forget()

    await Follower(client, BookResource, changed, listed, hearing=Hearing(), log=log, query=ONE).run()


def _written_s(annotations: Mapping[str, str]) -> float:
    """When the book that is listed was; one that does not say so is of old."""
    try:
        return wall_s(annotations[WRITTEN])
    except (KeyError, ValueError):
        return 0.0
