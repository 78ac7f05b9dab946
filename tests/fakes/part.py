"""What holds for a part, and a round with that part alone."""

import asyncio
from functools import partial
from typing import Any

from criproxy.config.load import parse
from criproxy.daemon.round import Round
from criproxy.model.shown import Shows
from criproxy.pods.part import NodeSettings, Part, Stage
from criproxy.pods.policy_settings import policy
from tests.fakes.clock import FakeClock
from tests.fakes.counters import FakeCounters


def node_settings(text: str = "", *, enabled: bool = True, **changed: Any) -> NodeSettings:
    """By a config file with this text. `enabled`: colocation is on. `changed`: other fields."""
    loaded = parse(f"colocation.enabled = {str(enabled).lower()}\n{text}".encode(), "config.toml")
    assert not loaded.errors, loaded.errors
    return NodeSettings(
        **{
            "config": loaded.config,
            "stage": Stage(policy(loaded.config)),
            "pass_through": False,
            "dry_run": False,
            "front": loaded.config.proxy.front,
            **changed,
        }
    )


def round_of(part: Part, log: Any, clock: Any = None) -> Round:
    return Round([part], FakeCounters(), clock or FakeClock(), log)


def look(part: Part, log: Any) -> None:
    """One look, of which a failure is logged."""
    asyncio.run(round_of(part, log).look(part))


class Showing(Shows):
    """Shows what one of this kind would, whose status a test has set."""

    failure = ""
    problem: Any
    missing: Any
    closed: Any

    def __init__(self, kind: type[Any], told: Any = None, **fields: Any) -> None:
        self.kind, self.told = kind, told
        self.__dict__ |= fields
        self.GAUGES = kind.GAUGES  # type: ignore[misc]

    def status(self) -> Any:
        return self.told

    def __getattribute__(self, name: str) -> Any:
        """What only the real one has, by its code."""
        if name in ("now", "rows", "section", "problems", "modes", "why"):
            found = getattr(object.__getattribute__(self, "kind"), name, None)
            return partial(found, self) if found else object.__getattribute__(self, name)
        return object.__getattribute__(self, name)
