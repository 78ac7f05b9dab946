"""One fuzzed connection's common ground: two strict peers, the relay, and pipes between them that cut anywhere."""

import random
from collections.abc import Callable

import h2.connection
import h2.events
import h2.settings

from criproxy.fronts.http2 import frames
from criproxy.fronts.relay.actions import Action, Ask, Close, Ended, Forget, Learn, Started, ToClient, ToRuntime
from criproxy.fronts.relay.core import Relay
from tests.fronts.relay.fuzz.plan import Plan
from tests.fronts.relay.peers import Mangler, Pipe, Tap, connection

HOOKED = b"/test.Hooked/Call"
PASSING = b"/test.Passing/Call"
WINDOWS = (0, 1, 100, 5000, 16_384, 65_535, 65_535, 200_000, 1 << 20)


class World:
    """All is drawn from `rng`. `on_client` and `on_server` take a peer's events."""

    on_client: Callable[[list[h2.events.Event]], None]
    on_server: Callable[[list[h2.events.Event]], None]

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.client = connection(client=True)
        self.server = connection(client=False)
        self.relay = Relay(lambda path: path.encode() == HOOKED)
        self.from_client, self.to_server, self.from_server, self.to_client = (Pipe(rng) for _ in range(4))
        self.client_out, self.server_out = Mangler(rng), Mangler(rng)
        self.tap, self.server_tap = Tap(), Tap()
        self.plans: dict[int, Plan] = {}
        self.asks: list[Ask] = []
        self.unread_client: list[tuple[int, int]] = []
        self.unread_server: list[tuple[int, int]] = []
        self.closed: Close | None = None
        self.unacknowledged = {self.client, self.server}
        """Whose SETTINGS are under way: h2 takes one ACK for an ACK of all."""
        self._table_changed: set[h2.connection.H2Connection] = set()
        self.turned_away = False
        """New calls are: those that are never begun."""
        self.huge = rng.random() < 0.1
        """The server's windows are none or the largest of all, so that it can't widen them itself."""
        self.calm = False
        """No more surprises: windows open, nothing is reset."""

    # --- moving bytes ------------------------------------------------------------------------------------------------

    @property
    def pipes(self) -> tuple[Pipe, ...]:
        return self.from_client, self.to_server, self.from_server, self.to_client

    def flush(self) -> None:
        self.from_client.put(self.client_out(self.client.data_to_send()))
        self.from_server.put(self.server_out(self.server.data_to_send()))

    def client_to_relay(self) -> None:
        self.flush()
        if self.from_client.data and self.closed is None:
            self.do(self.relay.client_bytes(memoryview(self.from_client.some())))

    def server_to_relay(self) -> None:
        self.flush()
        if self.from_server.data and self.closed is None:
            self.do(self.relay.runtime_bytes(memoryview(self.from_server.some())))

    def relay_to_server(self) -> None:
        if self.to_server.data:
            for raw in self.server_tap(self.to_server.some()):
                self.on_server(self.server.receive_data(raw))

    def relay_to_client(self) -> None:
        if self.to_client.data:
            for raw in self.tap(self.to_client.some()):
                self.on_client(self.client.receive_data(raw))

    # --- what the relay says -----------------------------------------------------------------------------------------

    def do(self, actions: list[Action]) -> None:
        for number, action in enumerate(actions):
            match action:
                case ToClient(data):
                    assert data
                    self.to_client.put(data)
                case ToRuntime(data):
                    assert data
                    self.to_server.put(data)
                case Ask(stream, method, message):
                    plan = self.plans[stream]
                    assert method.encode() == HOOKED
                    assert not plan.asked
                    assert message == plan.message
                    plan.asked = True
                    self.asks.append(action)
                case Forget(stream):
                    self.asks = [ask for ask in self.asks if ask.stream != stream]
                case Learn(learn, message):
                    assert all(isinstance(before, Learn) for before in actions[:number])
                    learn(message)
                case Started(stream):
                    self.plans[stream].started += 1
                case Ended(stream, method, _, hooked):
                    plan = self.plans[stream]
                    assert method.encode() == (HOOKED if plan.hooked else PASSING)
                    assert hooked == plan.hooked
                    plan.ended.append(action)
                case Close():
                    self.closed = action
                    assert not action.broken, action

    # --- what both peers draw ----------------------------------------------------------------------------------------

    def most(self) -> int:
        """So many bytes may go into one frame."""
        return 1 << 20 if self.calm else self.rng.choice((1, 50, 10_000, 1 << 20))

    def some_plan(self, which: Callable[[Plan], bool]) -> Plan | None:
        plans = [plan for plan in self.plans.values() if which(plan)]
        return self.rng.choice(plans) if plans else None

    def reopen(self, peer: h2.connection.H2Connection) -> None:
        """When calm. h2 gives no window back to a stream that had sent more than a lowered one allows; others do."""
        for number, stream in list(peer.streams.items()):
            if self.calm and not stream.closed and (window := peer.remote_flow_control_window(number)) < 0:
                peer.increment_flow_control_window(65_535 - window, number)

    def widen(self, peer: h2.connection.H2Connection) -> None:
        """More window for one open stream."""
        if peer is self.server and self.huge:
            return
        streams = [number for number, stream in peer.streams.items() if not stream.closed]
        if streams:
            peer.increment_flow_control_window(self.rng.randrange(1, 10_000), self.rng.choice(streams))

    def change_settings(self, peer: h2.connection.H2Connection) -> None:
        code = h2.settings.SettingCodes
        windows = (0, frames.MAX_WINDOW) if peer is self.server and self.huge else WINDOWS
        setting, value = self.rng.choice(
            (
                (code.INITIAL_WINDOW_SIZE, self.rng.choice(windows)),
                (code.INITIAL_WINDOW_SIZE, self.rng.choice(windows)),
                (code.MAX_FRAME_SIZE, self.rng.choice((16_384, 30_000, 1 << 20))),
                (code.HEADER_TABLE_SIZE, self.rng.choice((0, 100, 4096, 4096, 10_000))),
                (code.MAX_CONCURRENT_STREAMS, 1000),
            )
        )
        if setting == code.HEADER_TABLE_SIZE:
            if peer in self._table_changed:  # hpack's encoder tells two changes as two, though the first is over
                return
            self._table_changed.add(peer)
        if peer not in self.unacknowledged:
            peer.update_settings({setting: value})
            self.unacknowledged.add(peer)
