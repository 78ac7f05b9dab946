"""Random calls through the relay's core, between strict peers: every byte, window and count must come out right."""

import random
from collections.abc import Callable

import h2.settings

from tests.fronts.relay.fuzz.check import check, check_closed, check_drained
from tests.fronts.relay.fuzz.client import Client
from tests.fronts.relay.fuzz.interceptor import Interceptor
from tests.fronts.relay.fuzz.plan import Planner
from tests.fronts.relay.fuzz.server import Server
from tests.fronts.relay.fuzz.world import World

_STEPS = 80_000
_CALM_AT = 50_000
_FATES = ("calls end", "calls end", "drain", "turn away", "close")


class Fuzz:
    """One connection, from `seed`. Raises AssertionError, or what h2 raises when it is sent what it must not be."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.world = world = World(rng)
        calls_to_make = rng.randrange(1, 25)
        big = rng.random() < 0.3
        resets = rng.choice((0.0, 0.0, 0.02, 0.1))
        settings_rate = rng.choice((0.0, 0.02, 0.1))
        self._fate = rng.choice(_FATES)
        self._fate_at = rng.randrange(rng.choice((100, 1000, 4000)))
        planner = Planner(rng, big, rng.choice((0.0, 0.3, 0.7, 1.0)), rng.random() < 0.5)
        self._client = Client(world, planner, calls_to_make, resets, settings_rate)
        self._server = Server(world, resets, settings_rate)
        self._interceptor = Interceptor(world)
        world.on_client, world.on_server = self._client.events, self._server.events

    def run(self) -> None:
        world = self.world
        for peer in (world.client, world.server):
            peer.initiate_connection()
        if world.rng.random() < 0.2:
            world.server.increment_flow_control_window(world.rng.randrange(1, 1 << 20))
        steps = self._steps()
        self._live(steps)
        if not world.closed:
            self._calm_down()
            self._settle(steps)
        if not world.closed:
            check(world)
            self._drain()
        if world.closed and world.closed.reason == "drained":
            self._deliver()
            check_drained(world)
        else:
            check_closed(world)

    def _live(self, steps: list[Callable[[], object]]) -> None:
        """Until all calls are over, or the connection is closed."""
        world = self.world
        for number in range(_STEPS):
            if world.closed or not (self._client.calls_to_make or not all(plan.over for plan in world.plans.values())):
                return
            if number == self._fate_at:
                self._meet_fate()
            world.rng.choice(steps)()
            if number == _STEPS - _CALM_AT:
                self._calm_down()
        raise AssertionError(f"calls do not end: {[plan for plan in world.plans.values() if not plan.over][:1]}")

    def _meet_fate(self) -> None:
        """What a change of processes does to a connection amid its calls, or a peer that goes."""
        world, relay = self.world, self.world.relay
        match self._fate:
            case "drain":
                world.do(relay.drain())
            case "turn away":
                world.turned_away = True
                relay.turn_away("gone")
            case "close":
                world.do(world.rng.choice((relay.client_closed, relay.runtime_closed))())

    def _steps(self) -> list[Callable[[], object]]:
        """What may happen next, the likelier the more often it is here."""
        world, client, server = self.world, self._client, self._server
        return [
            client.open_call,
            client.sends,
            client.sends,
            client.sends,
            client.reads,
            client.moves,
            server.moves,
            server.moves,
            server.reads,
            self._interceptor.decides,
            world.client_to_relay,
            world.client_to_relay,
            world.relay_to_server,
            world.relay_to_server,
            world.server_to_relay,
            world.server_to_relay,
            world.relay_to_client,
            world.relay_to_client,
        ]

    def _calm_down(self) -> None:
        world = self.world
        if world.calm:
            return
        world.calm = True
        for pipe in world.pipes:
            pipe.sizes = (1 << 20,)
        while world.unacknowledged and not world.closed:
            self._move()
        for peer in (world.client, world.server):
            peer.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 65_535})
            world.unacknowledged.add(peer)

    def _move(self) -> None:
        world = self.world
        world.client_to_relay()
        world.server_to_relay()
        world.relay_to_client()
        world.relay_to_server()

    def _settle(self, steps: list[Callable[[], object]]) -> None:
        world = self.world
        for _ in range(10_000):
            for step in steps:
                step()
            if world.closed:
                return
            world.flush()
            waits = any((world.unread_client, world.unread_server, world.asks, *(pipe.data for pipe in world.pipes)))
            if not world.unacknowledged and not waits and not self._top_up():
                return
        raise AssertionError("it does not settle")

    def _top_up(self) -> bool:
        """Have the server say all that it has read: h2 waits until it is half a window."""
        windows = self.world.server._inbound_flow_control_window_manager
        windows._bytes_processed = 0
        left = windows.max_window_size - windows.current_window_size
        if left:
            self.world.server.increment_flow_control_window(left)
        return bool(left)

    def _drain(self) -> None:
        """A hand-over at the end: GOAWAY in two steps, and the connection closes."""
        world = self.world
        world.do(world.relay.drain())
        for _ in range(10_000):
            if world.closed:
                return
            self._move()
        raise AssertionError("it is not drained")

    def _deliver(self) -> None:
        """What the relay had sent before it closed."""
        while self.world.to_client.data:
            self.world.relay_to_client()
        while self.world.to_server.data:
            self.world.relay_to_server()
