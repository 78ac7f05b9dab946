"""Follows the book of owners, for a webhook that overflows."""

from typing import Final

from lightkube.core.async_client import AsyncClient
from structlog.typing import FilteringBoundLogger

from criproxy_cluster.controller.follower import Follower, Hearing
from criproxy_cluster.overflow.resources import BOOK, KEY, BookResource
from criproxy_cluster.vocabulary.watching import Item
from criproxy_cluster.webhook.overflow import Overflow

ONE: Final = {"fieldSelector": f"metadata.name={BOOK}"}


async def follow(client: AsyncClient, overflow: Overflow, log: FilteringBoundLogger) -> None:
    """Until cancelled: it hears of each book."""

    def changed(item: Item[BookResource]) -> None:
        if item.event == "DELETED":
            overflow.forget()
        elif item.value is not None:
            try:
                overflow.hear((item.value.data or {}).get(KEY, ""))
            except ValueError as error:
                log.warning(
                    "owners_unreadable", error=str(error), consequence="what was known before holds for minutes"
                )

    def listed(names: set[str]) -> None:
        if BOOK not in names:
            overflow.forget()

    await Follower(client, BookResource, changed, listed, hearing=Hearing(), log=log, query=ONE).run()
