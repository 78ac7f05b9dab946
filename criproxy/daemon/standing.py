"""What each part of the daemon is told, from the config, the schedule's stage and how the daemon was started. Pure."""

from typing import Final

from msgspec import Struct

from criproxy.cgroup.box import BoxSettings
from criproxy.config import Config
from criproxy.control.guard import Settings as GuardSettings
from criproxy.control.loop import LoopSettings
from criproxy.control.policy import safe_limits
from criproxy.control.resources import SHARES
from criproxy.daemon import derive
from criproxy.daemon.timetable import Stage
from criproxy.fronts.cri.interception import Settings as InterceptSettings
from criproxy.pods.memory_relief import Settings as ReliefSettings
from criproxy.pods.overhead import Settings as OverheadSettings
from criproxy.pods.placement_check import Settings as VerifySettings
from criproxy.pods.reconciler import Settings as UpkeepSettings
from criproxy.pods.unbounded import Settings as UnboundedSettings

_UNKNOWN: Final = "the config has errors: never more than the box had at the start"


class Standing(Struct, frozen=True):
    """How things stand. `pass_through`: the config at the start was bad.

    Then limits that the last process has left in the kernel are only lowered, as the dynamic policy at its defaults
    says: they may be those of a night. A dry run touches nothing.
    """

    config: Config
    stage: Stage
    pass_through: bool
    dry_run: bool

    @property
    def enabled(self) -> bool:
        return self.config.colocation.enabled and not self.pass_through

    @property
    def writes(self) -> bool:
        """Whether the box's limits are ours to set, up and down."""
        return self.enabled and not self.dry_run

    def intercept(self) -> InterceptSettings:
        rules = self.config.colocation.offline_rules()
        return InterceptSettings(self.enabled, rules, self.dry_run, self.stage.closed)

    def box(self) -> BoxSettings:
        shares = {name: getattr(self.config, name).max_ratio for name in SHARES}
        return BoxSettings(safe_limits(derive.policy(self.config)), shares, self.pass_through)

    def loop(self) -> LoopSettings:
        interval_s, predictor = self.config.control.interval_s, derive.predictor(self.config)
        if self.pass_through:
            policy = derive.window_policy(Config(), None, "dynamic", _UNKNOWN)
            return LoopSettings(policy, predictor, interval_s, dry_run=self.dry_run)
        return LoopSettings(self.stage.policy, predictor, interval_s, dry_run=not self.writes)

    def guard(self) -> GuardSettings:
        law = derive.guard(self.config) if self.writes else None
        return GuardSettings(law, self.config.guard.interval_ms / 1000)

    def unbounded(self) -> UnboundedSettings:
        colocation = self.config.colocation
        return UnboundedSettings(
            colocation.offline_rules() if self.writes else None, evict=colocation.on_unbounded == "evict"
        )

    def verify(self) -> VerifySettings:
        return VerifySettings(evict=self.writes and self.config.colocation.on_unbounded == "evict")

    def overhead(self) -> OverheadSettings:
        colocation = self.config.colocation
        evict = self.writes and colocation.on_runtime_overload == "evict"
        return OverheadSettings(colocation.runtime_max_cores, evict)

    def relief(self) -> ReliefSettings:
        return ReliefSettings(active=self.writes, evict=self.config.memory.on_over_limit == "evict")

    def upkeep(self) -> UpkeepSettings:
        adopt = not self.dry_run
        if self.writes and self.stage.drain:
            return UpkeepSettings("evict", adopt, "the schedule is off")
        leave_alone = self.enabled or self.pass_through or self.dry_run
        return UpkeepSettings(None if leave_alone else self.config.colocation.on_disable, adopt)
