"""What a node publishes as extended resources, and when. Pure.

How it works
------------
What the node can lend, of CPU and of memory, says `criproxy.control.publication`. It is published

- as 0 while nothing is lent (switched off, closed, drained), whatever runs;
- else as no less than the pods on the node were promised already, or the scheduler and kubelet would hold the node for
  over-committed;
- as just that while no further pod is let in: offline hurts online, an operator holds criproxy off, or the kernel does
  not take the box's limits; and as what can be lent as soon as that is over, or the node would lend nothing for a
  report's interval more. Meanwhile it counts what pods were promised when that began, and falls as they end: a pod that
  was placed in the room of one that has ended, before that was written, is not counted, or others would follow it
  without end;
- when that is `REPORT_S` old, which is also the sign of life by which the controller knows a node's numbers to be of
  today; and at once when it is so far below what was last published that it can't wait. A rise waits, unless the
  settings that it comes of have changed: an operator, or the clock's next window, is not to wait for a report;
- when a pod has ended while more is published than can be lent, as pods were promised it: what it leaves is taken back
  before the scheduler promises it anew, or a node whose queue never ends would stay over-committed for ever. The node
  knows of the end before the API server does. No sooner than `SHED_S` after the last report, as each costs one;
- when somebody else has written another number, or another annotation (below);
- no more often than each `QUIET_S`, so that two writers never patch in circles. Only to lend nothing is never put off.

Pauses are random, so that nodes that started together do not write together.

With the numbers goes an annotation, which has their names (`criproxy.vocabulary.published`). By it a criproxy that
begins with other names knows which ones an earlier one has left, and takes them away; and the cluster's side knows
which names to make 0 when the node is away.

What kubelet makes of it: of the names below kubernetes.io/ that a pod requests, it admits no more than allocatable has.
It asks that of pods that run as well, when it restarts (later versions have the gate NotEvictPodOnKubeletRestart). So
while a number is 0, a restart of kubelet fails offline pods. Before a restart
that is ours to make, as in `criproxy attach`, the number has to be above that or the pods gone.

Source: Koordinator, slo-controller/noderesource (10 %, 300 s); kubelet, pkg/kubelet/lifecycle/predicate.go.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from criproxy.control.publication import FALL_RATIO, REPORT_S, Lendable, OpenBoxSettings, falls, lendable
from criproxy.control.resources import RESOURCES
from criproxy.model import CPU, Bounds, Decision, Snapshot
from criproxy.model.modes import TABLE, Mode, Modes, NewPod, in_words
from criproxy.vocabulary.gives_back import MOST_WAIT_S
from criproxy.vocabulary.names import PUBLISHES
from criproxy.vocabulary.presets import NAMES
from criproxy.vocabulary.published import annotation_of

QUIET_S: Final = 10.0
"""Between two patches, and up to twice as long."""

LONGER_RATIO: Final = 0.3
"""A report that is due may be later by up to so much of its interval: 300 to 390 s. With what changes in between,
10,000 nodes then write 31 times a second, of the 33 that they may (`./bench cluster`); with 0.2 it was 32 to 33.
"""

LATEST_S: Final = REPORT_S * (1.0 + LONGER_RATIO) + 2 * QUIET_S
"""What was published so long ago should have been followed by a report, so that something is in its way."""

SHED_S: Final = 330.0
"""While more is published than can be lent, as pods were promised it, a pod's end is written once the last report is so
old. By replay with a queue that never ends, a node then writes 11 times an hour; with 250 s it was 11.5, and no pod
got more.
"""


_SHED: Final = "a pod has ended while more is published than can be lent"

_HELD: Final = (Mode.HELD, Mode.HELD_OFF, Mode.UNWELCOME, Mode.NOT_CALLED)
"""In these, no further pod is let in, or bounded, and those that run stay: also over a restart of kubelet, which comes
with attaching and detaching, and fails pods that were promised more than is there. `UNWELCOME` is often over in
seconds, as where systemd is slow; where it lasts, what is published falls to 0 with the pods' ends.
"""


class ExtendedResource(Struct, frozen=True):
    """A name in the node's status. `per_unit`: how much of it one core, or one byte, is."""

    name: str
    of: str
    per_unit: int = 1

    def quantity(self, amount: float) -> int:
        """In whole ones, as extended resources have no fractions; 0 for what is not a positive number."""
        return math.floor(amount * self.per_unit + 1e-6) if 0.0 < amount < math.inf else 0

    def words(self, quantity: int) -> str:
        """In cores, or bytes by their prefix."""
        return RESOURCES[self.of].words(quantity / self.per_unit)


def resources_called(preset: str) -> tuple[ExtendedResource, ...]:
    """What a preset with names calls what is lent."""
    return tuple(ExtendedResource(*row) for row in NAMES[preset].rows)


def cpu_names(resources: Collection[ExtendedResource], allocatable: Collection[str]) -> dict[str, int]:
    """What CPU is called on a node, and how much of it one core is: ordinary CPU, what criproxy publishes, and what of
    the presets' names `allocatable` has, whoever publishes it. Kubelet may admit a pod that names others.
    """
    ours = {one.name: one.per_unit for one in resources if one.of == CPU}
    others = {one.cpu: one.per_core for one in NAMES.values() if one.cpu in allocatable}
    return {CPU: 1, **others, **ours}


class Offer(Struct, frozen=True):
    """What the node can lend, by resource. `withheld`: why it lends nothing; "": it lends.

    `held`: why it lends no more than its pods were promised already; "": it does. `pods`: the uids of the offline pods
    that run. `terms`: the settings that it comes of. `capacity`: what the node has, by resource.
    """

    lendable: Mapping[str, Lendable]
    withheld: str = ""
    held: str = ""
    pods: frozenset[str] = frozenset()
    terms: tuple[OpenBoxSettings, Mapping[str, Bounds]] | None = None
    capacity: Mapping[str, float] = {}

    @property
    def occupied(self) -> bool:
        """Whether offline pods run on though nothing is lent: they may be about to leave, and not all may go yet."""
        return bool(self.withheld and self.pods)


class PublishSettings(Struct, frozen=True):
    """`off`: why nothing is to be published; "": it is. Then what was published becomes 0, and no more is written."""

    resources: tuple[ExtendedResource, ...] = resources_called("batch")
    open_box: OpenBoxSettings = OpenBoxSettings()
    off: str = ""


class OnNode(Struct, frozen=True):
    """What the Node has: the amounts of the names that are to be published, and the annotation (None: it has none)."""

    quantities: Mapping[str, int]
    publishes: str | None


class Published(Struct, frozen=True):
    """What was last published, from which numbers (`wanted`), and when the next is due (CLOCK_BOOTTIME).

    `publishes`: the annotation; None: there is none, as the names are left to others.
    `raised`: something was published above what is wanted, as pods were promised it. `held`, `occupied`, `pods`,
    `terms`: see `Offer`. `left_out`: the pods whose promises did not count, as they were taken for ended: by this
    look, and while no further pod is let in, by any before. `counted`: the uids of those whose promises did; None:
    nobody was asked for them.
    """

    quantities: Mapping[str, int]
    wanted: Mapping[str, int]
    at_s: float
    due_s: float
    quiet_until_s: float
    publishes: str | None = None
    raised: bool = False
    withheld: str = ""
    held: str = ""
    occupied: bool = False
    pods: frozenset[str] = frozenset()
    terms: tuple[OpenBoxSettings, Mapping[str, Bounds]] | None = None
    left_out: frozenset[str] = frozenset()
    counted: frozenset[str] | None = None

    def mistaken(self, offered: Offer) -> frozenset[str]:
        """The pods that were taken for ended, and run: kubelet has made their sandboxes anew."""
        return self.left_out & offered.pods


class Publication(Struct, frozen=True):
    """What is to be published: the amounts (None: the name is to go), and why now, in words.

    `publishes`: the annotation; None: it is to go.
    """

    quantities: Mapping[str, int | None]
    wanted: Mapping[str, int]
    why_now: str
    publishes: str | None = None
    raised: bool = False
    withheld: str = ""
    occupied: bool = False


# --- how much --------------------------------------------------------------------------------------------------------


def offer(
    snapshot: Snapshot,
    decision: Decision,
    modes: Modes,
    settings: PublishSettings,
    *,
    drained: str = "",
    pods: frozenset[str] = frozenset(),
    factor: float | None = None,
) -> Offer:
    """From one tick of the control loop. `drained`: why the node is to be empty of offline pods; "": it is not.

    `pods`: the uids of those that run. `factor`: see `lendable`.
    """
    found = {
        name: lendable(RESOURCES[name], sample, decision.resources[name], settings.open_box, factor=factor)
        for name, sample in snapshot.of.items()
        if name in decision.resources
    }
    held = next((modes.why[mode] or in_words(mode) for mode in _HELD if mode in modes), "")
    bounds = {name: replace(decision.resources[name].bounds, kept=0.0) for name in found}  # kubelet's, not settings
    capacity = {name: snapshot.of[name].capacity for name in found}
    return Offer(found, drained or withheld(modes), held, pods, (settings.open_box, bounds), capacity)


def withheld(modes: Modes) -> str:
    """Why new offline pods would not be bounded here, in words; "": they would, though one may be held back."""
    others = Modes({mode: why for mode, why in modes.why.items() if mode not in _HELD})
    if others.new_pod is NewPod.BOUNDED:
        return ""
    return ", ".join(f"{mode.value} ({why or TABLE[mode].when})" for mode, why in others.why.items())


def wanted(offered: Offer, settings: PublishSettings) -> dict[str, int]:
    """What would be published if no pod had been promised anything."""
    if offered.withheld or offered.held:
        return {resource.name: 0 for resource in settings.resources}
    return {
        resource.name: resource.quantity(offered.lendable[resource.of].amount) if resource.of in offered.lendable else 0
        for resource in settings.resources
    }


# --- when ------------------------------------------------------------------------------------------------------------


def due(
    offered: Offer,
    seen: OnNode | None,
    last: Published | None,
    settings: PublishSettings,
    now_s: float,
) -> str:
    """Why something is to be published now, in words; "": nothing is.

    `seen` None: there is no view of the node. `last` None: nothing was published since this process began.
    """
    if last is None:
        return "nothing was published since criproxy started"
    if offered.withheld and any(last.quantities.values()):
        return f"nothing is lent: {offered.withheld}"
    if now_s < last.quiet_until_s:
        return ""
    return next(_reasons(offered, seen, last, settings, now_s), "")


def undone(seen: OnNode | None, last: Published) -> dict[str, str]:
    """What the Node has in place of what was published last, by name and in words."""
    if seen is None:
        return {}
    found = {name: seen.quantities.get(name) for name, amount in last.quantities.items() if name in last.wanted}
    return {name: "nothing" if now is None else str(now) for name, now in found.items() if now != last.quantities[name]}


def _reasons(
    offered: Offer,
    seen: OnNode | None,
    last: Published,
    settings: PublishSettings,
    now_s: float,
) -> Iterator[str]:
    want = wanted(offered, settings)
    if want.keys() != last.wanted.keys():
        yield "other names are to be published"
        return
    for name, amount in want.items():
        if falls(amount, last.wanted[name]):
            yield f"{name} falls by more than {FALL_RATIO:.0%} from {last.wanted[name]}"
        if name in (others := undone(seen, last)):
            yield f"somebody else has set {name} to {others[name]}"
    if seen is not None and seen.publishes != last.publishes:
        yield f"somebody else has changed the annotation {PUBLISHES}"
    if settings.off and last.publishes is not None:
        yield f"the names are left to others: {settings.off}"
    if bool(offered.withheld) != bool(last.withheld):
        yield "the node lends again" if last.withheld else f"nothing is lent: {offered.withheld}"
    if last.held and not offered.held:
        yield "further pods are let in again"
    if offered.terms != last.terms:
        yield "the settings that it comes of have changed"
    if now_s >= last.due_s:
        yield f"the last report is {now_s - last.at_s:.0f} s old"
    yield from _reasons_of_pods(offered, last, now_s)


def _reasons_of_pods(offered: Offer, last: Published, now_s: float) -> Iterator[str]:
    if offered.occupied != last.occupied:
        yield "offline pods run on" if offered.occupied else "no offline pod runs any more"
    if last.raised and (offered.held or now_s >= last.at_s + SHED_S) and ended(offered, last):
        yield _SHED
    if last.mistaken(offered):
        yield "pods that were taken for ended run on"


def ended(offered: Offer, last: Published | None) -> frozenset[str]:
    """The pods that have ended here since the last publication: the API server may not know it yet."""
    return frozenset() if last is None else last.pods - offered.pods


def counts(offered: Offer, last: Published | None, uid: str) -> bool:
    """Whether what this pod was promised is to count: not of one that has ended here, nor of one that came while no
    further pod is let in.
    """
    if last is None:
        return True
    if uid in ended(offered, last):
        return False
    if last.counted is None or not (offered.held and last.held):
        return True
    return uid in last.counted or uid in last.mistaken(offered)


def needs_allocated(offered: Offer, last: Published | None, settings: PublishSettings) -> bool:
    """Whether it has to be known what the pods were promised: less than that may be published, and not on purpose."""
    if offered.withheld:
        return False
    return (
        last is None
        or last.raised
        or bool(last.mistaken(offered))
        or bool(last.withheld)  # 0 was published whatever pods were promised, and some may run on
        or bool(offered.held or last.held)
        or any(
            name not in last.quantities or amount < last.quantities[name]
            for name, amount in wanted(offered, settings).items()
        )
    )


def publication(
    offered: Offer,
    allocated: Mapping[str, int],
    last: Published | None,
    settings: PublishSettings,
    why_now: str,
    *,
    left: Collection[str] = (),
) -> Publication:
    """What to publish. `allocated` is what pods were promised of each name, {} where `needs_allocated` says no.

    `left` are the names that the annotation has, while this process has published none, or has left them to others.
    Others may publish all that is not in it: where nothing is to be published, no other name is written.
    """
    ours = left if last is None or last.publishes is None else last.quantities
    want = wanted(offered, settings)
    if settings.off and ours:
        want = {name: amount for name, amount in want.items() if name in ours}
    bound_to = {} if offered.withheld else _within_node(offered, allocated, settings)
    quantities: dict[str, int | None] = {name: max(amount, bound_to.get(name, 0)) for name, amount in want.items()}
    gone = {name: None for name in ours if name not in want}
    return Publication(
        {**gone, **quantities},
        want,
        why_now,
        None if settings.off else annotation_of(want),
        raised=quantities != dict(want),
        withheld=offered.withheld,
        occupied=offered.occupied,
    )


def _within_node(offered: Offer, allocated: Mapping[str, int], settings: PublishSettings) -> dict[str, int]:
    """No more than the node has: of what pods name, Kubernetes' releases read some otherwise than we do."""
    most = {
        one.name: one.quantity(offered.capacity[one.of]) for one in settings.resources if one.of in offered.capacity
    }
    return {name: min(amount, most.get(name, amount)) for name, amount in allocated.items()}


def published(
    made: Publication,
    offered: Offer,
    now_s: float,
    jitter: float,
    *,
    left_out: frozenset[str] = frozenset(),
    counted: frozenset[str] | None = None,
) -> Published:
    """The API server has taken it, which was made of `offered`. `jitter` is a random number from 0 to 1."""
    return Published(
        quantities={name: amount for name, amount in made.quantities.items() if amount is not None},
        wanted=made.wanted,
        at_s=now_s,
        due_s=now_s + REPORT_S * (1.0 + LONGER_RATIO * jitter),
        quiet_until_s=now_s + QUIET_S * (1.0 + jitter),
        publishes=made.publishes,
        raised=made.raised,
        withheld=made.withheld,
        held=offered.held,
        occupied=made.occupied,
        pods=offered.pods,
        terms=offered.terms,
        left_out=left_out,
        counted=counted,
    )


class Promises(Struct, eq=False):
    """What was published within `MOST_WAIT_S`, for whoever was promised it and has to be told before it is taken back.

    What pods keep from being published as less (`Published.raised`) is theirs, and nobody's to give back.
    """

    _before: list[tuple[float, Mapping[str, int]]] = []
    """When it was followed by another, and what was wanted."""

    def followed(self, last: Published, at_s: float) -> None:
        """The API server has taken another one at `at_s`."""
        self._before = [one for one in self._before if one[0] > at_s - MOST_WAIT_S]
        self._before.append((at_s, last.wanted))

    def promised(
        self, last: Published | None, names: Collection[ExtendedResource], within_s: float, now_s: float
    ) -> tuple[float, float]:
        """What is published now of one resource (by `last`), and the most of what was within the last `within_s`, in
        its unit. A report that is overdue says nothing: who goes by it is never told of less.
        """
        wanted = {} if last is None or now_s >= last.at_s + LATEST_S else last.wanted
        lately = [wanted, *(one for ended_s, one in self._before if ended_s > now_s - within_s)]
        amounts = [amount_of(names, one) or 0.0 for one in lately]
        return amounts[0], max(amounts)


def amount_of(names: Collection[ExtendedResource], quantities: Mapping[str, int]) -> float | None:
    """Of one resource, in its unit, by whichever of its names; None: there is none."""
    return max((quantities[one.name] / one.per_unit for one in names if one.name in quantities), default=None)


def why(offered: Offer, last: Published | None, settings: PublishSettings) -> str:
    """What is published and why, in a sentence for each name. What is known since then is said where it differs."""
    if offered.withheld:
        still = f"; offline pods that run on: {len(offered.pods)}" if offered.occupied else ""
        return f"0 of each, as nothing is lent: {offered.withheld}{still}"
    parts, want_now = [], wanted(offered, settings)
    for resource in settings.resources:
        known = offered.lendable.get(resource.of)
        amount = None if last is None else last.quantities.get(resource.name)
        words = "it is not measured" if known is None else known.why
        if last is None or amount is None:
            parts.append(f"{resource.name} not published yet: {words}")
            continue
        want, now, more = last.wanted.get(resource.name, 0), want_now.get(resource.name, 0), ""
        if amount > want:
            more = f"what pods were promised, above {resource.words(want)}: "
        elif not offered.held and resource.words(now) != resource.words(amount):
            more = f"{resource.words(now)} with the next report: "
        parts.append(f"{resource.name} {amount} ({resource.words(amount)}): {more}{words}")
    return "; ".join(parts) + (f"; held: {offered.held}" if offered.held else "")
