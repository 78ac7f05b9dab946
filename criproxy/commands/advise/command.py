"""`criproxy advise`: its options, and what it does: ask or read, replay on all CPUs, and write the page."""

import argparse
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct, to_builtins

from criproxy.commands.advise import blocks, dryrun, questions, words
from criproxy.commands.advise.prometheus import Prometheus, PrometheusAddress
from criproxy.commands.advise.study import Advice, study
from criproxy.commands.simulate import SimulateError
from criproxy.commands.simulate.cells import CPU_UNITS
from criproxy.commands.simulate.cluster.command import NUMPY, require_numpy
from criproxy.commands.simulate.cluster.folder import EXAMPLE
from criproxy.commands.simulate.cluster.folder import read as read_folder
from criproxy.commands.simulate.cluster.record import RecordedNode
from criproxy.commands.simulate.command import carry_out
from criproxy.commands.simulate.parallel import Bar
from criproxy.commands.simulate.readers import load
from criproxy.commands.simulate.report import write_json, writing
from criproxy.config import load as load_config
from criproxy.observe import client

DEFAULT_CONFIG: Final = Path("/etc/criproxy/config.toml")
_ASK_S: Final = 12.0
_MOST_DAYS: Final = 90.0

_EPILOG: Final = """\
Without --prometheus and without WHAT, the criproxy that runs on this node is asked for its last day (as root). WHAT is
  FOLDER      nodes.csv and capacity.csv, as for criproxy simulate --cluster
  FILE…       usage of CPU, as for criproxy simulate, with --capacity
  PAGE.html…  days that criproxy page --save has kept on nodes
Queries of your own (--query) give a value for each node, with the label that the others have (node, or instance), in
cores and bytes. What is asked and what is replayed: docs/advise.md.
"""


class Recorded(Struct, frozen=True):
    """What the page is of: nodes, what else is known of them, and where it is from, in words."""

    nodes: tuple[RecordedNode, ...]
    source: str
    notes: tuple[str, ...] = ()
    pods: questions.LargestPods | None = None
    dry_runs: tuple[dryrun.DryRun, ...] = ()
    mean_s: float = 0.0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="criproxy advise",
        description="Says what nodes could lend to offline pods and what online would risk, from recorded usage, "
        "before anything is installed: one page for who answers for the online service.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("what", metavar="WHAT", nargs="*", help="recorded usage, see below")
    add("--example", action="store_true", help="use two days of twelve made-up nodes")
    add("--prometheus", metavar="URL", help="ask this Prometheus (or Thanos, Mimir, VictoriaMetrics) instead")
    add("--selector", metavar="MATCHERS", default="", help="which nodes, in PromQL: 'cluster=\"a\"'")
    add("--days", metavar="N", type=_days, default=7.0, help="how far back (%(default)g)")
    add("--step", metavar="S", type=_step, default=60, help="seconds from sample to sample (%(default)s)")
    add("--until", metavar="T", type=float, help="the last moment, in unix seconds (now)")
    add("--query", metavar="NAME=PROMQL", action="append", default=[], help="another query for cpu, memory, "
        "cpu-capacity or memory-capacity")  # fmt: skip
    add("--replica-label", metavar="NAME", action="append", default=[], help="a label that tells replicas of one "
        "Prometheus apart, beside those that Thanos and others use")  # fmt: skip
    add("--family", metavar="NAME", help="the label or column that groups nodes (nodes that have as much)")
    add("--token-file", metavar="F", default="", help="a bearer token; it is sent with TLS only")
    add("--ca-file", metavar="F", default="", help="who signs the server's certificate (the system's)")
    add("--certificate", metavar="F", default="", help="our own certificate, and --key its key")
    add("--key", metavar="F", default="", help="see --certificate")
    add(
        "--cache", metavar="DIR", type=Path, default=_cache(), help="where answers are kept for two weeks (%(default)s)"
    )
    add("--capacity", metavar="N|FILE", help="for FILE: what each node has, in cores; or a file of id,capacity")
    add("--config", metavar="F", type=Path, default=DEFAULT_CONFIG, help="of the criproxy that runs here (%(default)s)")
    add("--output", metavar="F", default="", help="the page: .html, .md (standard output, in Markdown)")
    add("--format", choices=("html", "markdown"), help="its form, whatever --output is called")
    add("--json", metavar="F", help="write all numbers to this file")
    return parser


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if home.startswith("/") else Path.home() / ".cache") / "criproxy" / "advise"


def _days(text: str) -> float:
    days = float(text)
    if not 0.5 <= days <= _MOST_DAYS:
        raise argparse.ArgumentTypeError(f"must be between 0.5 and {_MOST_DAYS:g}")
    return days


def _step(text: str) -> int:
    step_s = int(text)
    if not 15 <= step_s <= 900:
        raise argparse.ArgumentTypeError("must be between 15 and 900")
    return step_s


# --- what it does -----------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status; the page goes to stdout or the file, progress and what is wrong to stderr."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if bool(given.prometheus) + bool(given.what) + given.example > 1:
        parser.error("give either --prometheus, WHAT or --example")
    if given.output and given.format is None and not given.output.endswith((".html", ".htm", ".md", ".markdown")):
        parser.error(f"--output {given.output}: call it .html or .md, or give --format")
    if bool(given.key) > bool(given.certificate):
        parser.error("--key is of a --certificate")
    return carry_out(lambda: _advise(given))


def _advise(given: argparse.Namespace) -> None:
    """Raises SimulateError."""
    found, bar = _read(given), Bar(sys.stderr)
    left_out = _without_numpy()
    advice = study(found.nodes, {} if found.pods is None else found.pods.of, bar, lives=not left_out)
    comparisons = [one for run in found.dry_runs for one in dryrun.compared(run)]
    notes = (*found.notes, *_left(found.nodes, advice))
    origin = words.Origin(found.source, notes, found.pods, comparisons, left_out, found.mean_s)
    page = [*words.blocks(advice, origin)]
    in_html = given.format == "html" or (given.format is None and given.output.endswith((".html", ".htm")))
    text = (blocks.html if in_html else blocks.markdown)(words.TITLE, page)
    if given.output:
        with writing("--output", given.output) as file:
            file.write(text)
        sys.stdout.write(f"{words.verdict(advice)[1]}\n{given.output}: {len(text.encode()) / 1e3:.0f} kB\n")
    else:
        sys.stdout.write(text)
    if given.json:
        content = {"advice": advice, "dry_run": comparisons, "notes": notes, "verdict": words.verdict(advice)[1]}
        write_json(given.json, json.loads(json.dumps(to_builtins(content, str_keys=True))))


def _without_numpy() -> str:
    """Why the lives of jobs are not known; "": they are."""
    try:
        require_numpy()
    except SimulateError:
        return (
            "How long offline jobs would have lived is not said: that needs numpy. Make the page in a checkout "
            f"that has it (`{NUMPY}`), from `criproxy page --save` of this node."
        )
    return ""


def _left(nodes: Sequence[RecordedNode], advice: Advice) -> tuple[str, ...]:
    there = {group.name for group in advice.groups}
    left = [node.id for node in nodes if node.cpu.family not in there]
    return (f"Too young to say anything of: {', '.join(left[:5])}{', …' if len(left) > 5 else ''}.",) if left else ()


def _read(given: argparse.Namespace) -> Recorded:
    """Raises SimulateError."""
    if given.prometheus:
        return _of_prometheus(given)
    what: list[str] = [str(EXAMPLE)] if given.example else given.what
    if not what:
        return _of_this_node(given.config)
    if len(what) == 1 and Path(what[0]).is_dir():
        cluster = read_folder(Path(what[0]))
        source = "made up (the example that ships)" if given.example else f"recorded in {what[0]}"
        return Recorded(cluster.nodes, source, cluster.notes)
    if all(map(dryrun.is_saved, what)):
        runs = tuple(dryrun.of_pages(what))
        return _of_runs(runs, "by what criproxy recorded there")
    if given.capacity is None:
        raise SimulateError(
            "give --capacity: how many cores each node has, or a file of id,capacity; or a folder, which "
            "has memory as well"
        )
    traces, findings = load(what, given.capacity, given.family, CPU_UNITS[0])
    questions.check_units(traces, "CPU", "cores")
    notes = ("Memory is not in these files, and so not judged: give a folder with nodes.csv.", *findings.lines())
    return Recorded(tuple(RecordedNode(one, None) for one in traces), f"recorded in {', '.join(what[:3])}", notes)


def _of_prometheus(given: argparse.Namespace) -> Recorded:
    prometheus = Prometheus(
        PrometheusAddress(given.prometheus, given.token_file, given.ca_file, given.certificate, given.key), given.cache
    )
    end_s = time.time() if given.until is None else given.until
    asked = questions.RecordQuery(
        end_s - given.days * 86400,
        end_s,
        given.step,
        given.selector.strip().strip("{}").strip().rstrip(","),
        questions.parse_queries(given.query),
        tuple(given.replica_label),
        given.family or "",
    )
    tell = _line(prometheus.url)
    try:
        found = questions.ask(prometheus, asked, tell)
    finally:
        tell("")
    return Recorded(found.nodes, f"as {prometheus.url} recorded them", found.notes, found.pods, mean_s=found.mean_s)


def _line(url: str) -> Callable[[str], None]:
    """The progress, on a terminal alone; "" ends it."""
    if not sys.stderr.isatty():
        return lambda _text: None

    def tell(text: str) -> None:
        sys.stderr.write(f"\r\x1b[K{url}: {text}" if text else "\r\x1b[K")
        sys.stderr.flush()

    return tell


def _of_this_node(config: Path) -> Recorded:
    path = Path(load_config(config).config.proxy.status_path)
    try:
        text = client.ask(path, "/history", _ASK_S)
    except client.AskError as error:
        raise SimulateError(
            f"{error}\nTo advise on other nodes, give --prometheus URL, or files (criproxy advise --help)"
        ) from error
    try:
        history = client.read_json(text)
    except ValueError as error:
        raise SimulateError(f"{path}: does not answer as criproxy does ({error})") from error
    return _of_runs((dryrun.of_histories(socket.gethostname(), [history]),), "by what criproxy recorded here")


def _of_runs(runs: tuple[dryrun.DryRun, ...], source: str) -> Recorded:
    return Recorded(tuple(run.node for run in runs), source, dry_runs=runs)
