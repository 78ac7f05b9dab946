"""The verbs of `criproxy-cluster`. Each imports what it needs, as none needs all."""

import argparse
import sys
from collections.abc import Sequence

from criproxy_cluster.conversion import ConversionSettings
from criproxy_cluster.names import PRESETS


def main(arguments: Sequence[str] | None = None) -> None:
    """Exits with 1 when something is wrong with what it was given, 2 for a command line that it does not know."""
    chosen = _parser().parse_args(arguments)
    sys.exit(chosen.verb(chosen))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="criproxy-cluster", description="The cluster's side of criproxy.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    convert = verbs.add_parser("convert", help="make the pods of a manifest ask for what nodes lend")
    convert.add_argument("file", help="YAML or JSON, of one or several objects; - for the input")
    _add_preset(convert)
    convert.set_defaults(verb=_convert)
    return parser


def _add_preset(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--preset", choices=sorted(PRESETS), default="batch", help="what nodes call the resources that they lend"
    )


def _convert(chosen: argparse.Namespace) -> int:
    from criproxy_cluster.convert_command import ManifestError, convert, lines

    try:
        text, notes = convert(chosen.file, ConversionSettings(names=PRESETS[chosen.preset]))
    except ManifestError as error:
        return _complain(str(error))
    for line in lines(notes):
        print(line, file=sys.stderr)
    sys.stdout.write(text)
    return 0


def _complain(problem: str) -> int:
    print(f"criproxy-cluster: {problem}", file=sys.stderr)
    return 1
