"""What the webhook serves: reviews, and whether it is well. What is answered to a review is `admission`'s."""

import time
from typing import Final, Protocol

from structlog.typing import FilteringBoundLogger

from criproxy_cluster.metrics import TEXT, WebhookMetrics
from criproxy_cluster.webhook.admission import ReviewError, answer
from criproxy_cluster.webhook.conversion import ConversionSettings
from criproxy_cluster.webhook.front import Reply
from criproxy_cluster.webhook.overflow import NEVER, Decides

MAX_BODY_BYTES: Final = 3 << 20
"""The API server takes objects of 3 MiB at most; a pod that etcd takes has 1.5 MiB. What is read of such a body may
take 25 times as much memory.
"""

CONVERT: Final = "/convert"


class IsReady(Protocol):
    """Whether calls can be answered: there is a certificate."""

    @property
    def ready(self) -> bool: ...


class WebhookAnswers:
    def __init__(
        self,
        settings: ConversionSettings,
        readiness: IsReady,
        log: FilteringBoundLogger,
        metrics: WebhookMetrics | None = None,
        overflow: Decides = NEVER,
    ) -> None:
        self._settings = settings
        self._readiness = readiness
        self._log = log
        self._metrics = metrics or WebhookMetrics()
        self._overflow = overflow

    @property
    def most_bytes(self) -> int:
        return MAX_BODY_BYTES

    def answer(self, method: str, path: str, body: bytes | bytearray, *, ending: bool) -> Reply:
        match method, path:
            case "POST", "/convert":
                return self._convert(body)
            case "GET" | "HEAD", "/healthz":
                return Reply(200, b"ok\n")
            case "GET" | "HEAD", "/readyz":
                return self._ready(ending)
            case "GET" | "HEAD", "/metrics":
                return Reply(200, self._metrics.registry.render(), TEXT)
            case _, "/convert" | "/healthz" | "/readyz" | "/metrics":
                return _wrong(405, f"{path} has no such method")
            case _:
                return _wrong(404, f"there are {CONVERT}, /healthz, /readyz and /metrics")

    def _convert(self, body: bytes | bytearray) -> Reply:
        began_s = time.perf_counter()
        outcome, reply = self._reviewed(body)
        self._metrics.reviewed(outcome, time.perf_counter() - began_s)
        return reply

    def _reviewed(self, body: bytes | bytearray) -> tuple[str, Reply]:
        try:
            answered = answer(body, self._settings, self._overflow)
            return answered.outcome, Reply(200, answered.body, "application/json")
        except ReviewError as error:
            self._log.warning("review_not_read", error=str(error))
            return "unreadable", _wrong(400, str(error))
        except Exception as error:  # a fault of ours must not take the replica with it
            self._log.error("review_failed", exc_info=error)
            return "failed", _wrong(500, f"{type(error).__name__}: {error}")

    def _ready(self, ending: bool) -> Reply:
        if ending:
            return _wrong(503, "this replica ends")
        return Reply(200, b"ok\n") if self._readiness.ready else _wrong(503, "there is no certificate yet")


def _wrong(status: int, why: str) -> Reply:
    return Reply(status, f"criproxy: {why}\n".encode(errors="replace"))
