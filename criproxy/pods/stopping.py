"""Stops pods at the runtime, each once, and those again that did not stop."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog

from criproxy.model import PodRef


class Evictions:
    """`stop_sandbox` stops one at the runtime and raises ConnectionError."""

    def __init__(self, stop_sandbox: Callable[[str], Awaitable[None]]) -> None:
        self._stop_sandbox = stop_sandbox
        self._done: set[str] = set()
        self._log = structlog.get_logger()

    @property
    def done(self) -> frozenset[str]:
        """The sandboxes that were stopped, of those that were last to be."""
        return frozenset(self._done)

    async def carry_out(self, wanted: Mapping[str, tuple[PodRef, str]]) -> None:
        """Stop these, by sandbox id, for these reasons. Raises what `stop_sandbox` does, after all were tried."""
        self._done &= wanted.keys()
        # At once: one that will not stop must not keep the others.
        stops = [self._stop(one, pod, why) for one, (pod, why) in wanted.items() if one not in self._done]
        failures = [error for error in await asyncio.gather(*stops, return_exceptions=True) if error is not None]
        if failures:
            raise failures[0]

    async def _stop(self, sandbox_id: str, pod: PodRef, why: str) -> None:
        self._log.warning("evict", pod=str(pod), pod_uid=pod.uid, reason=why)
        await self._stop_sandbox(sandbox_id)
        self._done.add(sandbox_id)
