"""The fuzzed connection's interceptor: decides late or at once, as the call's plan says."""

from dataclasses import dataclass

from tests.fronts.relay.fuzz.plan import prefixed
from tests.fronts.relay.fuzz.world import World


@dataclass
class Interceptor:
    world: World

    def decides(self) -> None:
        world, rng = self.world, self.world.rng
        if not world.asks or world.closed:
            return
        ask = world.asks.pop(rng.randrange(len(world.asks)))
        plan = world.plans[ask.stream]
        match plan.verdict:
            case "refuse":
                plan.refused = rng.randrange(1, 17)
                world.do(world.relay.refuse(ask.stream, plan.refused, f"nö % {ask.stream}"))
                return
            case "same":
                message = bytes(bytearray(ask.message))
            case "shrink":
                message = ask.message[: len(ask.message) // 3]
            case "grow":
                message = ask.message + rng.randbytes(rng.choice((1, 100, 70_000)))
            case _:
                message = b""
        plan.forwarded = plan.request if message == ask.message else prefixed(message)
        plan.learns = rng.random() < 0.6
        world.do(world.relay.forward(ask.stream, message, plan.learn if plan.learns else None))
