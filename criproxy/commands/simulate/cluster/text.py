"""The figures as a table and in words."""

from collections.abc import Iterator
from typing import Any, Final

from criproxy.commands.simulate.cluster.laws import BY_NAME
from criproxy.commands.simulate.report import aligned

COLUMNS: Final = (
    ("core-h", "placed_core_hours", "{:,.0f}"),
    ("of free %", "placed_ratio", "%"),
    ("node %", "utilisation", "%"),
    ("below half %", "below_half", "%%"),
    ("squeezed %", "squeezed", "%%"),
    ("slow p50", "slowdown_p50", "{:.2f}"),
    ("p95", "slowdown_p95", "{:.2f}"),
    ("evictions", "evictions", "{:,}"),
    ("starved", "evictions_starved", "{:,}"),
    ("lost core-h", "lost_core_hours", "{:,.0f}"),
    ("broken CPU", "broken_cpu", "{:,}"),
    ("memory", "broken_memory", "{:,}"),
    ("reports/h", "reports_per_node_hour", "{:.1f}"),
)
WAITING: Final = (
    ("waiting", "waiting_jobs", "{:,}"),
    ("core-h", "waiting_core_hours", "{:,.0f}"),
    ("wait p50", "wait_p50_s", "{:,.0f} s"),
    ("p95", "wait_p95_s", "{:,.0f} s"),
)

LEGEND: Final = (
    "core-h: CPU that offline pods got; of free: of what online left; node: the nodes' CPU in use, online's included;\n"
    "below half: share of pods' time at less than half of the speed that they asked for; squeezed: share of nodes'\n"
    "time at less than all of it; slow: time from a job's first start to its end, over its time at full speed;\n"
    "starved: evictions of the youngest pod where others got too little CPU; lost: work of evicted pods; broken:\n"
    "samples at which offline held CPU, or memory, that online wanted"
)


def cell(value: float | None, form: str) -> str:
    if value is None:
        return "-"
    if form in ("%", "%%"):
        return f"{100.0 * value:.{len(form)}f}"
    return form.format(value)


def columns(content: dict[str, Any]) -> tuple[tuple[str, str, str], ...]:
    return COLUMNS if content["jobs"] is None else COLUMNS + WAITING


def told(content: dict[str, Any]) -> Iterator[str]:
    shown = columns(content)
    yield from aligned(
        [
            ("law", *(title for title, _, _ in shown)),
            *(
                (BY_NAME[name].title, *(cell(found[key], form) for _, key, form in shown))
                for name, found in content["laws"].items()
            ),
        ]
    )
    yield ""
    yield LEGEND
    yield ""
    yield what(content)
    ours, theirs = content["laws"]["criproxy"], content["laws"]["koordinator"]
    if ours["utilisation"] is not None:
        yield (
            f"Online alone uses {100 * ours['utilisation_online']:.1f} % of the nodes' CPU; with criproxy "
            f"{100 * ours['utilisation']:.1f} % are in use, with Koordinator {100 * theirs['utilisation']:.1f} %."
        )
    machine = content["machine"]
    yield (
        f"Took {machine['took_s']:.0f} s, and {machine['cpu_s']:.0f} s of CPU time, on {machine['cpus']} CPUs at a "
        f"load of {machine['load']:g}; the largest process had {machine['peak_rss_bytes'] / 2**20:.0f} MiB."
    )


def what(content: dict[str, Any]) -> str:
    """What was replayed."""
    queue = (
        "an endless queue of pods of one core, 10 minutes on average"
        if content["jobs"] is None
        else f"{content['jobs']:,} pods of jobs.csv"
    )
    memory = "with memory" if content["memory"] else "without memory, which is not recorded"
    if content["memory"] and content["jobs"] is None:
        memory = "no pod of which asks for memory (jobs.csv has those that do)"
    counted_h = (content["duration"] - content["warm_up"]) / 3600.0
    return (
        f"{content['nodes']:,} nodes of {content['cores']:,.0f} cores for {counted_h:.1f} h after "
        f"{content['warm_up'] / 3600.0:.1f} h of warm-up, in cells of {content['cell']:g} s; {queue}, {memory}; "
        f"seed {content['seed']}."
    )
