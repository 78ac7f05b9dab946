"""What is to happen in one call, drawn at random, and what has come of it."""

import gzip
import random
from dataclasses import dataclass, field

from criproxy.fronts.relay.actions import Ended

Fields = list[tuple[bytes, bytes]]


@dataclass(repr=False)
class Plan:
    """One call. The second half is what happened, filled in by whoever saw it."""

    stream: int
    hooked: bool
    request: bytes
    message: bytes | None
    """The one message in `request`, unpacked; None when there is none, or more."""
    trailers: Fields
    status: int
    answer: bytes
    answer_message: bytes | None
    initial: Fields
    verdict: str
    early: bool
    unasked: int = 0
    """The status code with which a hooked request is refused without a hook; 0: it is not."""

    to_send: int = 0
    client_done: bool = False
    asked: bool = False
    forwarded: bytes | None = None
    learns: bool = False
    refused: int | None = None
    learned: bytes | None = None
    got_request: bytearray = field(default_factory=bytearray)
    got_end: bool = False
    server_headers: bool = False
    answered: int = 0
    server_done: bool = False
    ended_here: bool = False
    client_reset: bool = False
    server_reset: bool = False
    seen_headers: Fields | None = None
    seen: bytearray = field(default_factory=bytearray)
    seen_trailers: Fields | None = None
    seen_end: bool = False
    seen_reset: int | None = None
    started: int = 0
    ended: list[Ended] = field(default_factory=list)

    def __repr__(self) -> str:
        return str({key: f"{len(v)} B" if isinstance(v, (bytes, bytearray)) else v for key, v in vars(self).items()})

    def learn(self, answer: bytes) -> None:
        assert not self.seen_end
        self.learned = answer

    @property
    def over(self) -> bool:
        """For the client."""
        if self.client_reset or self.seen_reset is not None:
            return True
        return self.seen_end and self.client_done

    @property
    def whole(self) -> bool:
        """Nobody has cut it short: each has had all that the other said."""
        resets = self.client_reset or self.server_reset or self.ended_here
        return bool(self.started and not (resets or self.early or self.refused or self.unasked))


def prefixed(message: bytes, flag: int = 0) -> bytes:
    return bytes((flag,)) + len(message).to_bytes(4) + message


@dataclass(frozen=True)
class Planner:
    """Draws plans. `big`: some messages are larger than all windows. `headers_vary`: from call to call."""

    rng: random.Random
    big: bool
    hooked_ratio: float
    headers_vary: bool

    def plan(self, stream: int) -> Plan:
        rng = self.rng
        hooked = rng.random() < self.hooked_ratio
        answer_message: bytes | None
        answer_message, answer = self._message()
        status = 0 if rng.random() < 0.8 else rng.randrange(1, 17)
        if status:
            answer_message, answer = None, b""
        elif rng.random() < 0.2:
            answer_message, answer = None, b"".join(self._message()[1] for _ in range(rng.randrange(4)))
        plan = Plan(
            stream,
            hooked,
            *(self._hooked_request() if hooked else self._passing_request()),
            status=status,
            answer=answer,
            answer_message=answer_message,
            initial=self._metadata(),
            verdict=rng.choice(("same", "shrink", "grow", "empty", "refuse")),
            early=rng.random() < 0.05,
            trailers=[] if rng.random() < (0.97 if hooked else 0.9) else [(b"x-end", rng.randbytes(4).hex().encode())],
        )
        if hooked and (plan.message is None or plan.trailers):
            plan.unasked = 13
        return plan

    def _metadata(self) -> Fields:
        if not self.headers_vary or self.rng.random() < 0.5:
            return []
        return [(b"x-some", self.rng.randbytes(self.rng.randrange(1, 30)).hex().encode())]

    def _bytes(self) -> bytes:
        most = self.rng.choice((0, 1, 100, 3000, 20_000))
        if self.big and self.rng.random() < 0.2:
            most = 300_000
        return self.rng.randbytes(self.rng.randint(0, most))

    def _message(self) -> tuple[bytes, bytes]:
        message = self._bytes()
        return message, prefixed(message)

    def _passing_request(self) -> tuple[bytes, bytes | None]:
        return b"".join(self._message()[1] for _ in range(self.rng.choice((0, 1, 1, 1, 3)))), None

    def _hooked_request(self) -> tuple[bytes, bytes | None]:
        message, request = self._message()
        packed = prefixed(gzip.compress(message, mtime=0), 1)
        odd = (b"", request[:-1], request[:4], request + request, prefixed(b"no gzip" + message, 1), packed[:-3])
        choice = self.rng.randrange(14)
        if choice < len(odd):
            return odd[choice], None
        return (packed if choice < 9 else request), message
