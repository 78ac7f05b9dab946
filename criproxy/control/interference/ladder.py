"""The ladder: what is done about harm to online pods, resource by resource. Everything that changes a rung is here.

How it works
------------
Each resource of the box stands on a rung of its own:

    open      nothing is restricted
    tried     the experiment: squeezed to its floor, given back, and squeezed again
    squeezed  convicted: held as low as it must be, and given back by probes
    closed    at its floor; no new offline pod, and no more capacity is published than is allocated
    evicting  at its floor; one pod goes, then it is looked again

`TABLE` has every transition: the rungs that it leaves, on what, where it leads, and its reason in words. Rows are tried
from the top and the first that holds is taken, one per resource and step.

**The experiment** is a cross-over. An alarm opens a *case*: the detector's suspects are tried one after the other, as
long as the signal is high. Harm that others bring falls by itself, and so proves little by falling while the box is
squeezed; that it comes back when the box does, and goes again, proves much:

    squeeze   how much of its excess above rest is left? Clearly more than half: not the cause. Else
    return    all is given back. Not back at half of the excess within the phase and `return_s`: it ended by itself, and
              the case with it. Else
    squeeze   clearly less than half is left: guilty. Clearly more: not the cause. Else another return and squeeze

    left      = mean of all squeezes / mean of all that was seen at open
    guilty    left <= guilty_ratio - sure_ratio / n            after n returns, n >= 1; 2 where one was late
    acquitted left >  guilty_ratio + doubt_ratio / (n + 1)
    after `most_returns`, `guilty_ratio` alone decides: half, and a little for what lags behind the squeeze

A phase takes a random time within the resource's bounds, so that no harm with a period of its own keeps step with it,
nor anybody who knows the law; likewise pauses, and waits for probes, end sooner by up to `early_ratio` of them, and
`early_most_s`. What is seen in the first `settle_s` of a squeeze does not count. CPU and disks come back at once, and
phases take 1 to 2 s. Memory comes back slowly: pages that online lost must be read again before the signal can fall, so
that a squeeze takes 10 to 12 s, of which the first 5 do not count; and the box fills again what it gave back before the
signal can rise, so that a return is waited for up to 20 s longer, and what is seen before it does not count. Others may
have brought one that is later than a phase. Where it does not come back within that, the box does no harm now, and an
alarm to come opens a new case. A detector whose values come seconds apart has `slow_phase_s` to twice of that for a
phase at least.

One experiment runs at a time, and none for a detector that has convicted a resource, until harm at the floor of that
was tested. It does not begin while another resource is on its way to the floor, probed, or tested, since nobody could
say then which of the two has helped. Experiments take a resource for `trial_ratio` of the time at most, which is saved
up to `trial_most_s`; one that convicts is not counted. A case whose suspects were all acquitted doubles the detector's
patience (see `detectors`), and no other case is opened by it for `pause_s`. Where one could not be tried, as its budget
was spent, others had risen (see below), or another signal has convicted it, the box is not known to be innocent, and
only the pause follows.

**Free evidence spares experiments.** A resource of which the box used nothing just before is not tried (`unused`).
Where something else that is outside of kubepods and the box has risen with the harm, or steal has, a resource is tried
only once the signal has been high for `spared_s` (`others`); until then, what comes after it in turn waits, too.

**After a conviction** only what lasts counts as harm: above the bar for more than `harmed_s`, never one look. What is
high but no harm pauses calm, and does not reset it. The resource stands at a *level* between the floor (0) and the
prediction (1) that is known to be good, at first the floor:

    probe     after `first_wait_s` of calm the prediction is given for the resource's `probe_s`, then by halves what
              lies between the highest good and the lowest bad level; and all of it after 5, 10, 20 s … so that
              `longest_wait_s` after the end of guilt at the latest all is back: open, when it stays calm at that
    harm at the floor       is no relapse. Once it has lasted for `look_s`, all is given back for a phase, which waits
                            for what comes back slowly as a return does, and the harm at the floor is compared with the
                            harm at open now: at most half of it: the box is the cause still, and the next look waits
                            twice as long. Else it is another's
    harm at another level   the box is squeezed to the floor for a phase. It falls: the level is not good any more, and
                            the floor is. Else the harm is another's
    another detector's      alarm at such a level: it is tested likewise, by what that one tells, and where the harm
                            falls, comes back with the level as soon as a return does, and falls again, the level is not
                            good any more; one below it is looked for. Else that detector has acquitted the resource
    another's, once         the box may be harmless again, so that the probe of all waits for `first_wait_s` alone
    another's, twice        acquitted: all is given back, and the detector's patience doubles

A box that has harmed at `sure_relapses` probes is guilty for sure, where one conviction may be an error: until it has
been open for `forget_s`, acquittals leave its detectors' patience as short as after the first, and its experiments may
save up `trial_guilty_most_s`: two of memory, as others' spikes cost, spend what there is else.

So it is on every rung; and a rung that is stricter than squeezed is entered only after harm at the floor was seen to
grow with the box in this conviction: nobody is evicted for less. Harm that goes on at the floor closes the box after
`close_after_s`, and lets a pod go after `evict_after_s`. Where the harm is not down to `relieved_ratio` once that pod
has ended, no other pod goes for this resource, until it has been open for `forget_s`: what is left is not the box's. A
pod that takes longer than `leave_s` to end says nothing, and keeps no other from going.

**By account**: where a signal is a stock, which pods keep and do not use up as it comes, nothing comes back within
seconds, and no experiment is made. A suspect of which the box holds more than its bound is convicted on the alarm;
within its bound it has nothing to give back, and the harm is not its own, in an emergency either: the box keeps its
floor however full the node is. It is held to the prediction, towards the floor while the harm lasts (`to_floor_s`), and
given back when calm (`ease_s`): the first time at once, and after each relapse later. A pod goes after
`shortage_evict_after_s`. A resource without a `phase_s` is judged by account alone.

**Clocks** are seconds summed up from step to step, each step counting `longest_gap_s` at most. So a restart, or a gap
in the samples, counts neither as calm nor as harm, and a state that was stored goes on where it stood. A signal that is
not reported is neither, until it has been silent for `lost_s`: then it is taken for calm, as without evidence nothing
is held back for ever. So is one that stays within its hysteresis for so long: it is no harm, and what is usual may have
changed. What is random comes of a number in the state, so that a stored state goes on alike.

**What can't be taken back.** Where the box holds more than its bound of a resource in what only a pod's end gives back,
for `shortage_evict_after_s`, a pod goes, too: no rung below that would help, so that none is taken. So it is where pods
of the box starve for CPU: only another's end gives them more.

A service's own word squeezes and closes the box, and never costs a pod (`Detector.evicts`): who owns the service could
have others' pods stopped for ever.

**Evictions** keep to a budget whatever the signals say: see `Budget`. An order counts from the moment it is given.

Invariants, which the tests hold against random signals: no more evictions than the budget; from anywhere, calm signals
lead to open; the same input gives the same output; a state that was written and read goes on as if it had not been.
"""

import enum
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from criproxy.control.interference.detectors import IO, LONGEST_GAP_S, LONGEST_PATIENCE_S, Assessment, Detector
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

LONGEST_CALM_S: Final = 600.0
ALL: Final = 2.0
"""The level at which nothing is restricted; 1 is the prediction."""

LOOK_S: Final = 0.5
"""From look to look while something is going on; phases are as long as a whole number of them."""

RETURN_LOOKS: Final = 3
"""So many looks say how high a signal is that has come back by and by."""


# --- settings ---------------------------------------------------------------------------------------------------------


class LadderResource(Struct, frozen=True):
    """A resource as the ladder knows it.

    A phase of an experiment takes `phase_s` to `longest_phase_s`, the first `settle_s` of which say nothing; None: no
    experiment is made. `return_s`: how much longer a return is waited for. `probe_s`: how long a probe takes.
    """

    name: str
    words: str
    phase_s: float | None = None
    longest_phase_s: float = 0.0
    settle_s: float = 0.0
    return_s: float = 1.0
    probe_s: float = 3.0


MEMORY_PHASE_S: Final = 10.0
"""A first guess, not measured."""

RESOURCES_IN_TURN: Final = (
    LadderResource(MEMORY, "memory", MEMORY_PHASE_S, 12.0, settle_s=MEMORY_PHASE_S / 2, return_s=20.0, probe_s=30.0),
    LadderResource(PIDS, "processes"),
    LadderResource(CPU, "CPU", 1.0, 2.0, settle_s=0.5),
    LadderResource(IO, "IO", 1.0, 2.0, settle_s=0.5),
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
    """The numbers of the module's text.

    `squeezed_calm_s` (by account) and `closed_calm_s` of calm lead down from these rungs; each doubles with every time
    that the rung is entered again, up to `longest_calm_s`, until the resource has been open for `forget_s`. So does
    what must be calm before a resource that is convicted by account is eased again.

    `good_ratio`: a level is good if the signal stays below this part of its bar in a probe, or is less than half of the
    way from what is usual at the floor to its bar. `step`: the search for a
    level ends when good and bad are no further apart. `deaf_s`: for so long harm that was found to be another's counts
    for nothing. `emergency_blocks_s`: for so long an emergency keeps all experiments from being made. By then those
    pods have gone for it that may; if it lasts, other harm must not go unanswered.
    """

    guilty_ratio: float = 0.55
    sure_ratio: float = 0.2
    doubt_ratio: float = 0.3
    most_returns: int = 4
    half_ratio: float = 0.5
    pause_s: float = 30.0
    slow_phase_s: float = 3.0
    trial_ratio: float = 0.0075
    trial_most_s: float = 30.0
    trial_guilty_most_s: float = 60.0
    spared_s: float = LONGEST_PATIENCE_S
    harmed_s: float = 1.0
    first_wait_s: float = 5.0
    longest_wait_s: float = 90.0
    good_ratio: float = 0.6
    step: float = 0.15
    look_s: float = 5.0
    deaf_s: float = 10.0
    innocents: int = 2
    sure_relapses: int = 3
    early_ratio: float = 0.25
    early_most_s: float = 6.0
    relieved_ratio: float = 0.8
    leave_s: float = 60.0
    to_floor_s: float = 5.0
    ease_s: float = 30.0
    close_after_s: float = 10.0
    evict_after_s: float = 120.0
    shortage_evict_after_s: float = 5.0
    squeezed_calm_s: float = 10.0
    closed_calm_s: float = 60.0
    longest_calm_s: float = LONGEST_CALM_S
    forget_s: float = 1800.0
    lost_s: float = 30.0
    emergency_blocks_s: float = 15.0
    longest_gap_s: float = LONGEST_GAP_S
    budget: Budget = Budget()
    resources: tuple[LadderResource, ...] = RESOURCES_IN_TURN


class Phases(Struct, frozen=True):
    """How long phases of an experiment with a resource take for a detector, and probes; see `LadderResource`.

    `gradual`: a change shows by and by, so that what is seen before the signal has come back says nothing.
    """

    shortest_s: float
    longest_s: float
    settle_s: float
    return_s: float
    probe_s: float
    gradual: bool = False


def phases(resource: LadderResource, detector: Detector | None, settings: LadderSettings) -> Phases:
    """Those of a detector whose values come seconds apart take longer, each of them for some of its values."""
    shortest_s, longest_s = resource.phase_s or 0.0, max(resource.phase_s or 0.0, resource.longest_phase_s)
    gradual = resource.return_s > longest_s
    if detector is None or not detector.slow:
        return Phases(shortest_s, longest_s, resource.settle_s, resource.return_s, resource.probe_s, gradual)
    slow_s = settings.slow_phase_s
    return Phases(
        max(slow_s, shortest_s),
        max(2.0 * slow_s, longest_s),
        max(1.0, resource.settle_s),
        resource.return_s + slow_s,
        resource.probe_s + slow_s,
        gradual,
    )


# --- what goes in and comes out ---------------------------------------------------------------------------------------


class Signals(Struct, frozen=True):
    """One step's evidence: the readings by detector (one that is not in it is not known), and the box's pods.

    `over`: the resources of which the box holds more than its bound. `unused`: those of which it uses so little, or
    that can't be squeezed now, that no experiment with it would say anything. `others`: those of which somebody outside
    of kubepods and the box has taken more since the harm began. `irreducible`: those of which the box holds more than
    its bound in what can't be taken back from it without a pod's end, or of which its pods have too little, and how, in
    words. `leaving`: what online was short of when a pod had to go that has not ended yet; "": nobody was harmed.
    """

    t_s: float
    readings: Mapping[str, Assessment]
    pods: int
    over: frozenset[str] = frozenset()
    unused: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()
    irreducible: Mapping[str, str] = {}
    leaving: frozenset[str] = frozenset()


class Transition(Struct, frozen=True):
    """A resource has changed its rung at `t_s`, and why; `signal` is the detector's name, "" where there is none."""

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

    @property
    def starved(self) -> bool:
        """It is pods of the box that have too little of it."""
        return self.resource == CPU and not self.signal


class LadderDecision(Struct, frozen=True):
    """What holds from now on.

    `shares`: per restricted resource, how far between its floor (0) and its prediction (1) the box may go; one that
    is not in it is not held now, be it open, given back in an experiment, or probed. `closed`: why no new offline pod
    is let in, "" when pods are let in. `exonerated`: the detectors whose patience doubles. `explained`: by detector,
    the excess above rest of an alarm that the box was found not to be the cause of.
    """

    shares: Mapping[str, float]
    closed: str
    transitions: tuple[Transition, ...] = ()
    eviction: EvictionOrder | None = None
    exonerated: tuple[str, ...] = ()
    explained: Mapping[str, float] = {}


# --- state ------------------------------------------------------------------------------------------------------------


class Mean(Struct, frozen=True):
    """Of a signal's excess above rest, over some samples."""

    total: float = 0.0
    samples: int = 0

    def plus(self, excess: float) -> "Mean":
        return Mean(self.total + excess, self.samples + 1)

    @property
    def value(self) -> float:
        return self.total / self.samples if self.samples else 0.0


class HoldMode(enum.StrEnum):
    """What is going on with a resource that was convicted by an experiment."""

    REST = "rest"
    PROBE = "probe"
    TEST = "test"


class Hold(Struct, frozen=True):
    """How a resource is held that was convicted by an experiment; see the module.

    `level` is known to be good and `bad` not to be, `at` is where it stands. `age_s`: for how long it has been in this
    mode, of which a test takes `long_s`. `harm` and `harm_s`: the harm since it was last quiet, in this mode; `seen`:
    what a test has seen, and `returned` how many looks since the harm grew with the box; `worst`: the highest value of
    a probe, and `usual` that of what is quiet at the floor, where 1 is the bar. `calm_s` counts up to the next probe,
    from a random part of the wait on; `wait_s`: how long it waits for one of all; `look_s`: how long harm at the floor
    waits for a test. `innocent`: how often in a row the harm was found to be another's; `returns`: how often harm at
    the floor was seen to come of the box; `relapses`: how often harm came of a level that was probed or held.
    `ordered`: the mean harm before a pod went last; None: none went, it has not ended in time, or it is known whether
    it has helped.
    """

    mode: HoldMode = HoldMode.REST
    at: float = 0.0
    level: float = 0.0
    bad: float = ALL
    searching: bool = True
    age_s: float = 0.0
    long_s: float = 0.0
    harm: Mean = Mean()
    harm_s: float = 0.0
    seen: Mean = Mean()
    returned: int = 0
    worst: float = 0.0
    usual: Mean = Mean()
    calm_s: float = 0.0
    wait_s: float = 0.0
    look_s: float = 0.0
    deaf_s: float = 0.0
    innocent: int = 0
    returns: int = 0
    relapses: int = 0
    ordered: float | None = None
    by: str = ""
    """The other detector whose harm at the level is tested; "": none."""
    fell: bool = False
    """That harm fell in a first test."""
    free: bool = False
    """It was calm at open."""

    def searches(self, step: float) -> bool:
        return self.searching and self.level < 1.0 and self.bad - self.level > step

    def wait_of_probe_s(self, settings: LadderSettings) -> float:
        """After so much calm, the next one begins."""
        return settings.first_wait_s if self.searches(settings.step) else self.wait_s

    def harmed(self, harmed_s: float) -> bool:
        """Harm that lasts: never one look."""
        return self.harm_s > harmed_s and self.harm.samples > 1

    def rests(self, **changes: float | str) -> "Hold":
        """At its level, from now on."""
        new = replace(self, **changes)
        return replace(
            new,
            mode=HoldMode.REST,
            at=new.level,
            age_s=0.0,
            calm_s=0.0,
            harm=Mean(),
            harm_s=0.0,
            seen=Mean(),
            returned=0,
            worst=0.0,
        )


class RungState(Struct, frozen=True):
    """A resource's rung and clocks; see the module. `signal`: the detector that it is convicted by.

    `held`: how, by an experiment; None: by account, and `share` counts. `harm_s`: for how long there has been harm at
    the floor on this rung; `calm_s`: how much calm since. `near_s`: for how long the signal has been high, but within
    its hysteresis. `relapses`: how often harm came back while it was eased. `convictions` and `closings` count how
    often it came there. `vain`: a pod went, and it did not help. `guilty`: for sure, not long ago.
    """

    rung: Rung = Rung.OPEN
    signal: str = ""
    share: float = 1.0
    held: Hold | None = None
    harm_s: float = 0.0
    calm_s: float = 0.0
    silent_s: float = 0.0
    open_s: float = 0.0
    near_s: float = 0.0
    relapses: int = 0
    convictions: int = 0
    closings: int = 0
    vain: bool = False
    guilty: bool = False


class Case(Struct, frozen=True):
    """A detector's alarm and the suspects that were tried for it; `on`: the one that is being tried, "": none is.

    `squeezed`: whether this phase is a squeeze; it takes `long_s`, and is `age_s` old. `before` is the signal's mean
    excess above rest when it began. `low`: of all squeezes; `high`: of all that was seen at open; `seen`: how many
    samples this phase has, and `returned` how many of these since the signal came back. `late`: it has come back so
    late that others may have brought it.
    """

    detector: str
    acquitted: tuple[str, ...] = ()
    on: str = ""
    squeezed: bool = True
    before: float = 0.0
    age_s: float = 0.0
    long_s: float = 0.0
    low: Mean = Mean()
    high: Mean = Mean()
    seen: int = 0
    returned: int = 0
    returns: int = 0
    late: bool = False

    @property
    def left(self) -> float:
        """How much of its excess is left when the box is squeezed."""
        return self.low.value / self.high.value if self.high.value > 0.0 else 1.0


class PastEviction(Struct, frozen=True):
    """`owners`: by which names the pod's owner is known; none: it has none, or it is not known.

    `resource`: what online was short of, and `harm` how high above rest that was; "": nobody was harmed.
    """

    t_s: float
    owners: tuple[str, ...] = ()
    resource: str = ""
    harm: float = 0.0


class LadderState(Struct, frozen=True):
    """All that is remembered from step to step. `ordered_s`: when the last eviction was ordered; None: none was.

    `pauses`: for how many more seconds a detector opens no case. `spent_s`: how much of its budget for experiments a
    resource has spent. `emergency_s`: for how long there has been an emergency without a break. `irreducible_s`: the
    same of each resource of which the box holds too much that can't be taken back.
    `random_state`: what is random comes of it; files call it luck.
    """

    t_s: float | None = None
    resources: dict[str, RungState] = field(default_factory=dict)
    case: Case | None = None
    pauses: dict[str, float] = field(default_factory=dict)
    spent_s: dict[str, float] = field(default_factory=dict)
    evictions: tuple[PastEviction, ...] = ()
    ordered_s: float | None = None
    emergency_s: float = 0.0
    irreducible_s: dict[str, float] = field(default_factory=dict)
    random_state: int = field(default=0, name="luck")

    def of(self, resource: str) -> RungState:
        return self.resources.get(resource, _AT_REST)


_AT_REST: Final = RungState()


# --- the table --------------------------------------------------------------------------------------------------------


class When(enum.Enum):
    """What a transition waits for; the predicates are in `_HOLDS`."""

    EMERGENCY = (
        "a stock that names this resource first is at its emergency, there are pods, and the box holds more of it than "
        "its bound"
    )
    ACCUSED = "it is the next suspect of an alarm"
    ACCOUNTED = "a stock that names it is at alarm, and the box holds more of it than its bound"
    CALLED_OFF = "the experiment can't be judged: an emergency came between, or the signal is not known any more"
    GUILTY = "the signal fell when it was squeezed, came back when it was given back, and fell again"
    KEPT = "the signal did not fall enough while it was squeezed"
    ENDED = "the signal fell, and did not come back when all was given back"
    NO_HELP = "twice in a row, the harm at the floor was not less than half of the harm at open"
    LASTS = "the harm has lasted long enough on this rung"
    CALM = "calm for long enough, or at open: everything is given back that this rung gives back"
    RELIEVED = "the signal is below its bar by its hysteresis, or the box is within its bound"


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
        "{signal} is at {value}, above its bar of {bar}: the box's {resource} is squeezed to its floor, given back, "
        "and squeezed again, to see whether it is the cause"),
    LadderRow((Rung.OPEN,), When.ACCOUNTED, Rung.SQUEEZED,
        "{signal} is at {value}, above its bar of {bar}, and the box is above its bound for {resource}: it is held to "
        "the prediction"),
    LadderRow((Rung.TRIED,), When.CALLED_OFF, Rung.OPEN,
        "the experiment is called off, as {signal} can't be judged: the box's {resource} is given back"),
    LadderRow((Rung.TRIED,), When.GUILTY, Rung.SQUEEZED,
        "{signal} fell to {fall} of its excess when the box's {resource} was at its floor, came back with it, and "
        "fell again: the box is the cause, and its {resource} is held at its floor"),
    LadderRow((Rung.TRIED,), When.KEPT, Rung.OPEN,
        "{signal} kept {fall} of its excess although the box's {resource} was at its floor: the box is not the cause, "
        "and its {resource} is given back"),
    LadderRow((Rung.TRIED,), When.ENDED, Rung.OPEN,
        "{signal} did not come back when the box's {resource} was given back: it has ended by itself"),
    LadderRow((Rung.SQUEEZED, Rung.CLOSED, Rung.EVICTING), When.NO_HELP, Rung.OPEN,
        "{signal} is as high with the box's {resource} at its floor as without: the box is not the cause any more, no "
        "pod goes for it, and its {resource} is given back"),
    LadderRow((Rung.SQUEEZED,), When.LASTS, Rung.CLOSED,
        "{signal} is at {value}, after {harm_s:.0f} s of harm with the box's {resource} held back: no new offline pod"),
    LadderRow((Rung.CLOSED,), When.LASTS, Rung.EVICTING,
        "{signal} is at {value}, after {harm_s:.0f} s of harm with the box closed: one pod goes"),
    LadderRow((Rung.EVICTING,), When.RELIEVED, Rung.CLOSED,
        "{signal} is at {value}, which is no harm by the box any more: no more pods go"),
    LadderRow((Rung.CLOSED,), When.CALM, Rung.SQUEEZED,
        "{signal} has told of no harm by the box for {calm_s:.0f} s: offline pods may start again, and the box's "
        "{resource} is given back step by step"),
    LadderRow((Rung.SQUEEZED,), When.CALM, Rung.OPEN,
        "{signal} tells of no harm by the box, with all of its {resource} given back: it is held back no longer"),
)  # fmt: skip


class _Scene(Struct, frozen=True):
    """What the predicates of one resource look at.

    `case`: the one of an experiment on this resource; `experiment`: there is one, on any resource; `disturbed`: none
    can be judged now, as pods go in an emergency. `signal`: the detector that a transition would be about.
    `harmed`: the convicting signal is above its bar, not in the hysteresis below it, and the box stands where it is
    held: only then anything gets stricter. `account`: it is convicted by a stock. `evicts`: its signal may cost a pod.
    """

    resource: LadderResource
    phases: Phases
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
    account: bool
    evicts: bool

    @property
    def over(self) -> bool:
        return self.case is not None and self.case.age_s >= self.case.long_s

    @property
    def squeezed(self) -> bool:
        """A squeeze is over."""
        return self.over and self.case is not None and self.case.squeezed and self.case.seen > 0

    @property
    def evict_after_s(self) -> float:
        return self.settings.shortage_evict_after_s if self.account else self.settings.evict_after_s


def _called_off(scene: _Scene) -> bool:
    case = scene.case
    return case is None or scene.disturbed or (scene.over and not case.seen and case.age_s >= _wait_s(scene, case))


def _wait_s(scene: _Scene, case: Case) -> float:
    """How long a phase waits for its first value."""
    return scene.phases.longest_s if case.squeezed else case.long_s + scene.phases.return_s


def _guilty(scene: _Scene) -> bool:
    case, settings = scene.case, scene.settings
    if case is None or not scene.squeezed or case.returns < (2 if case.late else 1):
        return False
    margin = settings.sure_ratio / case.returns if case.returns < settings.most_returns else 0.0
    return case.left <= settings.guilty_ratio - margin


def _kept(scene: _Scene) -> bool:
    case, settings = scene.case, scene.settings
    if case is None or not scene.squeezed:
        return False
    margin = settings.doubt_ratio / (case.returns + 1) if case.returns < settings.most_returns else 0.0
    return case.left > settings.guilty_ratio + margin


def _ended(scene: _Scene) -> bool:
    case = scene.case
    return case is not None and not case.squeezed and not case.returned and case.age_s >= _wait_s(scene, case)


def _lasts(scene: _Scene) -> bool:
    state = scene.state
    proved = scene.account or (state.held is not None and state.held.returns > 0)
    after_s = scene.evict_after_s if state.rung is Rung.CLOSED else scene.settings.close_after_s
    proved = proved and not (state.rung is Rung.CLOSED and (state.vain or not scene.evicts))
    return scene.harmed and proved and state.harm_s >= after_s


def _calm(scene: _Scene) -> bool:
    state, settings = scene.state, scene.settings
    if state.held is not None and (state.held.free or state.rung is Rung.SQUEEZED):
        return state.held.free
    if scene.experiment:
        return False
    if state.rung is Rung.CLOSED:
        return state.calm_s >= doubled_s(settings.closed_calm_s, state.closings, settings.longest_calm_s)
    needed_s = doubled_s(settings.squeezed_calm_s, state.convictions, settings.longest_calm_s)
    return state.share >= 1.0 and state.calm_s >= needed_s


def _no_help(scene: _Scene) -> bool:
    held = scene.state.held
    return held is not None and held.innocent >= scene.settings.innocents and not scene.emergency


_HOLDS: Final[Mapping[When, Callable[[_Scene], bool]]] = {
    When.EMERGENCY: lambda scene: scene.emergency,
    When.ACCUSED: lambda scene: scene.accused,
    When.ACCOUNTED: lambda scene: scene.accounted,
    When.CALLED_OFF: _called_off,
    When.GUILTY: _guilty,
    When.KEPT: _kept,
    When.ENDED: _ended,
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
    work.turn()
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
        self._unused, self._others = signals.unused, signals.others
        self._resources = {resource.name: resource for resource in settings.resources}
        nobody = not signals.pods and all(one.rung is Rung.OPEN for one in self._states.values())
        self._case = state.case if self._still_there(state.case) and not nobody else None
        self._pauses = {name: left - seconds for name, left in state.pauses.items() if left > seconds and not nobody}
        saved_s = settings.trial_ratio * seconds
        self._spent_s = {name: spent - saved_s for name, spent in state.spent_s.items() if spent > saved_s}
        self._random_state = state.random_state
        self._accused = ""
        self._accounted: dict[str, str] = {}
        self._ended = self._by_itself = False
        self._transitions: list[Transition] = []
        self._exonerated: list[str] = []
        self._explained: dict[str, float] = {}
        self._emergencies = self._found_emergencies()
        self._irreducible = signals.irreducible if signals.pods else {}
        self._irreducible_s = {name: state.irreducible_s.get(name, -seconds) + seconds for name in self._irreducible}
        self._emergency_s = state.emergency_s + seconds if self._emergencies else 0.0
        self._leaving = signals.leaving

    def _still_there(self, case: Case | None) -> bool:
        """Its detector and resource, or the resource's experiments, may have gone with a change of settings."""
        if case is None or case.detector not in self._detectors:
            return False
        return not case.on or (case.on in self._resources and self._resources[case.on].phase_s is not None)

    def _found_emergencies(self) -> dict[str, str]:
        """The detector, by resource; none where the box has no pod to go, or no more than its bound."""
        found: dict[str, str] = {}
        for name, reading in self._readings.items():
            first = self._detectors[name].suspects[0]
            if self._pods and reading.emergency and first in self._states and first in self._over:
                found.setdefault(first, name)
        return found

    def _phases(self, resource: str, detector: str) -> Phases:
        return phases(self._resources[resource], self._detectors.get(detector), self._settings)

    def _random(self) -> float:
        """From 0 to 1, which is never reached."""
        self._random_state = (self._random_state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self._random_state >> 32) / 2**32

    def _random_s(self, of: Phases) -> float:
        """How long a phase takes: the shortest, and a random number of looks."""
        choices = 1 + round((of.longest_s - of.shortest_s) / LOOK_S)
        return of.shortest_s + LOOK_S * int(self._random() * choices)

    def _early_s(self, wait_s: float) -> float:
        """How much sooner than after all of this time a wait ends."""
        return self._random() * min(self._settings.early_ratio * wait_s, self._settings.early_most_s)

    def _pause(self, detector: str) -> None:
        """For a while, it opens no case."""
        pause_s = self._settings.pause_s
        self._pauses[detector] = pause_s - self._early_s(pause_s)

    def _rests(self, held: Hold, **changes: float | str) -> Hold:
        """At its level from now on. The wait for the next probe is over somewhat sooner, by chance."""
        resting = held.rests(**changes)
        return replace(resting, calm_s=self._early_s(resting.wait_of_probe_s(self._settings)))

    # clocks

    def clocks(self) -> None:
        """Let the time since the last step pass: for the experiment, and for each resource."""
        if self._case is not None and self._case.on:
            self._case = self._aged(self._case)
        for name, state in self._states.items():
            if state.rung in _CONVICTED:
                clocks = self._accounted_for if state.held is None else self._held
                self._states[name] = clocks(name, state)
            elif state.rung is Rung.OPEN and (state.convictions or state.closings or state.guilty):
                state = replace(state, open_s=state.open_s + self._seconds)  # noqa: PLW2901
                self._states[name] = _AT_REST if state.open_s >= self._settings.forget_s else state

    def _aged(self, case: Case) -> Case:
        case, reading = replace(case, age_s=case.age_s + self._seconds), self._readings.get(case.detector)
        of = self._phases(case.on, case.detector)
        settle_s = of.settle_s
        if case.squeezed or case.age_s <= settle_s:
            self._spent_s[case.on] = self._spent_s.get(case.on, 0.0) + self._seconds
        if reading is None or case.age_s < settle_s or (case.squeezed and case.age_s <= settle_s):
            return case
        excess = self._excess(case.detector)
        if case.squeezed:
            return replace(case, low=case.low.plus(excess), seen=case.seen + 1)
        case = replace(case, seen=case.seen + 1)
        back = reading.value > reading.bar and excess >= self._settings.half_ratio * case.before
        if back or case.returned:
            return replace(case, high=case.high.plus(excess), returned=case.returned + 1)
        return case if of.gradual else replace(case, high=case.high.plus(excess))

    def _accounted_for(self, resource: str, state: RungState) -> RungState:
        """Towards the floor while there is harm, and back when it is calm."""
        seconds, settings, high = self._seconds, self._settings, self._high(state.signal, resource)
        near = bool(high) and not self._is_harmed(state.signal, resource)
        state = replace(state, near_s=state.near_s + seconds if near else 0.0)
        if high and state.near_s < settings.lost_s:
            share = state.share if self._trying else round(state.share - _part(seconds, settings.to_floor_s), 6)
            relapses, harm_s = state.relapses + self._is_eased(state), state.harm_s + seconds
            state = replace(state, relapses=relapses, harm_s=harm_s, calm_s=0.0, silent_s=0.0)
            return replace(state, share=max(0.0, share) if state.rung is Rung.SQUEEZED else 0.0)
        silent_s = state.silent_s + seconds if high is None else 0.0
        if high is None and silent_s < settings.lost_s:
            return replace(state, silent_s=silent_s)
        eased = round(state.share + _part(seconds, settings.ease_s), 6)
        state = replace(state, harm_s=0.0, calm_s=state.calm_s + seconds, silent_s=silent_s)
        return replace(state, share=min(1.0, eased)) if self._is_eased(state) and not self._trying else state

    def _is_eased(self, state: RungState) -> bool:
        """Whether it is squeezed by account, and calm for long enough to be given something back."""
        settings = self._settings
        wait_s = doubled_s(settings.squeezed_calm_s, state.relapses, settings.longest_calm_s) if state.relapses else 0.0
        return state.rung is Rung.SQUEEZED and state.calm_s > wait_s

    def _held(self, resource: str, state: RungState) -> RungState:
        """What follows a conviction by an experiment."""
        held, settings, seconds = state.held, self._settings, self._seconds
        assert held is not None
        if held.by and held.mode is HoldMode.TEST:
            return replace(state, held=self._tested_for_another(resource, held))
        reading, of = self._readings.get(state.signal), self._phases(resource, state.signal)
        near = reading is not None and reading.high and reading.value <= reading.bar
        state = replace(
            state,
            silent_s=state.silent_s + seconds if reading is None else 0.0,
            near_s=state.near_s + seconds if near else 0.0,
        )
        if reading is None and state.silent_s < settings.lost_s:
            return state if held.mode is HoldMode.REST else replace(state, held=self._waited(held, state.signal, of))
        harmed = reading is not None and reading.value > reading.bar
        quiet = reading is None or not reading.high or state.near_s >= settings.lost_s
        held = replace(held, age_s=held.age_s + seconds, deaf_s=0.0 if quiet else max(0.0, held.deaf_s - seconds))
        if held.ordered is not None and resource in self._leaving:
            held = self._left(resource, held)
        elif quiet and not held.harm.samples:
            held = replace(held, ordered=None)  # that it is calm since then is help enough
        settled = held.age_s > of.settle_s
        if held.mode is not HoldMode.TEST:
            if harmed and settled and not held.deaf_s:
                held = replace(held, harm_s=held.harm_s + seconds, harm=held.harm.plus(self._excess(state.signal)))
            elif quiet:
                held = replace(held, harm_s=0.0, harm=Mean())
        state = self._clocks_of_rung(state, held, harmed=harmed, quiet=quiet)
        if held.mode is HoldMode.TEST:
            tested = self._tested(held, state.signal, of, settled=settled)
            return replace(state, held=tested, calm_s=0.0 if tested.returns > held.returns else state.calm_s)
        if held.mode is HoldMode.PROBE:
            return replace(state, held=self._probed(held, state.signal, of))
        return replace(state, held=self._rested(resource, held, state, of, quiet=quiet))

    def _left(self, resource: str, held: Hold) -> Hold:
        """A pod is leaving for it, and harm counts from its end on."""
        past = self._before.evictions
        latest_s = max((one.t_s for one in past if one.resource == resource), default=-math.inf)
        if self._t_s - latest_s >= self._settings.leave_s:
            return replace(held, ordered=None)
        return held.rests() if held.mode is HoldMode.REST else held

    def _waited(self, held: Hold, signal: str, of: Phases) -> Hold:
        """The signal has no value yet for what is probed or tested: it has until the end of that."""
        held = replace(held, age_s=held.age_s + self._seconds)
        if held.mode is HoldMode.TEST:
            return self._tested(held, signal, of, settled=False)
        return held if held.age_s < of.probe_s else self._rests(held)

    def _clocks_of_rung(self, state: RungState, held: Hold, *, harmed: bool, quiet: bool) -> RungState:
        """Harm counts at the floor alone, and calm is what lies between harm that lasts."""
        if held.mode is not HoldMode.REST:
            return state
        if quiet:
            return replace(state, harm_s=0.0, calm_s=state.calm_s + self._seconds)
        at_floor = harmed and held.at <= 0.0 and not held.deaf_s
        return replace(state, harm_s=state.harm_s + self._seconds) if at_floor else state

    def _rested(self, resource: str, held: Hold, state: RungState, of: Phases, *, quiet: bool) -> Hold:
        settings = self._settings
        if held.harmed(settings.harmed_s) and (held.at > 0.0 or held.harm_s >= held.look_s):
            if self._busy:
                return held
            at = 0.0 if held.at > 0.0 else ALL
            return replace(held, mode=HoldMode.TEST, at=at, age_s=0.0, long_s=self._random_s(of), seen=Mean())
        if held.by and self._is_gone(resource, held):
            held = replace(held, by="", fell=False)
        if other := self._other_harmed(resource, held, state.signal):
            return held if self._busy else self._begun_for_another(resource, held, other)
        if held.by or not quiet or state.rung is Rung.EVICTING:
            return held
        held = replace(held, calm_s=held.calm_s + self._seconds)
        if held.at <= 0.0 and state.signal in self._readings:
            held = replace(held, usual=held.usual.plus(self._of_bar(state.signal)))
        if held.calm_s < held.wait_of_probe_s(settings) or self._busy:
            return held
        at = (held.level + held.bad) / 2.0 if held.searches(settings.step) else ALL
        return replace(held, mode=HoldMode.PROBE, at=at, age_s=0.0, harm=Mean(), harm_s=0.0, worst=0.0)

    def _probed(self, held: Hold, signal: str, of: Phases) -> Hold:
        settings = self._settings
        if signal in self._readings:
            held = replace(held, worst=max(held.worst, self._of_bar(signal)))
        if held.harmed(settings.harmed_s):
            return self._relapsed(held, held.at, of)
        if held.age_s < of.probe_s or held.harm_s:
            return held
        if held.at >= ALL:
            return replace(held, free=True)
        good = held.worst < max(settings.good_ratio, (1.0 + held.usual.value) / 2.0)
        return self._rests(held, level=held.at) if good else self._rests(held, bad=held.at)

    def _tested(self, held: Hold, signal: str, of: Phases, *, settled: bool) -> Hold:
        settings = self._settings
        if settled and signal in self._readings:
            held = self._seen(held, self._excess(signal), of)
        awaited = of.gradual and held.level <= 0.0 and held.age_s < held.long_s + of.return_s
        if held.age_s < held.long_s or (awaited and held.returned * LOOK_S < of.settle_s):
            return held
        if not held.seen.samples:
            return self._rests(held)
        if held.level > 0.0:
            if held.seen.value <= settings.half_ratio * held.harm.value:
                return self._relapsed(held, held.level, of)
        elif held.harm.value <= settings.half_ratio * held.seen.value:
            look_s = min(settings.longest_wait_s, 2.0 * held.look_s)
            return self._rests(held, innocent=0, returns=held.returns + 1, look_s=look_s)
        return self._rests(held, innocent=held.innocent + 1, deaf_s=settings.deaf_s, wait_s=settings.first_wait_s)

    def _is_gone(self, resource: str, held: Hold) -> bool:
        """Whether another detector's harm, which fell at the floor, has had the time to come back with the level."""
        of = self._phases(resource, held.by)
        return held.by not in self._detectors or held.age_s > of.longest_s + of.return_s

    def _other_harmed(self, resource: str, held: Hold, signal: str) -> str:
        """Another detector that this resource at its level may be harm to: one that has an alarm, or whose harm fell at
        the floor and is back; "": none.
        """
        if held.at <= 0.0 or self._disturbed or resource in self._unused:
            return ""
        if held.by:
            reading = self._readings.get(held.by)
            back = reading is not None and reading.value > reading.bar
            return held.by if back and held.age_s >= self._phases(resource, held.by).shortest_s else ""
        tried = () if self._case is None else (self._case.detector,)
        for name, detector in self._detectors.items():
            if detector.stock or name in (signal, *tried, *self._pauses) or resource not in detector.suspects:
                continue
            of = self._phases(resource, name)
            faded = held.age_s > (of.longest_s if of.gradual else of.settle_s)
            spared = resource in self._others and self._readings[name].high_s < self._settings.spared_s
            if faded and self._at_alarm(name) and not spared and not self._is_answered(name):
                return name
        return ""

    def _begun_for_another(self, resource: str, held: Hold, other: str) -> Hold:
        """The box is squeezed to the floor from its level, for a phase."""
        excess = self._excess(other) if held.fell else self._readings[other].mean - self._detectors[other].rest
        long_s = self._random_s(self._phases(resource, other))
        harm = Mean(2.0 * excess, 2)
        return replace(held, mode=HoldMode.TEST, at=0.0, by=other, age_s=0.0, long_s=long_s, seen=Mean(), harm=harm)

    def _tested_for_another(self, resource: str, held: Hold) -> Hold:
        """Meanwhile, no clock goes of the detector that has convicted."""
        held, of = replace(held, age_s=held.age_s + self._seconds), self._phases(resource, held.by)
        if held.by in self._readings and held.age_s > of.settle_s:
            held = replace(held, seen=held.seen.plus(self._excess(held.by)))
        if held.age_s < held.long_s:
            return held
        at_level = replace(held.rests(), calm_s=held.calm_s)
        if not held.seen.samples:
            self._pause(held.by)
        elif held.seen.value > self._settings.half_ratio * held.harm.value:
            self._case = self._case or Case(held.by, (resource,), before=held.harm.value)
        elif held.fell:
            return self._rests(held, bad=held.level, level=0.0, by="", fell=False)
        else:
            return replace(at_level, fell=True)
        return replace(at_level, by="", fell=False)

    def _seen(self, held: Hold, excess: float, of: Phases) -> Hold:
        """Where all is given back by and by, what is seen from when the harm has grown with the box."""
        grown = held.returned or held.harm.value <= self._settings.half_ratio * excess
        if held.level > 0.0 or not of.gradual or not grown:
            return replace(held, seen=held.seen.plus(excess))
        seen = held.seen if held.returned else Mean()
        return replace(held, seen=seen.plus(excess), returned=held.returned + 1)

    def _relapsed(self, held: Hold, level: float, of: Phases) -> Hold:
        """Harm has come with this level; for a while, memory's that has not faded yet counts for nothing."""
        settings, deaf_s = self._settings, of.longest_s if of.gradual else held.deaf_s
        held = replace(held, innocent=0, relapses=held.relapses + 1, deaf_s=deaf_s)
        if level >= ALL:
            most_s = max(settings.first_wait_s, settings.longest_wait_s - of.probe_s)
            return self._rests(held, wait_s=min(most_s, 2.0 * held.wait_s))
        if level <= held.level:  # it was good once, and is no more
            return self._rests(held, level=0.0, searching=False)
        return self._rests(held, bad=level)

    @property
    def _busy(self) -> bool:
        """Whether an experiment, a probe or a test is going on."""
        return self._trying or any(one.held is not None and one.held.mode is not HoldMode.REST for one in self._now())

    def _now(self) -> Iterable[RungState]:
        return self._states.values()

    def _high(self, signal: str, resource: str) -> bool | None:
        """Whether the harm of a stock goes on that a resource was convicted by; None: not known."""
        reading = self._readings.get(signal)
        if reading is None:
            return None
        return (reading.emergency or reading.high) and resource in self._over

    def _is_harmed(self, signal: str, resource: str) -> bool:
        """Whether the signal that convicts is above its bar, and not just within its hysteresis."""
        reading, detector = self._readings.get(signal), self._detectors.get(signal)
        if reading is None or detector is None:
            return False
        return reading.value > reading.bar and (not detector.stock or resource in self._over)

    @property
    def _disturbed(self) -> bool:
        return bool(self._emergencies) and self._emergency_s < self._settings.emergency_blocks_s

    @property
    def _trying(self) -> bool:
        return self._case is not None and bool(self._case.on)

    def _excess(self, detector: str) -> float:
        return self._readings[detector].value - self._detectors[detector].rest

    def _of_bar(self, detector: str) -> float:
        """How much of its bar's excess it is at."""
        return self._excess(detector) / (self._readings[detector].bar - self._detectors[detector].rest)

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
        if self._disturbed or not self._pods or self._busy or self._going_down:
            return
        if self._case is not None:
            self._accused = self._suspect_of(self._case.detector, self._case.acquitted)
            if self._accused:
                return
            self._ended = True
            self.end_case()
        for name, detector in self._detectors.items():
            if not detector.stock and name not in self._pauses and (suspect := self._suspect_of(name, ())):
                self._case, self._accused = Case(name), suspect
                return

    def _suspect_of(self, detector: str, but: tuple[str, ...]) -> str:
        """Its next suspect; "": its signal is not at alarm (any more), nobody is left to be tried, or it is spared."""
        if not self._at_alarm(detector) or self._is_answered(detector):
            return ""
        barred = {*but, *self._accounted, *self._unused}
        free = (name for name in self._detectors[detector].suspects if name not in barred and self._may_try(name))
        suspect = next((name for name in free if self._states[name].rung is Rung.OPEN), "")
        spared = suspect in self._others and self._readings[detector].high_s < self._settings.spared_s
        return "" if spared else suspect

    def _is_answered(self, detector: str) -> bool:
        """Whether it has convicted a resource, of which harm at the floor has not been tested, or may be about to."""
        holds = (one.held for one in self._now() if one.held is not None and detector in (one.signal, one.held.by))
        return any(hold.at > 0.0 or not hold.returns for hold in holds)

    def _can_be_tried(self, resource: str) -> bool:
        """Whether there is an experiment with it."""
        row = self._resources.get(resource)
        return row is not None and row.phase_s is not None

    def _may_try(self, resource: str) -> bool:
        return self._can_be_tried(resource) and not self._is_spent(resource)

    def _is_spent(self, resource: str) -> bool:
        """Whether its budget has no experiment left."""
        row, spent_s = self._resources.get(resource), self._spent_s.get(resource, 0.0)
        guilty, settings = self._states[resource].guilty, self._settings
        most_s = settings.trial_guilty_most_s if guilty else settings.trial_most_s
        return row is not None and spent_s > 0.0 and spent_s + row.longest_phase_s > most_s

    def _at_alarm(self, detector: str) -> bool:
        reading = self._readings.get(detector)
        return reading is not None and reading.alarm and reading.value > reading.bar

    @property
    def _going_down(self) -> bool:
        """Whether a resource is still on its way to the floor."""
        return any(
            one.rung is Rung.SQUEEZED and one.held is None and one.share > 0.0 and one.harm_s > 0.0
            for one in self._now()
        )

    def turn(self) -> None:
        """Begin the experiment's next phase, when one is over that has not ended it."""
        case = self._case
        if case is None or not case.on or self._ended or case.age_s <= 0.0:
            return
        of = self._phases(case.on, case.detector)
        if case.squeezed and case.seen and case.age_s >= case.long_s:
            self._case = replace(case, squeezed=False, age_s=0.0, long_s=self._random_s(of), seen=0, returned=0)
        elif not case.squeezed and case.returned and self._is_enough(case, of):
            late = case.late or (of.gradual and case.age_s > case.long_s)
            case = replace(case, returns=case.returns + 1, late=late)
            self._case = replace(case, squeezed=True, age_s=0.0, long_s=self._random_s(of), seen=0)

    def _is_enough(self, case: Case, of: Phases) -> bool:
        """Whether enough looks say how high the signal has come back, or there is no more time for one."""
        return case.returned >= (RETURN_LOOKS if of.gradual else 1) or case.age_s >= case.long_s + of.return_s

    def end_case(self) -> None:
        """When it has ended: what follows for its detector."""
        case = self._case
        if case is None or not self._ended:
            return
        convicted = any(case.detector == state.signal for state in self._now())
        if case.acquitted and not convicted and not self._by_itself and not self._left_untried(case):
            self._exonerated.append(case.detector)
            self._explained[case.detector] = case.before
        if not convicted and not self._by_itself:
            self._pause(case.detector)
        self._case, self._ended, self._by_itself = None, False, False

    def _left_untried(self, case: Case) -> bool:
        """Whether it may be one that could not be tried now."""
        cleared = {*case.acquitted, *self._unused}
        others = (name for name in self._detectors[case.detector].suspects if name not in cleared)
        return self._at_alarm(case.detector) and any(self._can_be_tried(name) for name in others)

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
        signal, detector = self._signal(name, state), self._detectors.get(state.signal)
        stands = state.held is None or (state.held.mode is HoldMode.REST and not state.held.deaf_s)
        return _Scene(
            resource=resource,
            phases=self._phases(name, signal),
            state=state,
            settings=self._settings,
            case=self._case if self._case is not None and self._case.on == name else None,
            signal=signal,
            accused=self._accused == name,
            accounted=name in self._accounted,
            emergency=name in self._emergencies,
            disturbed=self._disturbed,
            experiment=self._trying,
            harmed=stands and self._is_harmed(state.signal, name),
            account=detector is not None and detector.stock,
            evicts=detector is None or detector.evicts,
        )

    def _signal(self, resource: str, state: RungState) -> str:
        """The name of the detector that is to be spoken of; "": none is known."""
        if resource in self._emergencies:
            return self._emergencies[resource]
        if state.rung is Rung.OPEN and resource in self._accounted:
            return self._accounted[resource]
        if state.rung in _CONVICTED:
            return state.signal
        return self._case.detector if self._case is not None else ""

    def _take(self, row: LadderRow, scene: _Scene) -> None:
        name, case, signal = scene.resource.name, self._case, scene.signal
        reason = row.reason.format_map(self._words(scene))
        self._transitions.append(Transition(self._t_s, name, scene.state.rung, row.to, signal, reason))
        self._states[name] = self._entered(row, scene)
        match row.when:
            case When.ACCUSED:
                assert case is not None
                self._case = self._opened(case, name)
            case When.KEPT:
                assert case is not None
                self._case = Case(signal, (*case.acquitted, name), before=case.before)
            case When.GUILTY:
                self._ended = True
                self._spent_s.pop(name, None)
            case When.CALLED_OFF:
                self._ended = True
            case When.ENDED:
                assert case is not None
                self._explained[signal] = case.before
                self._ended = self._by_itself = True
            case When.EMERGENCY if scene.case is not None:
                self._ended = True
            case When.NO_HELP if signal in self._detectors:
                self._exonerated.append(signal)
                self._pause(signal)

    def _opened(self, case: Case, resource: str) -> Case:
        """The experiment on a resource begins. What was seen before it counts as two samples."""
        before = self._readings[case.detector].mean - self._detectors[case.detector].rest
        long_s = self._random_s(self._phases(resource, case.detector))
        return Case(case.detector, case.acquitted, resource, before=before, long_s=long_s, high=Mean(2.0 * before, 2))

    def _entered(self, row: LadderRow, scene: _Scene) -> RungState:
        """The resource's state on its new rung: its clock of harm begins anew."""
        old, signal, settings = scene.state, scene.signal, self._settings
        new = replace(old, rung=row.to, harm_s=0.0)
        match row.when:
            case When.EMERGENCY:
                closings = old.closings + (old.rung is not Rung.CLOSED)
                new = replace(
                    new, signal=signal, share=0.0, held=None, calm_s=0.0, silent_s=0.0, near_s=0.0, closings=closings
                )
            case When.ACCOUNTED:
                new = replace(new, signal=signal, share=1.0, held=None, convictions=old.convictions + 1)
            case When.GUILTY:
                begun = self._rests(Hold(wait_s=settings.first_wait_s, look_s=settings.look_s))
                new = replace(new, signal=signal, share=0.0, held=begun, convictions=old.convictions + 1)
            case When.NO_HELP:
                new = RungState(guilty=self._is_surely_guilty(old))
            case When.LASTS if row.to is Rung.CLOSED:
                held = None if old.held is None else self._rests(old.held, level=0.0)
                new = replace(new, share=0.0, held=held, calm_s=0.0, closings=old.closings + 1)
            case When.LASTS:
                new = replace(new, calm_s=0.0)
            case When.CALM if row.to is Rung.OPEN:
                guilty = self._is_surely_guilty(old)
                new = RungState(convictions=old.convictions, closings=old.closings, vain=old.vain, guilty=guilty)
        return new

    def _is_surely_guilty(self, state: RungState) -> bool:
        relapses = 0 if state.held is None else state.held.relapses
        return state.guilty or relapses >= self._settings.sure_relapses

    def _words(self, scene: _Scene) -> dict[str, object]:
        detector, reading = self._detectors.get(scene.signal), self._readings.get(scene.signal)
        value = bar = emergency = "a value that is not known"
        if detector is not None and reading is not None:
            value, bar = detector.in_words(reading.value), detector.in_words(reading.bar)
            emergency = detector.in_words(detector.emergency or 0.0)
        return {
            "signal": f"{detector.words} ({scene.signal})" if detector is not None else "the signal",
            "value": value,
            "bar": bar,
            "emergency": emergency,
            "resource": scene.resource.words,
            "fall": "all" if scene.case is None else f"{max(0.0, scene.case.left):.0%}",
            "harm_s": scene.state.harm_s,
            "calm_s": scene.state.calm_s,
        }

    # evictions

    def order(self) -> EvictionOrder | None:
        """One pod is to go now, if a resource is on that rung, its harm goes on, and the budget has it.

        So it is, on any rung, where the box is above its bound for as long by what can't be taken back from it; but who
        is harmed comes first.
        """
        for resource in self._settings.resources:
            scene = self._scene(resource)
            harmed = scene.emergency or (scene.harmed and not self._in_vain(scene))
            if scene.state.rung is Rung.EVICTING and self._pods and harmed:
                reason = "{signal} is at {value}, its bar is {bar}".format_map(self._words(scene))
                return self._within_budget(scene, scene.signal, reason)
        for resource in self._settings.resources:
            if self._irreducible_s.get(resource.name, -1.0) >= self._settings.shortage_evict_after_s:
                reason = f"{self._irreducible[resource.name]}, for {self._irreducible_s[resource.name]:.0f} s by now"
                return self._within_budget(self._scene(resource), "", reason)
        return None

    def _in_vain(self, scene: _Scene) -> bool:
        """Whether the pod that went last did not help, so that no other one goes."""
        held, state = scene.state.held, scene.state
        if held is not None and held.ordered is not None and held.harmed(self._settings.harmed_s):
            vain = state.vain or held.harm.value > self._settings.relieved_ratio * held.ordered
            self._states[scene.resource.name] = replace(state, vain=vain, held=replace(held, ordered=None))
            return vain
        return state.vain or (held is not None and held.ordered is not None)

    def _past(self, order: EvictionOrder) -> PastEviction:
        state = self._states[order.resource]
        held = state.held
        if held is None or order.signal != state.signal:
            return PastEviction(self._t_s)
        return PastEviction(self._t_s, resource=order.resource, harm=held.harm.value or self._excess(order.signal))

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
            _holding(self._states, self._case, self._settings),
            transitions=tuple(self._transitions),
            eviction=order,
            exonerated=tuple(dict.fromkeys(self._exonerated)),
            explained=self._explained,
        )

    def after(self, order: EvictionOrder | None) -> LadderState:
        budget = self._settings.budget
        past = _recent(self._before.evictions, self._t_s, max(budget.window_s, budget.owner_s))
        return LadderState(
            t_s=self._t_s,
            resources={name: state for name, state in self._states.items() if state != _AT_REST},
            case=self._case,
            pauses=self._pauses,
            spent_s=self._spent_s,
            evictions=past if order is None else (*past, self._past(order)),
            ordered_s=self._before.ordered_s if order is None else self._t_s,
            emergency_s=self._emergency_s,
            irreducible_s=self._irreducible_s,
            random_state=self._random_state,
        )


def in_force(state: LadderState, settings: LadderSettings) -> LadderDecision:
    """What holds in a state before any step, as after a restart."""
    return _holding({one.name: state.of(one.name) for one in settings.resources}, state.case, settings)


def _holding(states: Mapping[str, RungState], case: Case | None, settings: LadderSettings) -> LadderDecision:
    shut = [one.words for one in settings.resources if states[one.name].rung in _SHUT]
    shares = {name: share_of(name, state, case) for name, state in states.items()}
    return LadderDecision(
        shares={name: share for name, share in shares.items() if share is not None},
        closed=f"the box harms online pods: {', '.join(shut)}" if shut else "",
    )


def share_of(resource: str, state: RungState, case: Case | None) -> float | None:
    """How far between floor (0) and prediction (1) the box may go; None: it is not held now."""
    if state.rung is Rung.OPEN:
        return None
    if state.rung is Rung.TRIED:
        return 0.0 if case is None or case.on != resource or case.squeezed else None
    if state.held is None:
        return state.share
    return None if state.held.at >= ALL else state.held.at


def _part(seconds: float, of_s: float) -> float:
    return min(1.0, seconds / of_s) if of_s > 0.0 else 1.0


def _recent(past: Iterable[PastEviction], t_s: float, within_s: float) -> tuple[PastEviction, ...]:
    return tuple(one for one in past if t_s - one.t_s < within_s)


# --- what the caller did ----------------------------------------------------------------------------------------------


def evicted(state: LadderState, owners: tuple[str, ...]) -> LadderState:
    """The pod that the last order asked for is going; `owners` are the names of what owns it (none: nothing does).

    What the harm is from its end on tells whether that has helped.
    """
    if not state.evictions:
        return state
    *past, last = state.evictions
    resources, rung = state.resources, state.of(last.resource)
    if rung.held is not None:
        held = replace(rung.held, ordered=last.harm)
        resources = {
            **resources,
            last.resource: replace(rung, held=held.rests() if held.mode is HoldMode.REST else held),
        }
    return replace(state, resources=resources, evictions=(*past, replace(last, owners=owners)))


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
