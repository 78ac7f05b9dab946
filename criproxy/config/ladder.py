"""The ladder's numbers by the config: what the daemon goes by, and what a record is replayed with."""

from msgspec.structs import replace

from criproxy.config.settings import Interference
from criproxy.control.interference.detectors import IO
from criproxy.control.interference.ladder import MEMORY_TRIAL_S, RESOURCES_IN_TURN, Budget, LadderSettings
from criproxy.model import CPU, MEMORY


def ladder_settings(config: Interference) -> LadderSettings:
    """Those of [interference]."""
    after_s = {MEMORY: config.evict_after_memory_s, CPU: config.evict_after_s, IO: config.evict_after_s}
    trial_s = {MEMORY: max(MEMORY_TRIAL_S, config.trial_s), CPU: config.trial_s, IO: config.trial_s}
    return LadderSettings(
        close_after_s=config.close_after_s,
        closed_calm_s=config.open_after_s,
        longest_calm_s=max(config.open_after_s, config.open_after_most_s),
        budget=Budget(pause_s=config.evict_pause_s, most=config.evict_most, owner_s=config.evict_owner_s),
        resources=tuple(
            replace(one, evict_after_s=after_s[one.name], trial_s=trial_s[one.name])
            for one in RESOURCES_IN_TURN
            if one.name in after_s
        ),
    )
