"""The ladder: what is done about harm to online pods, resource by resource. Everything that changes a rung is here.

How it works
------------
Each resource of the box stands on a rung of its own:

    open      nothing is held back
    tried     the experiment: squeezed to its floor for its `trial_s`, to see whether the signal falls by half
    squeezed  convicted: held to the prediction, from there towards the floor while the harm lasts, and back when calm:
              the first time at once, and after each relapse, harm that came back with what was given back, later
    closed    at its floor; no new offline pod, and no more capacity is published than is allocated
    evicting  at its floor; one pod goes, then it is looked again

`TABLE` has every transition: the rungs that it leaves, on what, where it leads, and its reason in words. Rows are tried
from the top and the first that holds is taken, one per resource and step.

**The experiment.** An alarm opens a *case*: the detector's suspects are tried one after the other, as long as the
signal is high. One experiment runs at a time; meanwhile no other resource is given anything back by calm, nor goes
towards its floor. It does not begin while another one is on its way there, since nobody could say then which of the two
helped. The signal's excess above its rest is compared:

    before   mean since the signal is high
    after    mean over the experiment, less its first `settle_s`
    guilty   after <= fall_ratio * before

Both times are the resource's own. CPU is given back to online at once; pages that online lost must be read again first,
and the box's own are reclaimed by and by.

Guilty ends the case. A case that ends with suspects exonerated and none guilty doubles the detector's bar (unless a
suspect of the detector stands convicted by it already). Either way the detector opens no other case for a pause; where
the signal stays above even the doubled bar, the pause doubles, too, so that an innocent box is left alone; once it is
empty and nothing is held, that is over, as what comes next is other pods. A resource that is not open is not tried
again: it has been convicted, and is answered for.

**Without an experiment** the cause is proved by account where a signal is a stock: a resource that is held, not used up
as it comes, does not come back within seconds. Then a suspect of which the box holds more than its bound is convicted
on the alarm; within its bound it has nothing to give back, and the harm is not its own, in an emergency either: the box
keeps its floor however full the node is. A resource without a `trial_s` is judged so alone.

**The evidence is looked at again** before a pod goes: where the box was at its floor and the signal is not down to
`fall_ratio` of what it was before, squeezing does not help. The verdict was wrong then, as signals fall by themselves,
too: the resource is acquitted, and the bar doubled. The signal counts once the resource has been at its floor for its
`settle_s`, as in the experiment. A stock is not looked at so: it may well come back no sooner than a pod goes, and what
convicts of it is no squeeze.

**Clocks** are seconds summed up from step to step, each step counting `longest_gap_s` at most. So a restart, or a gap
in the samples, counts neither as calm nor as harm, and a state that was stored goes on where it stood. `harm_s` runs
while a convicting signal is high, also within its hysteresis, and starts anew on each rung; `calm_s` runs while all of
them are low. A signal that is not reported is neither, until it has been silent for `lost_s`: then it is taken for
calm, as without evidence nothing is held back for ever. So is one that stays within its hysteresis for so long: it is
no harm, and what is usual may have changed.

**What can't be taken back.** Where the box holds more than its bound of a resource in what only a pod's end gives back,
for `evict_after_s`, a pod goes, too: no rung below that would help, so that none is taken.

**Evictions** keep to a budget whatever the signals say: see `Budget`. An order counts from the moment it is given.

Invariants, which the tests hold against random signals: no more evictions than the budget; from anywhere, calm signals
lead to open; the same input gives the same output; a state that was written and read goes on as if it had not been.
"""

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from criproxy.control.interference.detectors import IO, LONGEST_GAP_S, Assessment, Detector
from criproxy.model import CPU, MEMORY, PIDS


class Rung(enum.StrEnum):
    """Where a resource stands; from `SQUEEZED` on it is convicted."""

    OPEN = "open"
    TRIED = "tried"
    SQUEEZED = "squeezed"
    CLOSED = "closed"
    EVICTING = "evicting"


_CONVICTED: Final = (Rung.SQUEEZED, Rung.CLOSED, Rung.EVICTING)
_SHUT: Final = (Rung.CLOSED, Rung.EVICTING)


# --- settings ---------------------------------------------------------------------------------------------------------


class LadderResource(Struct, frozen=True):
    """A resource as the ladder knows it. A pod goes when harm lasts for `evict_after_s` while it is closed.

    `trial_s`: how long an experiment takes, the first `settle_s` of which say nothing; None: none is made.
    """

    name: str
    words: str
    evict_after_s: float
    trial_s: float | None = None
    settle_s: float = 1.0


MEMORY_TRIAL_S: Final = 10.0
"""A first guess, not measured."""

RESOURCES_IN_TURN: Final = (
    LadderResource(MEMORY, "memory", 5.0, trial_s=MEMORY_TRIAL_S, settle_s=MEMORY_TRIAL_S / 2),
    LadderResource(PIDS, "processes", 5.0),
    LadderResource(CPU, "CPU", 120.0, trial_s=3.0),
    LadderResource(IO, "IO", 120.0, trial_s=3.0),
)
"""In the order in which they may order an eviction: what kubelet itself would evict for comes first."""


class Budget(Struct, frozen=True):
    """How many pods may be evicted, for all resources together.

    One in `pause_s`, `most` in `window_s`, one of an owner in `owner_s`. An emergency waits for `emergency_pause_s`
    at most, as long as memory takes to become free, and not for the owner; `most` holds for it too, so that no broken
    signal ever empties a node. What is no emergency leaves it `kept` of `most`, and has one at least.
    """

    pause_s: float = 10.0
    most: int = 6
    window_s: float = 600.0
    owner_s: float = 60.0
    emergency_pause_s: float = 2.0
    kept: int = 2

    def pause(self, *, emergency: bool) -> float:
        """In s, from the last order to the next."""
        return min(self.pause_s, self.emergency_pause_s) if emergency else self.pause_s

    def of(self, *, emergency: bool) -> int:
        """How many may have gone in `window_s`, this one included."""
        return self.most if emergency else max(1, self.most - self.kept)


class LadderSettings(Struct, frozen=True):
    """The times of the table; see the module. `to_floor_s` and `ease_s`: from the prediction to the floor, and back.

    `pause_s`: from a detector's case to its next, up to `longest_pause_s` where its suspects are innocent.

    `squeezed_calm_s` and `closed_calm_s` of calm lead down from these rungs; each doubles with every time that the rung
    is entered again, up to `longest_calm_s`, until the resource has been open for `forget_s`. So does what must be calm
    before a squeezed resource is eased again: `squeezed_calm_s` after the first relapse, twice as much after the next.

    `emergency_blocks_s`: for so long an emergency keeps all experiments from being made. By then those pods have gone
    for it that may; if it lasts, other harm must not go unanswered.
    """

    fall_ratio: float = 0.5
    pause_s: float = 30.0
    longest_pause_s: float = 300.0
    to_floor_s: float = 5.0
    ease_s: float = 30.0
    close_after_s: float = 10.0
    squeezed_calm_s: float = 10.0
    closed_calm_s: float = 60.0
    longest_calm_s: float = 600.0
    forget_s: float = 1800.0
    lost_s: float = 30.0
    longest_gap_s: float = LONGEST_GAP_S
    emergency_blocks_s: float = 15.0
    budget: Budget = Budget()
    resources: tuple[LadderResource, ...] = RESOURCES_IN_TURN


# --- what goes in and comes out ---------------------------------------------------------------------------------------


class Signals(Struct, frozen=True):
    """One step's evidence: the readings by detector (one that is not in it is not known), and the box's pods.

    `over`: the resources of which the box holds more than its bound. `unused`: those of which it uses so little, or
    that can't be squeezed now, that no experiment with it would say anything. `irreducible`: those of which the box
    holds more than its bound in what can't be taken back from it without a pod's end, and how, in words.
    """

    t_s: float
    readings: Mapping[str, Assessment]
    pods: int
    over: frozenset[str] = frozenset()
    unused: frozenset[str] = frozenset()
    irreducible: Mapping[str, str] = {}


class Transition(Struct, frozen=True):
    """A resource has changed its rung at `t_s`, and why; `signal` is the detector's name, "" where none is meant."""

    t_s: float
    resource: str
    before: Rung
    after: Rung
    signal: str
    reason: str


class EvictionOrder(Struct, frozen=True):
    """One pod is to go for `resource`, none of whose owner is in `barred`. The caller says who went: see `evicted`.

    `signal` is the detector's name; "": nobody is harmed yet, but the box can't be brought back to its bound otherwise.
    """

    resource: str
    signal: str
    emergency: bool
    barred: frozenset[str]
    reason: str


class LadderDecision(Struct, frozen=True):
    """What holds from now on.

    `shares`: per resource that is held, how far between its floor (0) and its prediction (1) the box may go; one that
    is not in it is not held. `closed`: why no new offline pod is let in, "" when pods are let in. `exonerated`: the
    detectors whose bar doubles.
    """

    shares: Mapping[str, float]
    closed: str
    transitions: tuple[Transition, ...] = ()
    eviction: EvictionOrder | None = None
    exonerated: tuple[str, ...] = ()


# --- state ------------------------------------------------------------------------------------------------------------


class Conviction(Struct, frozen=True):
    """The signal by which a resource was convicted: its excess above rest before it was, and at the floor since.

    `at_floor` None: the box was not at its floor since the conviction.
    """

    detector: str
    before: float
    at_floor: float | None = None


class RungState(Struct, frozen=True):
    """A resource's rung and clocks; see the module. `convictions` and `closings` count how often it came there.

    `floor_s`: for how long it has been at its floor. `near_s`: for how long the signals that are high have been within
    their hysteresis. `relapses`: how often harm came back while it was eased.
    """

    rung: Rung = Rung.OPEN
    share: float = 1.0
    by: tuple[Conviction, ...] = ()
    harm_s: float = 0.0
    calm_s: float = 0.0
    silent_s: float = 0.0
    open_s: float = 0.0
    floor_s: float = 0.0
    near_s: float = 0.0
    relapses: int = 0
    convictions: int = 0
    closings: int = 0


class Case(Struct, frozen=True):
    """A detector's alarm and the suspects that were tried for it; `on`: the one that is being tried, "": none is.

    `before` is the signal's mean excess above rest; `seconds` the experiment's age; `total` the sum of `samples`.
    """

    detector: str
    exonerated: tuple[str, ...] = ()
    on: str = ""
    before: float = 0.0
    seconds: float = 0.0
    total: float = 0.0
    samples: int = 0

    @property
    def after(self) -> float:
        return self.total / self.samples if self.samples else self.before


class PastEviction(Struct, frozen=True):
    """`owners`: by which names the pod's owner is known; none: it has none, or it is not known."""

    t_s: float
    owners: tuple[str, ...] = ()


class LadderState(Struct, frozen=True):
    """All that is remembered from step to step. `ordered_s`: when the last eviction was ordered; None: none was.

    `pauses`: for how many more seconds a detector opens no case. `fruitless`: how many cases of it have ended without a
    culprit since its signal was last low. `emergency_s`: for how long there has been an emergency without a break.
    `irreducible_s`: the same of each resource of which the box holds too much that can't be taken back.
    """

    t_s: float | None = None
    resources: dict[str, RungState] = field(default_factory=dict)
    case: Case | None = None
    pauses: dict[str, float] = field(default_factory=dict)
    fruitless: dict[str, int] = field(default_factory=dict)
    evictions: tuple[PastEviction, ...] = ()
    ordered_s: float | None = None
    emergency_s: float = 0.0
    irreducible_s: dict[str, float] = field(default_factory=dict)

    def of(self, resource: str) -> RungState:
        return self.resources.get(resource, _AT_REST)


_AT_REST: Final = RungState()
_NOBODY: Final = Conviction("", 0.0)


# --- the table --------------------------------------------------------------------------------------------------------


class When(enum.Enum):
    """What a transition waits for; the predicates are in `_HOLDS`."""

    EMERGENCY = (
        "a signal that names this resource first is at its emergency, there are pods, and of a stock the box holds \
more than its bound"
    )
    ACCUSED = "it is the next suspect of an alarm"
    ACCOUNTED = "a stock that names it is at alarm, and the box holds more of it than its bound"
    CALLED_OFF = "the experiment can't be judged: an emergency came between, or the signal is not known any more"
    GUILTY = "the signal fell by half during the experiment"
    EXONERATED = "the experiment is over, and the signal did not fall by half"
    NO_HELP = "a pod would go, but the signal is not down by half although the box is at its floor"
    LASTS = "the harm has lasted long enough on this rung"
    CALM = "calm for long enough, and everything is given back that this rung gives back"
    RELIEVED = "the signals are below their bars by their hysteresis, or the box is within its bound"


class LadderRow(Struct, frozen=True):
    """A transition; `reason` is filled in by `_words`."""

    at: tuple[Rung, ...]
    when: When
    to: Rung
    reason: str


TABLE: Final = (
    LadderRow((Rung.OPEN, Rung.TRIED, Rung.SQUEEZED, Rung.CLOSED), When.EMERGENCY, Rung.EVICTING,
        "{signal} is at {value}, an emergency from {emergency} on: a pod goes at once, without an experiment"),
    LadderRow((Rung.OPEN,), When.ACCUSED, Rung.TRIED,
        "{signal} is at {value}, above its bar of {bar}: the box's {resource} is squeezed to its floor for {trial_s:g} "
        "s, to see whether it is the cause"),
    LadderRow((Rung.OPEN,), When.ACCOUNTED, Rung.SQUEEZED,
        "{signal} is at {value}, above its bar of {bar}, and the box is above its bound for {resource}: it is held to "
        "the prediction"),
    LadderRow((Rung.TRIED,), When.CALLED_OFF, Rung.OPEN,
        "the experiment is called off, as {signal} can't be judged: the box's {resource} is given back"),
    LadderRow((Rung.TRIED,), When.GUILTY, Rung.SQUEEZED,
        "{signal} fell to {fall} of its excess when the box's {resource} was at its floor: the box is the cause, and "
        "its {resource} is held to the prediction"),
    LadderRow((Rung.TRIED,), When.EXONERATED, Rung.OPEN,
        "{signal} kept {fall} of its excess although the box's {resource} was at its floor: the box is not the cause, "
        "and its {resource} is given back"),
    LadderRow((Rung.CLOSED, Rung.EVICTING), When.NO_HELP, Rung.OPEN,
        "{signal} still has {fall} of its excess although the box's {resource} is at its floor: the box is not the "
        "cause any more, no pod goes for it, and its {resource} is given back"),
    LadderRow((Rung.SQUEEZED,), When.LASTS, Rung.CLOSED,
        "{signal} is at {value}, {harm_s:.0f} s after the box's {resource} was squeezed: no new offline pod"),
    LadderRow((Rung.CLOSED,), When.LASTS, Rung.EVICTING,
        "{signal} is at {value}, {harm_s:.0f} s after the box was closed: one pod goes"),
    LadderRow((Rung.EVICTING,), When.RELIEVED, Rung.CLOSED,
        "{signal} is at {value}, which is no harm by the box any more: no more pods go"),
    LadderRow((Rung.CLOSED,), When.CALM, Rung.SQUEEZED,
        "{signal} has told of no harm by the box for {calm_s:.0f} s: offline pods may start again, and the box's "
        "{resource} is given back slowly"),
    LadderRow((Rung.SQUEEZED,), When.CALM, Rung.OPEN,
        "{signal} has told of no harm by the box for {calm_s:.0f} s: the box's {resource} is held back no longer"),
)  # fmt: skip


class _Scene(Struct, frozen=True):
    """What the predicates of one resource look at.

    `case`: the one of an experiment on this resource; `experiment`: there is one, on any resource; `disturbed`: none
    can be judged now, as pods go in an emergency.
    `signal`: the detector that a transition would be about.
    `harmed`: a convicting signal is above its bar, not in the hysteresis below it; only then anything gets stricter.
    `disproved`: none of the convicting signals that still tell of harm is down by half at the floor, and none of them
    is a stock.
    """

    resource: LadderResource
    state: RungState
    settings: LadderSettings
    case: Case | None
    signal: str
    accused: bool
    accounted: bool
    emergency: bool
    disturbed: bool
    experiment: bool
    harmed: bool
    disproved: bool

    @property
    def over(self) -> bool:
        return self.case is not None and self.case.seconds >= (self.resource.trial_s or 0.0)

    @property
    def guilty(self) -> bool:
        return self.case is not None and self.case.after <= self.settings.fall_ratio * self.case.before


def _no_help(scene: _Scene) -> bool:
    due = scene.state.rung is Rung.EVICTING or scene.state.harm_s >= scene.resource.evict_after_s
    return scene.disproved and scene.harmed and due and not scene.emergency


def _lasts(scene: _Scene) -> bool:
    shut = scene.state.rung is Rung.CLOSED
    return scene.harmed and scene.state.harm_s >= (
        scene.resource.evict_after_s if shut else scene.settings.close_after_s
    )


def _calm(scene: _Scene) -> bool:
    state, settings = scene.state, scene.settings
    if scene.experiment:
        return False
    if state.rung is Rung.CLOSED:
        return state.calm_s >= doubled_s(settings.closed_calm_s, state.closings, settings.longest_calm_s)
    needed_s = doubled_s(settings.squeezed_calm_s, state.convictions, settings.longest_calm_s)
    return state.share >= 1.0 and state.calm_s >= needed_s


_HOLDS: Final[Mapping[When, Callable[[_Scene], bool]]] = {
    When.EMERGENCY: lambda scene: scene.emergency,
    When.ACCUSED: lambda scene: scene.accused,
    When.ACCOUNTED: lambda scene: scene.accounted,
    When.CALLED_OFF: lambda scene: scene.case is None or scene.disturbed or (scene.over and not scene.case.samples),
    When.GUILTY: lambda scene: scene.over and scene.guilty,
    When.EXONERATED: lambda scene: scene.over and not scene.guilty,
    When.NO_HELP: _no_help,
    When.LASTS: _lasts,
    When.CALM: _calm,
    When.RELIEVED: lambda scene: scene.state.calm_s > 0.0,
}


def doubled_s(first_s: float, times: int, longest_s: float) -> float:
    """`first_s` the first time, and twice as long each further time, up to the longest."""
    return min(longest_s, first_s * 2.0 ** min(max(0, times - 1), 30))


# --- a step -----------------------------------------------------------------------------------------------------------


def step(
    signals: Signals, state: LadderState, detectors: Mapping[str, Detector], settings: LadderSettings
) -> tuple[LadderDecision, LadderState]:
    """What holds from now on, and the state after it. Never raises; time that goes back stands still.

    A reading or a remembered signal of a detector that is not in `detectors` counts as not known.
    """
    t_s = signals.t_s if state.t_s is None else max(signals.t_s, state.t_s)
    seconds = 0.0 if state.t_s is None else min(t_s - state.t_s, settings.longest_gap_s)
    work = _Step(signals, state, t_s, seconds, detectors=detectors, settings=settings)
    work.clocks()
    work.take_stock()
    work.choose_suspect()
    for resource in settings.resources:
        work.move(resource)
    work.end_case()
    order = work.order()
    return work.decision(order), work.after(order)


class _Step:
    """The work of one step, on a copy of the state; nothing of it outlives the step."""

    def __init__(
        self,
        signals: Signals,
        state: LadderState,
        t_s: float,
        seconds: float,
        *,
        detectors: Mapping[str, Detector],
        settings: LadderSettings,
    ) -> None:
        self._readings = {name: one for name, one in signals.readings.items() if name in detectors}
        self._pods, self._t_s, self._seconds = signals.pods, t_s, seconds
        self._before, self._detectors, self._settings, self._over = state, detectors, settings, signals.over
        self._states = {resource.name: state.of(resource.name) for resource in settings.resources}
        self._unused = signals.unused
        self._tried = {resource.name: resource for resource in settings.resources if resource.trial_s is not None}
        self._settle_s = {resource.name: resource.settle_s for resource in settings.resources}
        nobody = not signals.pods and all(one.rung is Rung.OPEN for one in self._states.values())
        self._case = state.case if self._still_there(state.case) and not nobody else None
        self._pauses = {name: left - seconds for name, left in state.pauses.items() if left > seconds and not nobody}
        self._fruitless = {name: n for name, n in state.fruitless.items() if self._goes_on(name) and not nobody}
        self._accused = ""
        self._accounted: dict[str, str] = {}
        self._ended = False
        self._transitions: list[Transition] = []
        self._exonerated: list[str] = []
        self._emergencies = self._found_emergencies()
        self._irreducible = signals.irreducible if signals.pods else {}
        self._irreducible_s = {name: state.irreducible_s.get(name, -seconds) + seconds for name in self._irreducible}
        self._emergency_s = state.emergency_s + seconds if self._emergencies else 0.0

    def _still_there(self, case: Case | None) -> bool:
        """Its detector and resource, or the resource's experiments, may have gone with a change of settings."""
        return case is not None and case.detector in self._detectors and (not case.on or case.on in self._tried)

    def _goes_on(self, detector: str) -> bool:
        reading = self._readings.get(detector)
        return detector in self._pauses or reading is None or reading.high

    def _found_emergencies(self) -> dict[str, str]:
        """The detector, by resource; none where the box has no pod to go, or of a stock no more than its bound."""
        found: dict[str, str] = {}
        for name, reading in self._readings.items():
            detector = self._detectors[name]
            first = detector.suspects[0]
            if self._pods and reading.emergency and first in self._states and self._to_account_for(detector, first):
                found.setdefault(first, name)
        return found

    def _to_account_for(self, detector: Detector, resource: str) -> bool:
        """A stock is the box's harm only as long as the box is above its bound."""
        return not detector.stock or resource in self._over

    # clocks

    def clocks(self) -> None:
        """Let the time since the last step pass: for the experiment, and for each resource."""
        case = self._case
        if case is not None and case.on:
            case = replace(case, seconds=case.seconds + self._seconds)
            if case.seconds > self._tried[case.on].settle_s and case.detector in self._readings:
                case = replace(case, total=case.total + self._excess(case.detector), samples=case.samples + 1)
            self._case = case
        for name, state in self._states.items():
            if state.rung in _CONVICTED:
                self._states[name] = self._convicted(name, state)
            elif state.rung is Rung.OPEN and (state.convictions or state.closings):
                state = replace(state, open_s=state.open_s + self._seconds)  # noqa: PLW2901
                self._states[name] = _AT_REST if state.open_s >= self._settings.forget_s else state

    def _convicted(self, resource: str, state: RungState) -> RungState:
        seconds, settings = self._seconds, self._settings
        state = replace(state, floor_s=state.floor_s + seconds if state.share <= 0.0 else 0.0)
        high = [self._high(one, resource) for one in state.by]
        near = any(high) and not self._is_harmed(state.by, resource)
        state = replace(state, near_s=state.near_s + seconds if near else 0.0)
        if any(high) and state.near_s < settings.lost_s:
            share = state.share if self._trying else round(state.share - _part(seconds, settings.to_floor_s), 6)
            state = replace(
                state,
                relapses=state.relapses + self._is_eased(state),
                harm_s=state.harm_s + seconds,
                calm_s=0.0,
                silent_s=0.0,
                by=tuple(self._seen_at_floor(one, state.floor_s - self._settle_s[resource]) for one in state.by),
            )
            return replace(state, share=max(0.0, share) if state.rung is Rung.SQUEEZED else 0.0)
        silent_s = state.silent_s + seconds if None in high else 0.0
        if None in high and silent_s < settings.lost_s:
            return replace(state, silent_s=silent_s)
        eased = round(state.share + _part(seconds, settings.ease_s), 6)
        state = replace(state, harm_s=0.0, calm_s=state.calm_s + seconds, silent_s=silent_s)
        return replace(state, share=min(1.0, eased)) if self._is_eased(state) and not self._trying else state

    def _is_eased(self, state: RungState) -> bool:
        """Whether it is squeezed, and calm for long enough to be given something back."""
        settings = self._settings
        wait_s = doubled_s(settings.squeezed_calm_s, state.relapses, settings.longest_calm_s) if state.relapses else 0.0
        return state.rung is Rung.SQUEEZED and state.calm_s > wait_s

    def _high(self, one: Conviction, resource: str) -> bool | None:
        """Whether the harm goes on that a resource was convicted by; None: not known."""
        reading, detector = self._readings.get(one.detector), self._detectors.get(one.detector)
        if reading is None or detector is None:
            return None
        return (reading.emergency or reading.high) and self._to_account_for(detector, resource)

    def _is_harmed(self, by: Iterable[Conviction], resource: str) -> bool:
        """Whether a signal that convicts is above its bar, and not just within its hysteresis."""
        return any(self._height(one) > 1.0 and self._high(one, resource) for one in by)

    def _seen_at_floor(self, one: Conviction, seconds: float) -> Conviction:
        """The mean of its excess over the `seconds` since it counts, or over about the last `close_after_s`."""
        if seconds <= 0.0 or one.detector not in self._readings:
            return one
        excess = self._excess(one.detector)
        weight = _part(self._seconds, min(seconds, self._settings.close_after_s))
        return replace(
            one, at_floor=excess if one.at_floor is None else one.at_floor + weight * (excess - one.at_floor)
        )

    def _is_disproved(self, one: Conviction) -> bool:
        detector = self._detectors.get(one.detector)
        if one.at_floor is None or (detector is not None and detector.stock):
            return False
        return one.at_floor > self._settings.fall_ratio * one.before

    @property
    def _disturbed(self) -> bool:
        return bool(self._emergencies) and self._emergency_s < self._settings.emergency_blocks_s

    @property
    def _trying(self) -> bool:
        return self._case is not None and bool(self._case.on)

    def _excess(self, detector: str) -> float:
        return self._readings[detector].value - self._detectors[detector].rest

    # suspects

    def take_stock(self) -> None:
        """Which resources are convicted by account, and by which detector."""
        for name, detector in self._detectors.items():
            if detector.stock and self._pods and self._at_alarm(name):
                for suspect in self._over.intersection(detector.suspects):
                    self._accounted.setdefault(suspect, name)

    def choose_suspect(self) -> None:
        """Say who is tried next: a suspect of the open case, or else of the first detector that has an alarm.

        In an emergency nobody is, as pods go then, and an experiment could not be judged.
        """
        if self._trying or self._disturbed or not self._pods or self._going_down:
            return
        if self._case is not None:
            self._accused = self._suspect_of(self._case.detector, self._case.exonerated)
            if self._accused:
                return
            self._ended = True
            self.end_case()
        for name, detector in self._detectors.items():
            if not detector.stock and name not in self._pauses and (suspect := self._suspect_of(name, ())):
                self._case, self._accused = Case(name), suspect
                return

    def _suspect_of(self, detector: str, but: tuple[str, ...]) -> str:
        """Its next suspect; "": its signal is not at alarm (any more), or everybody is exonerated or convicted."""
        if not self._at_alarm(detector):
            return ""
        suspects = (name for name in self._detectors[detector].suspects if name in self._tried)
        barred = {*but, *self._accounted, *self._unused}
        free = (name for name in suspects if name not in barred)
        return next((name for name in free if self._states[name].rung is Rung.OPEN), "")

    def _at_alarm(self, detector: str) -> bool:
        reading = self._readings.get(detector)
        return reading is not None and reading.alarm and reading.value > reading.bar

    @property
    def _going_down(self) -> bool:
        """Whether a resource is still on its way to the floor."""
        return any(one.rung is Rung.SQUEEZED and one.share > 0.0 and one.harm_s > 0.0 for one in self._states.values())

    def end_case(self) -> None:
        """When it has ended: what follows for its detector."""
        case = self._case
        if case is None or not self._ended:
            return
        convicted = any(case.detector in (one.detector for one in state.by) for state in self._states.values())
        if case.exonerated and not convicted:
            self._exonerated.append(case.detector)
            self._fruitless[case.detector] = self._fruitless.get(case.detector, 0) + 1
        elif convicted:
            self._fruitless.pop(case.detector, None)
        settings, count = self._settings, self._fruitless.get(case.detector, 0)
        self._pauses[case.detector] = doubled_s(settings.pause_s, count, settings.longest_pause_s)
        self._case, self._ended = None, False

    # the table

    def move(self, resource: LadderResource) -> None:
        """Take the first row of the table that holds for this resource."""
        scene = self._scene(resource)
        for row in TABLE:
            if scene.state.rung in row.at and _HOLDS[row.when](scene):
                self._take(row, scene)
                return

    def _scene(self, resource: LadderResource) -> _Scene:
        name, state = resource.name, self._states[resource.name]
        live = self._live(state, name)
        return _Scene(
            resource=resource,
            state=state,
            settings=self._settings,
            case=self._case if self._case is not None and self._case.on == name else None,
            signal=self._signal(name, state),
            accused=self._accused == name,
            accounted=name in self._accounted,
            emergency=name in self._emergencies,
            disturbed=self._disturbed,
            experiment=self._trying,
            harmed=self._is_harmed(state.by, name),
            disproved=bool(live) and all(map(self._is_disproved, live)),
        )

    def _live(self, state: RungState, resource: str) -> list[Conviction]:
        """Those by which the harm goes on. A past shortage that is the box's no more neither convicts nor acquits."""
        return [one for one in state.by if self._high(one, resource)]

    def _signal(self, resource: str, state: RungState) -> str:
        """The name of the detector that is to be spoken of; "": none is known."""
        if resource in self._emergencies:
            return self._emergencies[resource]
        if state.rung is Rung.OPEN and resource in self._accounted:
            return self._accounted[resource]
        if state.rung in _CONVICTED:
            return max(state.by, key=lambda one: self._weight(one, resource), default=_NOBODY).detector
        return self._case.detector if self._case is not None else ""

    def _weight(self, one: Conviction, resource: str) -> tuple[bool, bool, float]:
        """By which conviction is spoken of: of those by which the harm goes on, a stock's first, as it needs no proof
        and is answered by a setting of its own; then the highest.
        """
        height, detector = self._height(one), self._detectors.get(one.detector)
        live = bool(self._high(one, resource))
        return live and height > 1.0 and detector is not None and detector.stock, live, height

    def _height(self, one: Conviction) -> float:
        """How high the signal is: 1 is its bar; 0 where it is not known."""
        reading, detector = self._readings.get(one.detector), self._detectors.get(one.detector)
        if reading is None or detector is None:
            return 0.0
        return (reading.value - detector.rest) / (reading.bar - detector.rest)

    def _take(self, row: LadderRow, scene: _Scene) -> None:
        name, case, signal = scene.resource.name, self._case, scene.signal
        reason = row.reason.format_map(self._words(scene, row.when))
        self._transitions.append(Transition(self._t_s, name, scene.state.rung, row.to, signal, reason))
        self._states[name] = self._entered(row, scene)
        match row.when:
            case When.ACCUSED:
                assert case is not None
                before = self._readings[signal].mean - self._detectors[signal].rest
                self._case = Case(signal, case.exonerated, name, before)
            case When.EXONERATED:
                assert case is not None
                self._case = Case(signal, (*case.exonerated, name))
            case When.GUILTY | When.CALLED_OFF:
                self._ended = True
            case When.EMERGENCY if scene.case is not None:
                self._ended = True
            case When.NO_HELP:
                self._exonerated.extend(one.detector for one in self._live(scene.state, name))

    def _entered(self, row: LadderRow, scene: _Scene) -> RungState:
        """The resource's state on its new rung: its clock of harm begins anew."""
        old, signal = scene.state, scene.signal
        new = replace(old, rung=row.to, harm_s=0.0)
        match row.when:
            case When.EMERGENCY:
                by = (Conviction(signal, self._excess(signal)), *(one for one in old.by if one.detector != signal))
                closings = old.closings + (old.rung is not Rung.CLOSED)
                new = replace(new, share=0.0, by=by, calm_s=0.0, silent_s=0.0, closings=closings)
            case When.ACCUSED:
                new = replace(new, share=0.0)
            case When.CALLED_OFF | When.EXONERATED:
                new = replace(new, share=1.0)
            case When.ACCOUNTED:
                by = (Conviction(signal, self._excess(signal)),)
                new = replace(new, share=1.0, by=by, floor_s=0.0, convictions=old.convictions + 1)
            case When.GUILTY:
                assert scene.case is not None
                by = (Conviction(signal, scene.case.before),)
                new = replace(new, share=1.0, by=by, floor_s=0.0, convictions=old.convictions + 1)
            case When.NO_HELP:
                new = _AT_REST
            case When.LASTS if row.to is Rung.CLOSED:
                new = replace(new, share=0.0, closings=old.closings + 1)
            case When.CALM if row.to is Rung.OPEN:
                new = RungState(convictions=old.convictions, closings=old.closings)
        return new

    def _words(self, scene: _Scene, when: When | None = None) -> dict[str, object]:
        detector, reading = self._detectors.get(scene.signal), self._readings.get(scene.signal)
        value = bar = emergency = "a value that is not known"
        if detector is not None and reading is not None:
            value, bar = detector.in_words(reading.value), detector.in_words(reading.bar)
            emergency = detector.in_words(detector.emergency or 0.0)
        before, after = _compared(scene, when)
        return {
            "signal": f"{detector.words} ({scene.signal})" if detector is not None else "the signal",
            "value": value,
            "bar": bar,
            "emergency": emergency,
            "resource": scene.resource.words,
            "fall": f"{max(0.0, after) / before:.0%}" if before > 0.0 else "all",
            "harm_s": scene.state.harm_s,
            "calm_s": scene.state.calm_s,
            "trial_s": scene.resource.trial_s or 0.0,
        }

    # evictions

    def order(self) -> EvictionOrder | None:
        """One pod is to go now, if a resource is on that rung, its harm goes on, and the budget has it.

        So it is, on any rung, where the box is above its bound for as long by what can't be taken back from it; but who
        is harmed comes first.
        """
        for resource in self._settings.resources:
            scene = self._scene(resource)
            if scene.state.rung is Rung.EVICTING and self._pods and (scene.harmed or scene.emergency):
                reason = "{signal} is at {value}, its bar is {bar}".format_map(self._words(scene))
                return self._within_budget(scene, scene.signal, reason)
        for resource in self._settings.resources:
            if self._irreducible_s.get(resource.name, -1.0) >= resource.evict_after_s:
                reason = f"{self._irreducible[resource.name]}, for {self._irreducible_s[resource.name]:.0f} s by now"
                return self._within_budget(self._scene(resource), "", reason)
        return None

    def _within_budget(self, scene: _Scene, signal: str, reason: str) -> EvictionOrder | None:
        budget, past, t_s = self._settings.budget, self._before, self._t_s
        if past.ordered_s is not None and t_s - past.ordered_s < budget.pause(emergency=scene.emergency):
            return None
        if len(_recent(past.evictions, t_s, budget.window_s)) >= budget.of(emergency=scene.emergency):
            return None
        recent = () if scene.emergency else _recent(past.evictions, t_s, budget.owner_s)
        barred = frozenset(name for one in recent for name in one.owners)
        return EvictionOrder(scene.resource.name, signal, scene.emergency, barred, reason)

    # what comes out

    def decision(self, order: EvictionOrder | None) -> LadderDecision:
        return replace(
            _holding(self._states, self._settings),
            transitions=tuple(self._transitions),
            eviction=order,
            exonerated=tuple(dict.fromkeys(self._exonerated)),
        )

    def after(self, order: EvictionOrder | None) -> LadderState:
        budget = self._settings.budget
        past = _recent(self._before.evictions, self._t_s, max(budget.window_s, budget.owner_s))
        return LadderState(
            t_s=self._t_s,
            resources={name: state for name, state in self._states.items() if state != _AT_REST},
            case=self._case,
            pauses=self._pauses,
            fruitless=self._fruitless,
            evictions=past if order is None else (*past, PastEviction(self._t_s)),
            ordered_s=self._before.ordered_s if order is None else self._t_s,
            emergency_s=self._emergency_s,
            irreducible_s=self._irreducible_s,
        )


def in_force(state: LadderState, settings: LadderSettings) -> LadderDecision:
    """What holds in a state before any step, as after a restart."""
    return _holding({one.name: state.of(one.name) for one in settings.resources}, settings)


def _holding(states: Mapping[str, RungState], settings: LadderSettings) -> LadderDecision:
    shut = [one.words for one in settings.resources if states[one.name].rung in _SHUT]
    return LadderDecision(
        shares={name: state.share for name, state in states.items() if state.rung is not Rung.OPEN},
        closed=f"the box harms online pods: {', '.join(shut)}" if shut else "",
    )


def _part(seconds: float, of_s: float) -> float:
    return min(1.0, seconds / of_s) if of_s > 0.0 else 1.0


def _recent(past: Iterable[PastEviction], t_s: float, within_s: float) -> tuple[PastEviction, ...]:
    return tuple(one for one in past if t_s - one.t_s < within_s)


def _compared(scene: _Scene, when: When | None) -> tuple[float, float]:
    """The excess before, and with the box at its floor, that a verdict was made from."""
    if when is When.NO_HELP:
        worst = next(one for one in scene.state.by if one.detector == scene.signal)
        return worst.before, worst.at_floor or 0.0
    return (scene.case.before, scene.case.after) if scene.case is not None else (0.0, 0.0)


# --- what the caller did ----------------------------------------------------------------------------------------------


def evicted(state: LadderState, owners: tuple[str, ...]) -> LadderState:
    """The pod that the last order asked for is going; `owners` are the names of what owns it (none: nothing does)."""
    if not state.evictions:
        return state
    *past, last = state.evictions
    return replace(state, evictions=(*past, replace(last, owners=owners)))


def not_evicted(state: LadderState) -> LadderState:
    """Nobody went for the last order, so that it does not count; the next one waits for its pause all the same."""
    return replace(state, evictions=state.evictions[:-1])


def shifted(state: LadderState, shift_s: float) -> LadderState:
    """The state on a clock that is `shift_s` ahead of the one that it was made on."""
    return replace(
        state,
        t_s=None if state.t_s is None else state.t_s + shift_s,
        evictions=tuple(replace(one, t_s=one.t_s + shift_s) for one in state.evictions),
        ordered_s=None if state.ordered_s is None else state.ordered_s + shift_s,
    )
