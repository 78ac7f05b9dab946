"""`criproxy simulate --signals`: its options, and how it tells what the ladder would have done."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import to_builtins

from criproxy.commands.simulate import SimulateError
from criproxy.commands.simulate.readers import lines, name_of
from criproxy.commands.simulate.report import aligned, write_json
from criproxy.commands.simulate.signals import DEFAULTS, SignalReplay, read_record, replay_signals
from criproxy.commands.simulate.trace import Findings
from criproxy.config import load
from criproxy.config.ladder import ladder_settings
from criproxy.control.interference.detectors import DETECTORS
from criproxy.control.interference.ladder import RESOURCES_IN_TURN, LadderSettings, Rung

_EPILOG = f"""\
FILE has JSON lines, plain or gzip: {{"t_s": 12.0, "signal": "cpu_pressure", "value": 31.5}}; - reads standard input.
Signals: {", ".join(detector.name for detector in DETECTORS)}.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="criproxy simulate --signals",
        description="Replays a record of signals of harm to online pods through the daemon's detectors and ladder, and "
        "tells every step that it would have taken, and why.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = tuple(resource.name for resource in RESOURCES_IN_TURN)
    parser.add_argument("file", metavar="FILE", help="the record, see below")
    parser.add_argument("--guilty", choices=names, default="", help="suppose that this resource of the box is the "
        "cause: signals that suspect it fall when it is squeezed, which a record does not do by itself")  # fmt: skip
    parser.add_argument("--config", metavar="FILE", type=Path, help="go by the numbers of [interference] of this "
        "config file (default: the defaults)")  # fmt: skip
    parser.add_argument("--json", metavar="F", help="write everything to this file")
    return parser


def simulate(arguments: Sequence[str]) -> None:
    """Raises SimulateError."""
    given, findings = _parser().parse_args(arguments), Findings()
    ladder = _ladder(given.config) if given.config else DEFAULTS
    record = read_record(lines(given.file, findings), name_of(given.file), findings)
    replayed = replay_signals(record, given.guilty, ladder)
    sys.stderr.writelines(f"note: {line}\n" for line in findings.lines())
    sys.stdout.writelines(f"{line}\n" for line in in_words(replayed))
    if given.json:
        write_json(given.json, to_builtins(replayed))


def _ladder(file: Path) -> LadderSettings:
    """Raises SimulateError."""
    loaded = load(file)
    if loaded.errors:
        raise SimulateError("; ".join(map(str, loaded.errors)))
    return ladder_settings(loaded.config.interference)


def in_words(replayed: SignalReplay) -> Iterator[str]:
    """What happened when, then the sums."""
    events = [(one.t_s, f"{one.resource}: {one.before} -> {one.after}: {one.reason}") for one in replayed.transitions]
    events += [(one.t_s, f"{one.order.resource}: a pod goes: {one.order.reason}") for one in replayed.gone]
    for t_s, words in sorted(events, key=lambda event: event[0]):
        yield f"{t_s:.1f} {words}"
    if events:
        yield ""
    yield from aligned(
        [
            ("signal", "values", "greatest", "threshold", "bar at the end", "unit"),
            *(
                (one.signal, str(one.samples), *(f"{value:.4g}" for value in (one.greatest, one.threshold, one.bar)),
                 one.unit)
                for one in replayed.signals
            ),
        ]
    )  # fmt: skip
    yield ""
    for resource, stood_s in replayed.rungs_s.items():
        held = {rung: stood for rung, stood in stood_s.items() if rung is not Rung.OPEN and stood > 0.0}
        if held:
            parts = ", ".join(f"{rung} {stood:.0f} s" for rung, stood in held.items())
            yield f"{resource} was held back: {parts} of {replayed.span_s:.0f} s."
    tried = sum(one.after is Rung.TRIED for one in replayed.transitions)
    guilty = sum(one.before is Rung.TRIED and one.after is Rung.SQUEEZED for one in replayed.transitions)
    gone = _many(len(replayed.gone), "pod")
    yield f"{_many(tried, 'experiment')}, {_many(guilty, 'conviction')}; {gone} would have gone."


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
