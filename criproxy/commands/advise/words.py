"""The advice in words and numbers, for who answers for the online service: from `study.Advice` to a page's blocks."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct

from criproxy.commands.advise import drawings
from criproxy.commands.advise.blocks import Drawing, FactTable, Heading, Items, Listing, PageBlock, Paragraph
from criproxy.commands.advise.dryrun import SAME_RATIO, Comparison
from criproxy.commands.advise.questions import LargestPods
from criproxy.commands.advise.study import POD_BYTES, Advice, Curve, GroupAdvice, Life, ResourceAdvice
from criproxy.commands.simulate.sweep import HARD_BUDGET_NEXT
from criproxy.config.settings import Config

TITLE: Final = "What these nodes could lend to offline pods"

WORTH_RATIO: Final = 0.05
"""Less of the CPUs, on average, is not worth the trouble."""

LIVES_RATIO: Final = 0.9
"""Of jobs of an hour that end by themselves."""

ENOUGH_DAYS: Final = 2.0
"""A forecast that has not seen a day twice is not judged."""

GIB: Final = float(1 << 30)
_MINUTES_A_DAY: Final = 1440

_PROMISED: Final = (
    "Whatever is outside the box is online, and comes first: offline pods run with the lowest weight (and "
    "`cpu.idle` where "
    "the kernel has it), and take only CPU that online leaves at that moment.",
    "All offline pods together are within one bounded cgroup, in CPU, memory and processes. One that can't "
    "be bounded is "
    "refused, and not started.",
    "kubelet, the container runtime and online's pods stay as they are. Of calls for online pods, criproxy "
    "passes the bytes "
    "as they came; if it dies, running pods do not notice.",
    "When online waits for CPU, memory or disks, and an experiment shows that the box is the cause, the "
    "box is squeezed, "
    "closed to new pods, and loses pods, within seconds to a minute.",
)
_NOT_PROMISED: Final = (
    "That an offline pod runs to its end, or at full speed: it is for work that may be interrupted.",
    "Caches of the CPU, memory bandwidth and kernel threads are shared: they are measured where the "
    "machine can, and answered, "
    "but not bounded beforehand.",
    "{peaks}: the record does not have them. The daemon looks each second, and each 50 ms where it bounds CPU.",
    "That the coming week is like the recorded one. The forecast learns from its errors, and lends less "
    "when it was wrong.",
)


class Origin(Struct, frozen=True):
    """Where the record is from, in words, and what else is known. `left_out`: why the lives of jobs are not.

    `mean_s`: of how many seconds each value of CPU is the mean, where that is known.
    """

    source: str
    notes: Sequence[str] = ()
    pods: LargestPods | None = None
    compared: Sequence[Comparison] = ()
    left_out: str = ""
    mean_s: float = 0.0


def blocks(advice: Advice, origin: Origin) -> Iterator[PageBlock]:
    well, sentence = verdict(advice)
    nodes = sum(group.nodes for group in advice.groups)
    first, last = (
        datetime.fromtimestamp(t_s, UTC).strftime("%Y-%m-%d %H:%M") for t_s in (advice.first_s, advice.last_s)
    )
    mean = f", of CPU the mean of the {origin.mean_s:g} s before it" if origin.mean_s else ""
    yield Paragraph(sentence, "yes" if well else "no")
    yield Paragraph(
        f"Of {_nodes(nodes)}, {origin.source}, from {first} to {last} UTC, a sample each {advice.step_s:g} s{mean}; "
        "replayed by criproxy's own code, with its defaults. Online is what runs on the nodes now; offline are "
        "batch pods that may wait, be slowed down, or be moved.",
        "quiet",
    )
    if origin.compared:
        yield Heading("What a dry run said")
        yield from _compared(origin.compared)
    yield Heading("What is promised")
    yield Items(_PROMISED)
    yield Heading("What is not promised")
    yield Items(tuple(one.format(peaks=_hidden_peaks(advice.step_s, origin.mean_s)) for one in _NOT_PROMISED))
    yield Heading("What would have been lent")
    yield Paragraph(
        "Lent is what the node would have published for offline pods. Wide bars: the mean of that hour. Narrow bars: "
        "what was there at every moment of it, on all days. A squeeze is online taking back CPU from pods that run: "
        "they slow down, and go on. An eviction is a pod that leaves, as memory got short, pods starved for CPU, or "
        "its node left; its work is lost.",
        "quiet",
    )
    for group in advice.groups:
        yield from _group(group)
    if origin.left_out:
        yield Paragraph(origin.left_out, "quiet")
    yield Heading("What online would have risked")
    yield from _risks(advice, origin.pods)
    yield Heading("The setting, and why this one")
    for curve in advice.curves:
        yield from _curve(curve)
    yield from _config(advice)
    yield Heading("How it is stopped")
    yield Items(
        (
            "On a node, for a while: `criproxy hold-off box 2h --reason …` freezes what it does; `criproxy "
            "release` ends it.",
            "On a node, no more offline pods: `[colocation]` `enabled = false` in "
            "/etc/criproxy/config.d/site.toml; it counts "
            'a second later. What runs is let go, or is stopped with `on_disable = "evict"`.',
            "At once, and kubelet as it was: `criproxy detach`, then `apt-get purge criproxy`. Pods run on.",
            "In the cluster: `enabled: false` in a ColocationPolicy; and no Job asks for batch-cpu any more.",
        )
    )
    yield Heading("The first step")
    yield Items(_first_step(advice), ordered=True)
    if origin.notes:
        yield Heading("What is known of the record")
        yield Items(tuple(origin.notes))


def _hidden_peaks(step_s: float, mean_s: float) -> str:
    if not mean_s:
        return f"Peaks shorter than the record's step of {_length(step_s)}"
    return (
        f"Peaks of CPU shorter than the {mean_s:g} s of which each value is the mean, and of memory shorter than the "
        f"record's step of {_length(step_s)}"
    )


# --- the verdict ------------------------------------------------------------------------------------------------------


def verdict(advice: Advice) -> tuple[bool, str]:
    """Whether to begin, and one sentence of why."""
    capacity, mean, sure = advice.cpu.capacity, advice.cpu.lent.mean, advice.cpu.lent.guaranteed
    days = (advice.last_s - advice.first_s + advice.step_s) / 86400
    worst, score = max(advice.overall.items(), key=lambda item: item[1].hard_ratio)
    hard, named = score.hard_ratio, "CPU" if worst == "cpu" else "memory"
    lends = (
        f"would have lent {mean:.1f} of {round(capacity, 1):g} cores on average ({mean / capacity:.0%}), and never "
        f"less than {sure:.1f}"
    )
    risk = (
        f"online would have found less {named} than it wanted {_share(hard)} of the time "
        f"({hard * _MINUTES_A_DAY:.1f} min a day{_most_on(advice, worst)})"
    )
    if days < ENOUGH_DAYS:
        return (
            False,
            f"Too early to say: the record has {days:.1f} days, and {ENOUGH_DAYS:g} are the least; so far, "
            f"these nodes {lends}.",
        )
    if mean < WORTH_RATIO * capacity:
        return False, f"No: these nodes {lends}, which is too little to be worth it."
    if hard > HARD_BUDGET_NEXT:
        return (
            False,
            f"Not with these settings: these nodes {lends}, but {risk}, more than the "
            f"{HARD_BUDGET_NEXT:.1%} that we recommend.",
        )
    hourly = [life for group in advice.groups for life in group.lives if life.length_s == 3600.0]
    lived, started = sum(one.ended for one in hourly), sum(one.ended + one.evictions for one in hourly)
    with_memory = any(len(group.resources) > 1 for group in advice.groups)
    if advice.lives_known and with_memory and not started:
        return False, f"No: no job of one core and 2 GiB would have started, though these nodes {lends}."
    if started and lived < LIVES_RATIO * started:
        return (
            False,
            f"Only for short jobs: these nodes {lends}, but {1 - lived / started:.0%} of jobs of an hour "
            "would have been evicted.",
        )
    return True, f"Yes, begin with a dry run: these nodes {lends}, and {risk}."


def _most_on(advice: Advice, resource: str) -> str:
    """The group that is short of it most often, and how often, where there are several."""
    if len(advice.groups) == 1:
        return ""
    ratios = {group.name: one.score.hard_ratio for group in advice.groups for one in group.resources
              if one.resource == resource}  # fmt: skip
    name = max(ratios, key=ratios.__getitem__)
    return f", most on {name} ({_share(ratios[name])})" if ratios[name] else ""


# --- sections ---------------------------------------------------------------------------------------------------------


def _group(group: GroupAdvice) -> Iterator[PageBlock]:
    at_once = "" if round(group.at_once, 1) == group.nodes else f", {round(group.at_once, 1):g} at a time"
    yield Heading(f"{group.name}: {_nodes(group.nodes)}{at_once}", 3)
    if group.unscored:
        yield Paragraph(
            f"{_nodes(group.unscored)} too young to be scored: a record counts after its first hours.", "quiet"
        )
    for one in group.resources:
        factor, unit = _unit(one.resource)
        lent, amount = one.lent, _amount(one)
        named = "CPU" if one.resource == "cpu" else "Memory"
        yield Paragraph(
            f"{named}: {amount(lent.mean)} of {amount(one.capacity)} {unit} on average "
            f"({lent.mean / one.capacity:.0%}), and "
            f"never less than {amount(lent.guaranteed)} ({lent.guaranteed / one.capacity:.0%})."
            + (
                " On nodes without `cpu.idle` (a kernel before 5.15, or cgroup v1), "
                f"{amount(lent.bounded_mean)} on average."
                if one.resource == "cpu"
                else ""
            )
        )
        shows = f"{named} lent by hour of the day, of {_nodes(group.nodes)}: the mean, and what was there at any moment"
        most = max(one.capacity, *(hour.mean or 0.0 for hour in lent.hours))
        yield Drawing(drawings.by_hour(lent.hours, most, factor, unit), shows)
        yield FactTable(
            f"{named} lent by the hour of the day (UTC), in {unit}: guaranteed is the least at any moment of all days",
            ("hour", "guaranteed", "mean"),
            tuple(
                (f"{hour:02}:00", *("-" if value is None else amount(value) for value in (cell.guaranteed, cell.mean)))
                for hour, cell in enumerate(lent.hours)
            ),
            folded=True,
        )
    if group.lives:
        memory = " and 2 GiB" if len(group.resources) > 1 else ""
        assert POD_BYTES == 2 * GIB
        yield FactTable(
            f"Jobs of one core{memory} each, so many that the nodes are always full of them: how they would have lived",
            (
                "job of", "ran to its end", "took, median", "95 %", "99 %", "time below half speed",
                "squeezes a day, node", "evictions a day, node",
            ),
            tuple(map(_life, group.lives)),
        )  # fmt: skip


def _life(life: Life) -> tuple[str, ...]:
    def times(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f} x"

    return (
        _length(life.length_s),
        "-" if life.survived_ratio is None else f"{life.survived_ratio:.1%}",
        times(life.slowdown_p50),
        times(life.slowdown_p95),
        times(life.slowdown_p99),
        "-" if life.below_half_ratio is None else f"{life.below_half_ratio:.2%}",
        f"{life.squeezes_a_day:.1f}",
        f"{life.evictions_a_day:.2f}",
    )


def _risks(advice: Advice, pods: LargestPods | None) -> Iterator[PageBlock]:
    items = []
    for resource, score in advice.overall.items():
        named = "CPU" if resource == "cpu" else "memory"
        items.append(
            f"Online wanted more {named} than was predicted, before the next sample, "
            f"{_share(score.violation_ratio)} of the "
            f"time, and more than the slack above the watermark as well {_share(score.hard_ratio)} "
            f"({score.hard_ratio * _MINUTES_A_DAY:.1f} min a day)."
        )
    items.append(
        "With `cpu.idle`, the kernel gives CPU back within a time slice: a wrong forecast costs offline pods "
        "their speed, and "
        "online nothing that these numbers show. Without it, a guard looks each 50 ms."
    )
    longest = [group.lives[-1] for group in advice.groups if group.lives]
    if samples := sum(one.online_samples for one in longest):
        broken = sum(one.broken_memory for one in longest)
        items.append(
            f"In {broken} of {samples} samples online wanted memory that offline pods of 6 h held at that "
            "moment, before "
            "anything was done about it."
            if any(len(group.resources) > 1 for group in advice.groups)
            else "Memory is not on record, and so not judged."
        )
    if pods is not None:
        for group in advice.groups:
            if group.largest_pod_bytes is not None:
                items.append(_largest(group, pods))
    else:
        items.append("What if the largest online pod came to a full node? It is not on record how large that is.")
    yield Items(tuple(items))


def _largest(group: GroupAdvice, pods: LargestPods) -> str:
    size = group.largest_pod_bytes
    assert size is not None
    memory = next((one for one in group.resources if one.resource == "memory"), None)
    head = f"{group.name}: the largest pod {pods.what} {size / GIB:.1f} GiB."
    if memory is None:
        return head
    node = memory.capacity / group.at_once
    slack = (1.0 - Config().memory.watermark_ratio) * node
    if size <= slack:
        return f"{head} On a node that is full, that fits into what is kept free ({slack / GIB:.1f} GiB)."
    return (
        f"{head} On a node that is full, {slack / GIB:.1f} GiB are kept free: if it filled the rest at "
        "once, offline pods would "
        "have to go, one in 10 s at first, more in an emergency. If it grows so within seconds, give its nodes "
        f"`reserve_bytes = {size - slack:.0f}` under `[memory]`."
    )


def _curve(curve: Curve) -> Iterator[PageBlock]:
    named = "CPU" if curve.resource == "cpu" else "Memory"
    shows = f"{named}: what each watermark gives offline pods, against how often online wants more than the slack"
    yield Paragraph(
        f"{named}: what the box may have on average (up), against how often online wants more than the slack (right)."
    )
    yield Drawing(drawings.of_sweep(curve), shows)
    yield FactTable(
        f"{named}: the watermark, the share of a node that online and the box may fill",
        ("watermark", "box's mean limit", "more than the slack"),
        tuple(
            (
                f"{one.watermark_ratio:g}{' (begin with this)' if one.watermark_ratio == curve.chosen else ''}",
                f"{one.limit_ratio:.1%}",
                _share(one.hard_ratio),
            )
            for one in curve.points
        ),
        folded=True,
    )
    if curve.chosen is None:
        yield Paragraph(
            f"None of them keeps within {curve.budget_ratio:.1%} of the time: leave out the nodes that are "
            "violated most."
        )
    else:
        more = "" if curve.recommended == curve.chosen else f" Later, {curve.recommended:g} would give more."
        yield Paragraph(
            f"Begin with {curve.chosen:g} (the default is {curve.present:g}, with which the numbers of this page were "
            f"made): within {curve.budget_ratio:.1%} of the time, and no more than the default.{more}"
        )


def _config(advice: Advice) -> Iterator[PageBlock]:
    lines = ["# /etc/criproxy/config.d/site.toml"]
    for curve in advice.curves:
        if curve.chosen is not None:
            lines += [f"[{curve.resource}]", f"watermark_ratio = {curve.chosen:g}"]
    lines += ["", "[colocation]", "enabled = false    # true after the dry run"]
    yield Listing("\n".join(lines))
    yield Paragraph(
        "The watermark of CPU counts where the kernel has no cpu.idle; where it has, the box may use what "
        "online leaves, and "
        "`kubernetes.cpu_watermark_ratio` (0.95) is what is published.",
        "quiet",
    )


def _first_step(advice: Advice) -> tuple[str, ...]:
    names = " and ".join(group.name for group in advice.groups[:2])
    return (
        f"Choose three nodes ({names}) whose loss for a quarter of an hour would hurt nobody, no two of one service.",
        "Install the package there (README, Install: the first line), and nothing else: the service computes from its "
        "first second on, and with colocation off, as it comes, it writes nothing; kubelet does not go through it.",
        "After a day, on each: `criproxy advise --output node.html`. It compares what the daemon computed "
        "each minute with "
        f"what this page's replay makes of the same minutes: they should be within {SAME_RATIO:.0%}.",
        "After a week: this page again, for these three nodes. If lent and guaranteed are within "
        f"{SAME_RATIO:.0%}, begin on "
        "one of them: `criproxy attach`, `enabled = true`, and one pod with the label "
        "`colocation.criproxy.io/class: offline` that can be lost (examples/ has some).",
        "Watch online's own latency on that node against the other two for a week. If nobody can tell "
        "which of the three "
        "it is, go on; else `criproxy detach`.",
    )


def _compared(found: Sequence[Comparison]) -> Iterator[PageBlock]:
    rows = []
    for one in found:
        factor, unit = _unit(one.resource)
        shown = [f"{value / factor:.2f} {unit}" for value in (one.said, one.advised)]
        rows.append((f"{one.node}, {one.resource}", *shown, f"{one.off_ratio:+.1%}", f"{one.hours:.1f} h"))
    yield FactTable(
        "What the daemon computed to lend, on average, and what this page's replay makes of the same minutes",
        ("node", "daemon", "replay", "off by", "of"),
        tuple(rows),
    )
    far = [one for one in found if abs(one.off_ratio) > SAME_RATIO]
    yield Paragraph(
        f"Within {SAME_RATIO:.0%}: this page can be believed for these nodes."
        if not far
        else f"More than {SAME_RATIO:.0%} apart: {', '.join(f'{one.node} ({one.resource})' for one in far)}. The "
        "record's steps hide what the daemon sees each second, or its settings are not the defaults: look at "
        "`criproxy status --why` there before going on."
    )


# --- cells ------------------------------------------------------------------------------------------------------------


def _unit(resource: str) -> tuple[float, str]:
    return (1.0, "cores") if resource == "cpu" else (GIB, "GiB")


def _amount(one: ResourceAdvice) -> Callable[[float], str]:
    factor, _ = _unit(one.resource)
    digits = 1 if one.capacity / factor < 1000 else 0
    return lambda value: f"{value / factor:.{digits}f}"


def _share(ratio: float) -> str:
    return f"{ratio:.2%}" if ratio >= 0.00005 or ratio == 0.0 else "less than 0.01%"


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"


def _length(seconds: float) -> str:
    for size, name in ((3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:g} {name}"
    return f"{seconds:g} s"
