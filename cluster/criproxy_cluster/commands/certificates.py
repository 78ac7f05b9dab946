"""`criproxy-cluster certificates`: makes what is due of a webhook's certificates, and ends."""

import asyncio
import sys
from datetime import UTC, datetime

from lightkube.core.async_client import AsyncClient

from criproxy_cluster.certificates.keeper import CertificateKeeper, Kept
from criproxy_cluster.log import begin
from criproxy_cluster.requests import Trouble, prepare


def main(kept: Kept) -> int:
    try:
        asyncio.run(_keep(kept))
    except Trouble as trouble:
        print(f"criproxy-cluster: {trouble}", file=sys.stderr)
        return 1
    return 0


async def _keep(kept: Kept) -> None:
    async with AsyncClient(field_manager="criproxy-cluster") as client:
        prepare(client)
        await CertificateKeeper(client, client.namespace, begin(), kept).keep(datetime.now(UTC))
