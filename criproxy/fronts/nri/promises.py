"""What this front promises less than the CRI front, for the status: what it does not bound, which settings it can't
follow, and what gets past it while nobody asks criproxy. Pure; docs/nri.md says the same, and why.
"""

from typing import Final

from msgspec import Struct

from criproxy.config import Config
from criproxy.fronts.nri.plugin import RuntimeSeen
from criproxy.hooks.hardening import Hardening
from criproxy.vocabulary.unboundable import ALL

NOT_BOUNDED: Final = (
    "sandboxes' own processes",
    "virtual machines",
    "capabilities",
    "procMount",
    "host ports",
    "classes of the cache",
    "what is asked of nri-plugins",
    "seccomp profiles",
    "bandwidth by CNI",
)

CLOSED: Final = "closed"
REQUIRED: Final = "closed for pods that require the plugin"
REQUIRED_AWAY: Final = f"{REQUIRED}, but for one container that the runtime waits 2 s for"
"""One that is frozen is asked until the runtime has thrown it out."""

OPEN: Final = "open, found"
"""A container may be made outside the box. It is found, and handled by `colocation.on_unbounded`."""


class Gaps(Struct, frozen=True):
    """What becomes of offline containers, at the runtime's start and while criproxy is away or frozen."""

    at_start: str
    away: str


def gaps(runtime: RuntimeSeen, *, starts: bool, sentry: bool) -> Gaps:
    """As of a runtime that calls criproxy. REQUIRED counts where the runtime's default validator is on, which it does
    not tell. `starts`: whether it starts launcher and sentry with its next start; `sentry`: whether it has one now.
    """
    at_start, away = (REQUIRED, REQUIRED_AWAY) if runtime.may_require_plugins else (OPEN, OPEN)
    return Gaps(CLOSED if starts else at_start, CLOSED if sentry else away)


def unmet(config: Config) -> tuple[str, ...]:
    """The settings that ask for what a plugin of NRI can't bring about."""
    network, capabilities = config.network, config.hardening.of_hooks().capabilities
    asked = {
        "network.max_egress_bits_per_s": network.max_egress_bits_per_s is not None,
        "network.max_ingress_bits_per_s": network.max_ingress_bits_per_s is not None,
        "hardening.capabilities": ALL not in capabilities and capabilities != Hardening().capabilities,
    }
    return tuple(key for key, is_asked in asked.items() if is_asked)
