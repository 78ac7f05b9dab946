"""The door for the API server and for kube-scheduler's extender calls. What is said there is `reviews`'."""

from collections.abc import Coroutine
from typing import Any, Final, Protocol

from structlog.typing import FilteringBoundLogger

from criproxy_cluster.ledger import reviews
from criproxy_cluster.ledger.desk import AbstainedError, Desk
from criproxy_cluster.ledger.reviews import Asked, ReviewError
from criproxy_cluster.metrics import TEXT, LedgerMetrics
from criproxy_cluster.webhook.front import Reply

MAX_BODY_BYTES: Final = 3 << 20
BIND: Final = "/bind"
FILTER: Final = "/filter"


class IsReady(Protocol):
    @property
    def ready(self) -> bool: ...


class LedgerAnswers:
    def __init__(self, desk: Desk, certificate: IsReady, metrics: LedgerMetrics, log: FilteringBoundLogger) -> None:
        self._desk = desk
        self._certificate = certificate
        self._log = log
        self._metrics = metrics

    @property
    def most_bytes(self) -> int:
        return MAX_BODY_BYTES

    def answer(
        self, method: str, path: str, body: bytes | bytearray, *, ending: bool
    ) -> Reply | Coroutine[Any, Any, Reply]:
        match method, path:
            case "POST", "/bind" | "/filter":
                return self._asked(path, body)
            case "GET" | "HEAD", "/healthz":
                return Reply(200, b"ok\n")
            case "GET" | "HEAD", "/readyz":
                return self._ready(ending)
            case "GET" | "HEAD", "/metrics":
                return Reply(200, self._metrics.render(), TEXT)
            case _, "/bind" | "/filter" | "/healthz" | "/readyz" | "/metrics":
                return _wrong(405, f"{path} has no such method")
            case _:
                return _wrong(404, f"there are {BIND}, {FILTER}, /healthz, /readyz and /metrics")

    def _asked(self, path: str, body: bytes | bytearray) -> Reply | Coroutine[Any, Any, Reply]:
        try:
            if path == FILTER:
                pod, nodes = reviews.read_filter(body)
                return _json(reviews.filtered(nodes, self._desk.full(pod, nodes)))
            asked = reviews.read_review(body)
            return _json(reviews.answer(asked.review)) if self._desk.passes(asked) else self._bind(asked)
        except ReviewError as error:
            self._log.warning("review_not_read", error=str(error))
            return _wrong(400, str(error))
        except Exception as error:  # a fault of ours must not take the replica with it
            return self._failed(error)

    async def _bind(self, asked: Asked) -> Reply:
        try:
            verdict = await self._desk.bind(asked)
        except AbstainedError as why:
            return _wrong(503, f"abstains: {why}")
        except Exception as error:
            return self._failed(error)
        return _json(reviews.answer(asked.review, verdict.why))

    def _failed(self, error: Exception) -> Reply:
        self._log.error("review_failed", exc_info=error)
        return _wrong(500, f"{type(error).__name__}: {error}")

    def _ready(self, ending: bool) -> Reply:
        """Only who decides answers."""
        if ending or not self._desk.ready:
            return _wrong(503, "this replica ends" if ending else self._desk.abstains())
        return Reply(200, b"ok\n") if self._certificate.ready else _wrong(503, "there is no certificate yet")


def _json(body: bytes) -> Reply:
    return Reply(200, body, "application/json")


def _wrong(status: int, why: str) -> Reply:
    return Reply(status, f"criproxy: {why}\n".encode(errors="replace"))
