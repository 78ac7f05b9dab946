"""The ladder's numbers by the config: what the daemon goes by, and what a record is replayed with."""

from criproxy.config.settings import Interference
from criproxy.control.interference.ladder import LONGEST_CALM_S, RESOURCES_IN_TURN, Budget, LadderSettings
from criproxy.model import PIDS


def ladder_settings(config: Interference) -> LadderSettings:
    """Those of [interference]."""
    return LadderSettings(
        slow_phase_s=config.trial_s,
        longest_wait_s=config.give_back_after_most_s,
        close_after_s=config.close_after_s,
        closed_calm_s=config.open_after_s,
        longest_calm_s=max(config.open_after_s, LONGEST_CALM_S),
        evict_after_s=config.evict_after_s,
        shortage_evict_after_s=config.evict_after_memory_s,
        budget=Budget(most=config.evict_most),
        resources=tuple(one for one in RESOURCES_IN_TURN if one.name != PIDS),
    )
