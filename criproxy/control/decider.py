"""What the box may have: from samples to predictions, from these to the policy's limits, and harm joined to them.

The order of one decision
-------------------------
    sampled   a reading becomes a sample, and the predictors learn from it
    decide    the policy decides; anew from the last sample, where there is no later one
    joined    what is seen of harm is joined to that

The caller judges harm between the last two, as part of it is judged by what the policy gives. It says with `applied`
what the box has got, before it decides again.

Without a sample for as long as a prediction reaches ahead, nothing is known of online any more: the policy decides
from no prediction, which gives the floor.

Pure, but for the log of what a checkpoint has lost.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

import structlog
from msgspec import Struct, field
from msgspec.structs import replace

from criproxy.control.evidence import CpuEvidence, HarmSeen, counts, joined
from criproxy.control.guardlaw import Outlook
from criproxy.control.policy import PolicySettings, PolicyState, decide, left_by_online
from criproxy.control.predictor import Predictor, make_predictor
from criproxy.control.publication import RecentMean
from criproxy.control.resources import RESOURCES
from criproxy.control.sampler import Sampler
from criproxy.control.series import PredictorSettings, PredictorState
from criproxy.model import (
    CPU,
    UNLIMITED,
    Capacity,
    Decision,
    GivingBack,
    GuardCeiling,
    Limit,
    Limits,
    Prediction,
    ResourcePrediction,
    Snapshot,
    UsageReading,
)
from criproxy.model.modes import Mode

_HOUR: Final = "_hour"
"""Ends the name of a resource's predictor that looks an hour ahead."""

HOUR_S: Final = 3600.0
HOUR_ALPHA_RATIO: Final = 0.05
HOUR_COLD_START_PROBES: Final = 288
"""How far ahead a node can promise, how sure of it, and a day of learning before."""


class LoopSettings(Struct, frozen=True):
    """`kept_by`: the mode in which all is computed and reported, and nothing applied; None: it is applied.
    `cpu_by_evidence`: see `control.evidence`.
    """

    policy: PolicySettings
    predictor: PredictorSettings
    interval_s: float = 1.0
    kept_by: Mode | None = None
    cpu_by_evidence: bool = False


class Now(Struct, frozen=True):
    """What a decision is made from, beside samples. `starting` counts the pods of the box that start; `kept` is what
    must stay free of a resource, by its name; `ceiling` the guard's, None while it is at rest. `giving_back`: what the
    box's memory limit waits for; None: nothing. `held`: see `decide`.
    """

    t_s: float
    starting: int = 0
    kept: Mapping[str, float] = {}
    ceiling: GuardCeiling | None = None
    giving_back: GivingBack | None = None
    held: float | None = None


class Decider(Struct, eq=False):
    """25 us of arithmetic a decision, whatever the number of pods."""

    settings: LoopSettings
    log: structlog.typing.FilteringBoundLogger
    _sampler: Sampler = field(default_factory=Sampler)
    _predictors: dict[str, Predictor] = {}
    _recent: defaultdict[str, RecentMean] = field(default_factory=lambda: defaultdict(RecentMean))
    _predicted: tuple[Snapshot, Prediction] | None = None
    _before: PolicyState = PolicyState()
    """As the decision on the last sample found it, but for the limits, which are the box's."""
    _after: PolicyState = PolicyState()
    _is_new: bool = False
    """Whether no decision has been made yet on the last sample."""
    _decided: tuple[Snapshot, Decision] | None = None
    """The policy's last decision, and the sample that it was made from."""
    _now: Now = Now(0.0)
    _cpu_share: float | None = None
    """What the ladder left of CPU at the last decision."""

    def __post_init__(self) -> None:
        self._predictors = _predictors(self.settings.predictor)

    # --- a decision -------------------------------------------------------------------------------------------------

    def sampled(self, t_s: float, wall_s: float, usages: UsageReading, capacity: Capacity) -> Snapshot | None:
        """None: the reading is the first, or was no measurement (see `discarded`)."""
        snapshot = self._sampler.sample(t_s, usages, capacity)
        if snapshot is not None:
            self._predicted, self._is_new = (snapshot, self._predict(snapshot, wall_s)), True
        return snapshot

    @property
    def discarded(self) -> str:
        """Why the last reading was no measurement; "": it was one, or the first."""
        return self._sampler.discarded

    def _predict(self, snapshot: Snapshot, wall_s: float) -> Prediction:
        found = {}
        for name, sample in snapshot.of.items():
            now, hour, recent = self._predictors[name], self._predictors[f"{name}{_HOUR}"], self._recent[name]
            recent.observe(snapshot.read_s, sample.online)
            found[name] = ResourcePrediction(
                level=_known(now.observe(snapshot.t_s, wall_s, sample.online, sample.capacity)),
                note=now.note,
                hour=_known(hour.observe(snapshot.t_s, wall_s, sample.online, sample.capacity)),
                recent=recent.value(),
            )
        return found

    def decide(self, now: Now) -> None:
        """The policy decides by the last sample, which there must be."""
        assert self._predicted is not None
        if self._is_new:
            self._before, self._is_new = self._after, False
        snapshot, prediction = self._known_at(now.t_s, *self._predicted)
        state = replace(self._before, before=self._after.before)
        decision, self._after = decide(
            snapshot,
            prediction,
            state,
            self.settings.policy,
            now.ceiling,
            starting=now.starting,
            kept=now.kept,
            giving_back=now.giving_back,
            held=now.held,
        )
        self._decided, self._now = (snapshot, decision), now

    def _known_at(self, t_s: float, snapshot: Snapshot, prediction: Prediction) -> tuple[Snapshot, Prediction]:
        """The last sample, and what it still says of online at this time."""
        if self.still_predicts(t_s):
            return snapshot, prediction
        note = f"no sample for {t_s - snapshot.t_s:.0f} s"
        return replace(snapshot, t_s=t_s), dict.fromkeys(snapshot.of, ResourcePrediction(None, note))

    @property
    def has_sample(self) -> bool:
        return self._predicted is not None

    def still_predicts(self, t_s: float) -> bool:
        """Whether the last prediction reaches as far as `t_s`."""
        return self._predicted is not None and t_s - self._predicted[0].t_s <= self.settings.predictor.horizon_s

    def is_learning(self, resource: str) -> bool:
        """Whether what is predicted of it says little of online yet."""
        return self._predictors[resource].learning

    @property
    def given(self) -> Limits:
        """By the policy's last decision, before what is seen of harm was joined to it."""
        return {} if self._decided is None else self._decided[1].limits

    def due(self, resource: str) -> Limit:
        """What online leaves the box of it, had the last decision not been careful.

        What is predicted while little is known, or from what was, counts as no more than online uses now; and a raise
        waits for nothing.
        """
        if self._predicted is None:
            return 0.0
        snapshot, prediction = self._predicted
        known = prediction[resource]
        if known.note:
            known = ResourcePrediction(snapshot.of[resource].online)
        now = self._now
        return left_by_online(
            resource, snapshot, known, self.settings.policy, starting=now.starting, kept=now.kept.get(resource, 0.0)
        )

    def joined(self, seen: HarmSeen) -> tuple[Snapshot, Decision, Outlook]:
        """The last decision with what is seen of harm joined to it, the sample that it was made from, and what the
        guard is to expect.
        """
        assert self._decided is not None
        (snapshot, decision), laws = self._decided, self.settings.policy.resources
        cpu = self._cpu_evidence(snapshot, decision, seen)
        self._cpu_share = seen.shares.get(CPU)
        return snapshot, joined(decision, laws, seen, cpu), self._outlook(snapshot, decision, seen, cpu)

    def applied(self, limits: Limits) -> None:
        """The box has these limits by the last decision; it counts also where they could not be written."""
        self._after = replace(self._after, before={name: limits[name] for name in self.given})

    def _cpu_evidence(self, snapshot: Snapshot, decision: Decision, seen: HarmSeen) -> CpuEvidence | None:
        if not self.settings.cpu_by_evidence:
            return None
        seen_s = None if seen.cpu_seen_s is None else self._now.t_s - seen.cpu_seen_s
        share = seen.shares.get(CPU)
        given_back = share is None and self._cpu_share is not None
        return CpuEvidence(snapshot.of[CPU].capacity, seen.cpu_idle, seen_s, share, decision.guard, given_back)

    def _outlook(self, snapshot: Snapshot, decision: Decision, seen: HarmSeen, cpu: CpuEvidence | None) -> Outlook:
        """The CPU limit as it would be without the guard.

        By evidence, all of the node is expected of online, so that no use of it is an alarm, but only its waiting.
        """
        laws, limit = self.settings.policy.resources, self._after.resources[CPU].limit
        by_law = replace(decision.resources[CPU], limit=UNLIMITED if limit is None else limit, before=None)
        unguarded = joined(
            replace(decision, resources={CPU: by_law}), laws, seen, None if cpu is None else replace(cpu, guard=None)
        ).resources[CPU]
        capacity, level = snapshot.of[CPU].capacity, by_law.prediction.level
        limit_cores = math.inf if unguarded.limit is UNLIMITED else unguarded.limit
        by_evidence = cpu is not None and counts(laws[CPU], cpu)
        return Outlook(capacity, limit_cores, capacity if by_evidence else level)

    # --- settings, and what a restart keeps -------------------------------------------------------------------------

    def configure(self, settings: LoopSettings, t_s: float) -> None:
        """From the next decision on. The predictors keep what still fits at `t_s`."""
        if settings.predictor != self.settings.predictor:
            old = self.checkpoint()
            self._predictors = _predictors(settings.predictor)
            self.restore(old, t_s, 0.0)
        self.settings = settings

    def checkpoint(self) -> dict[str, PredictorState]:
        """What a restart should keep, per resource."""
        return {name: predictor.checkpoint() for name, predictor in self._predictors.items()}

    def restore(self, states: Mapping[str, PredictorState], t_s: float, shift_s: float) -> None:
        """Take over a checkpoint whose times need `shift_s` added; what is of no use any more is logged."""
        for name, predictor in self._predictors.items():
            if name in states:
                for lost in predictor.restore(states[name], t_s, shift_s):
                    self.log.warning("predictor_starts_cold", resource=name, lost=lost)


def _predictors(settings: PredictorSettings) -> dict[str, Predictor]:
    hour = replace(settings, alpha_ratio=HOUR_ALPHA_RATIO, horizon_s=HOUR_S, cold_start_probes=HOUR_COLD_START_PROBES)
    return {
        f"{row.name}{reach}": make_predictor(chosen, row.sampling.buckets)
        for reach, chosen in (("", settings), (_HOUR, hour))
        for row in RESOURCES.values()
        if row.sampling is not None
    }


def _known(prediction: float) -> float | None:
    return prediction if math.isfinite(prediction) else None
