"""A relay that looks at nothing: for the day that something is wrong with the one that does."""

from criproxy.proxy.engine import Ticket
from criproxy.proxy.relay.actions import Action, Close, ToClient, ToUpstream
from criproxy.proxy.relay.frames import Bytes


class BlindRelay:
    """As `core.Relay`, but bytes pass as they come: no hooks, no counts, and no end but the peers'."""

    greeted = False

    def client_bytes(self, chunk: Bytes) -> list[Action]:
        return [ToUpstream(bytes(chunk))]

    def upstream_bytes(self, chunk: Bytes) -> list[Action]:
        return [ToClient(bytes(chunk))]

    def forward(self, stream: int, message: bytes, ticket: Ticket | None = None) -> list[Action]:
        return []

    def refuse(self, stream: int, code: int, message: str) -> list[Action]:
        return []

    def drain(self) -> list[Action]:
        return []

    def end(self, stream: int, message: str) -> list[Action]:
        return []

    def turn_away(self, message: str) -> None:
        pass

    def client_closed(self) -> list[Action]:
        return [Close("the client has closed")]

    def upstream_closed(self) -> list[Action]:
        return [Close("the runtime has closed")]
