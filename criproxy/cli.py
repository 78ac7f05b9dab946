"""The command line: verbs only. What a verb needs is imported by the verb, so that each starts fast."""

import argparse
import errno
import functools
import math
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from criproxy import __version__

if TYPE_CHECKING:
    from criproxy.config.settings import Proxy

DEFAULT_CONFIG: Final = Path("/etc/criproxy/config.toml")
_REDRAW: Final = "\x1b[H\x1b[2J"
_TIMEOUT_S: Final = 12.0
"""Longer than criproxy waits for a file that hangs, so that its answer says so."""

_OFF_WHAT: Final = "the box, or an offline pod: its namespace/name, its name or its uid"

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a write says, and no other call without naming a file, where the disk has no room."""

_STATUS_ENDS: Final = (
    "Exit status: 0 all is well; 1 something is not (what, the text says first, and the key problems in JSON); 2 wrong "
    "command line; 3 criproxy does not run; 4 what answers is not criproxy; 5 only root may ask. With --why, 0 for any "
    "answer."
)

_UPGRADE_ENDS: Final = (
    "Exit status: 0 the new one serves; 1 there is no new one, and why; 2 wrong command line; 6 refused: the one that "
    "runs goes on well, and a restart would harm the node, as the config has errors or another proxy.listen, or a disk "
    "or the kernel does not answer: mend what the text says, then try again; 7 the new one serves, and the runtime "
    "does not answer through it."
)


def main(arguments: list[str] | None = None) -> int:
    """Run a verb; returns the exit status: 0, 1 for a failure, with its reason on stderr, 2 for a wrong command line.

    Those of `status` and `upgrade` say more: see their help.
    """
    try:
        try:
            return _run_verb(arguments)
        finally:
            print(end="", flush=True)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader (head, less) has gone
        problem: tuple[str, ...] = ()
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None:
            raise
        problem = (f"criproxy: the output can't be written: {error.strerror}",)
    # Python must not try to flush again when it exits.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _fail(*problem)


def _run_verb(arguments: list[str] | None) -> int:
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if options.verb in (_simulate, _advise):
        options.arguments = rest
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    verb: Callable[[argparse.Namespace], int] = options.verb
    return verb(options)


class _Help(argparse.HelpFormatter):
    """As wide as the terminal. argparse asks shutil for that, with each option, which brings archives: 0.5 MB."""

    def __init__(self, prog: str) -> None:
        try:
            columns = os.get_terminal_size().columns
        except OSError:
            columns = 80
        super().__init__(prog, width=columns - 2)


class _Parser(argparse.ArgumentParser):
    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=_Help, **settings)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="criproxy",
        description="Lets offline pods use what the online pods of a Kubernetes node leave.",
    )
    parser.add_argument("--version", action="version", version=f"criproxy {__version__}")
    verbs = parser.add_subparsers(metavar="VERB", required=True, prog=parser.prog, parser_class=_Parser)
    config = _Parser(add_help=False)
    config.add_argument(
        "--config", metavar="FILE", type=Path, default=DEFAULT_CONFIG, help="the config file (default: %(default)s)"
    )
    run = verbs.add_parser("run", parents=[config], help="run the proxy and the control loop")
    run.add_argument(
        "--dry-run",
        action="store_true",
        help="compute and log, but write no limit and move no pod; what a node lends becomes 0",
    )
    run.set_defaults(verb=_run)
    check = verbs.add_parser("check", parents=[config], help="say everything that is wrong with a config file")
    check.set_defaults(verb=_check)
    explain = verbs.add_parser("explain", parents=[config], help="say what would happen to a pod, and why")
    explain.add_argument("pod", metavar="POD", help="a Pod manifest, JSON or YAML; - reads standard input")
    explain.set_defaults(verb=_explain)
    status = verbs.add_parser("status", parents=[config], help="show what a running criproxy does", epilog=_STATUS_ENDS)
    status.add_argument("--json", action="store_true", help="as JSON")
    status.add_argument("--watch", action="store_true", help="again every second")
    status.add_argument(
        "--why",
        metavar="TIME",
        type=_moment,
        nargs="?",
        const=math.nan,
        help="say instead why the limits are what they are, or were at TIME of the last hour: 14:03, 14:03:07 (local "
        "time) or ISO 8601",
    )
    status.set_defaults(verb=_status)
    top = verbs.add_parser("top", parents=[config], help="show what the node and each offline pod use, live")
    top.set_defaults(verb=_top)
    page = verbs.add_parser("page", parents=[config], help="show the node's last day in a browser, until Ctrl-C")
    page.add_argument("--save", metavar="FILE", type=Path, help="write the page with its data inside instead")
    page.set_defaults(verb=_page)
    metrics = verbs.add_parser("metrics", parents=[config], help="print what a running criproxy counts and measures")
    metrics.add_argument(
        "--textfile",
        metavar="FILE",
        type=_textfile,
        help="write it there instead, at once, for node_exporter's textfile collector: its name ends with .prom",
    )
    metrics.set_defaults(verb=_metrics)
    # Its many options are its own matter, so that no other verb pays for them.
    simulate = verbs.add_parser("simulate", add_help=False, help="replay recorded usage: what a node would have gained")
    simulate.set_defaults(verb=_simulate)
    advise = verbs.add_parser("advise", add_help=False, help="what nodes could lend, from a Prometheus: a page")
    advise.set_defaults(verb=_advise)
    upgrade = verbs.add_parser(
        "upgrade",
        parents=[config],
        help="replace a running criproxy by the one installed now; no call fails",
        epilog=_UPGRADE_ENDS,
    )
    upgrade.set_defaults(verb=_upgrade)
    withdraw = verbs.add_parser(
        "withdraw", parents=[config], help="tell Kubernetes that this node lends nothing, while criproxy does not run"
    )
    withdraw.set_defaults(verb=_withdraw)
    attach = verbs.add_parser("attach", parents=[config], help="send this node's kubelet through criproxy")
    detach = verbs.add_parser("detach", parents=[config], help="send this node's kubelet back to its runtime")
    for name, verb in (("attach", attach), ("detach", detach)):
        verb.set_defaults(verb=functools.partial(_attach, name=name))
        verb.add_argument("--dry-run", action="store_true", help="show what would change and run, and change nothing")
    sentry = verbs.add_parser(
        "sentry", parents=[config], help="have the runtime keep unplaced offline containers out itself, by NRI"
    )
    sentry.add_argument("switch", choices=("on", "off"), help="from the runtime's next start on; off: from now on")
    sentry.set_defaults(verb=_sentry)
    _add_hold_offs(verbs, config)
    return parser


def _add_hold_offs(verbs: Any, config: _Parser) -> None:
    hold_off = verbs.add_parser(
        "hold-off", parents=[config], help="have criproxy leave its hands off the box, or a pod"
    )
    hold_off.add_argument("of", metavar="POD|box", nargs="?", default="box", help=f"{_OFF_WHAT} (default: %(default)s)")
    hold_off.add_argument("seconds", metavar="FOR", type=_seconds, help="for how long: 2h, 90m, 45s, 1d, 1h30m")
    hold_off.add_argument("--reason", required=True, help="why, for who comes next")
    hold_off.set_defaults(verb=_hold_off)
    release = verbs.add_parser("release", parents=[config], help="end a hold-off before its time")
    release.add_argument("of", metavar="POD|box", nargs="?", default="box", help=f"{_OFF_WHAT} (default: %(default)s)")
    release.set_defaults(verb=_release)


def _run(options: argparse.Namespace) -> int:
    from criproxy.daemon import footprint

    with footprint.fewer_modules():
        from criproxy.daemon import daemon

    return daemon.run(options.config, options.dry_run)


def _check(options: argparse.Namespace) -> int:
    from criproxy.config import load

    loaded = load(options.config)
    if loaded.errors:
        return _fail(*map(str, loaded.errors))
    config = loaded.config
    state = "on" if config.colocation.enabled else "off"
    _print(
        f"{options.config}: ok",
        f"  {config.proxy.listen_path} -> {config.proxy.runtime_path}",
        f"  colocation {state}, policy {config.control.policy}, {len(config.colocation.rules)} rules"
        + "".join(f", preset {preset}" for preset in config.colocation.presets),
        f"  status at {config.proxy.status_path}, for root; metrics at http://{config.observe.address}",
    )
    if config.colocation.enabled and (criu := shutil.which("criu")) is not None:
        _print(
            f"warning: {criu} is there: an offline pod's image may be a checkpoint, by which its processes have rights"
        )
        _print("that no hardening takes; take criu off this node (docs/refused.md)")
    return 0


def _explain(options: argparse.Namespace) -> int:
    from criproxy.commands.explain.command import run
    from criproxy.config import OwnFiles
    from criproxy.daemon.kubernetes import load_first

    loaded = load_first(OwnFiles(options.config), dry_run=False)
    if loaded.errors:
        _fail(*map(str, loaded.errors))
        if options.config != DEFAULT_CONFIG or options.config.exists():
            return 1
    try:
        _print(run(options.pod, loaded.config), end="")
    except ValueError as error:
        return _fail(str(error))
    return 0


def _status(options: argparse.Namespace) -> int:
    from criproxy.config.last_run import load_as_it_runs
    from criproxy.observe import client

    config = load_as_it_runs(options.config).config
    socket = Path(config.proxy.status_path)
    while True:
        if options.watch and sys.stdout.isatty():
            _print(_REDRAW, end="")
        end = _show(socket, as_json=options.json, at_s=options.why)
        if end in (client.NotRunningError.exit_status, client.NotCriproxyError.exit_status):
            _show_bypass(config.proxy)
        if not options.watch:
            return end
        sys.stdout.flush()
        time.sleep(1)


def _top(options: argparse.Namespace) -> int:
    from criproxy.commands.top.command import run

    return _asking(options, run)


def _page(options: argparse.Namespace) -> int:
    from criproxy.commands.page import command
    from criproxy.config.last_run import load_as_it_runs
    from criproxy.observe import client

    socket = Path(load_as_it_runs(options.config).config.proxy.status_path)
    try:
        if options.save is None:
            command.serve(socket)
        else:
            _print(command.save(socket, options.save))
    except client.AskError as error:
        _fail(str(error))
        return error.exit_status
    except OSError as error:
        return _fail(f"{error.filename or 'the page'}: {error.strerror}")
    except ValueError as error:
        return _fail(f"{socket} does not answer like criproxy {__version__} ({error}): is it an older one?")
    return 0


def _show_bypass(proxy: "Proxy") -> None:
    """Where kubelet's calls go while criproxy does not say so itself."""
    from criproxy.daemon import bypass

    listen, runtime = Path(proxy.listen_path), Path(proxy.runtime_path)
    if words := bypass.Bypass((bypass.DIRECTORY,), listen, runtime, proxy.bypass).while_away():
        _fail(words)


def _show(socket: Path, *, as_json: bool, at_s: float | None) -> int:
    """The status, or why the limits are what they were at a moment (NaN: now); returns the exit status."""
    from criproxy.observe import client

    end = 0
    try:
        if at_s is None:
            from criproxy.observe import status, status_text

            text = client.ask(socket, "/status", _TIMEOUT_S)
            found = status.from_json(text)
            shown, end = status_text.render(found), 1 if found.problems else 0
        else:
            from criproxy.observe import why

            text = client.ask(socket, "/why" if math.isnan(at_s) else f"/why?at={at_s}", _TIMEOUT_S)
            shown = why.render(why.from_json(text))
    except client.AskError as error:
        _fail(str(error))
        return error.exit_status
    except ValueError as error:
        _fail(f"{socket} does not answer like criproxy {__version__} ({error}): is another program there?")
        return client.NotCriproxyError.exit_status
    _print(text if as_json else shown, end="\n" if as_json else "")
    return end


def _metrics(options: argparse.Namespace) -> int:
    from criproxy.commands import metrics
    from criproxy.config.last_run import load_as_it_runs
    from criproxy.observe import client

    socket = Path(load_as_it_runs(options.config).config.proxy.status_path)
    try:
        if options.textfile is None:
            _print(metrics.text(socket), end="")
        else:
            metrics.to_file(socket, options.textfile)
    except client.AskError as error:
        _fail(str(error))
        return error.exit_status
    except OSError as error:
        return _fail(f"{options.textfile}: {error.strerror or error}: make its folder, and let this user write there")
    return 0


def _textfile(text: str) -> Path:
    if not text.endswith(".prom"):
        raise argparse.ArgumentTypeError(f"{text} does not end with .prom: node_exporter reads no other files")
    return Path(text)


def _moment(text: str) -> float:
    from criproxy.observe.why import parse_moment

    try:
        return parse_moment(text, time.time())
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _simulate(options: argparse.Namespace) -> int:
    from criproxy.commands.simulate.command import main as simulate

    return simulate(options.arguments)


def _advise(options: argparse.Namespace) -> int:
    from criproxy.commands.advise.command import main as advise

    return advise(options.arguments)


def _upgrade(options: argparse.Namespace) -> int:
    from criproxy.commands.upgrade import NotUpgradedError, run
    from criproxy.config.last_run import load_as_it_runs

    try:
        _print(run(load_as_it_runs(options.config), of_service=options.config == DEFAULT_CONFIG))
    except NotUpgradedError as error:
        _fail(f"not upgraded: {error}")
        return error.exit_status
    except PermissionError as error:
        return _fail(f"not upgraded: {error}")
    return 0


def _withdraw(options: argparse.Namespace) -> int:
    from criproxy.commands.withdraw import NotWithdrawnError, withdraw
    from criproxy.config import OwnFiles
    from criproxy.config.last_run import as_it_runs
    from criproxy.daemon.kubernetes import load_first, mark_file

    # As criproxy had it: the cluster's policy may say what is published, and by which names.
    config = as_it_runs(load_first(OwnFiles(options.config), dry_run=False), options.config).config
    try:
        _print(withdraw(config, mark_file(config)))
    except NotWithdrawnError as error:
        return _fail(f"not withdrawn: {error}")
    return 0


def _attach(options: argparse.Namespace, name: str) -> int:
    from criproxy.commands.attach.command import run

    return run(name, options.config, options.dry_run)


def _sentry(options: argparse.Namespace) -> int:
    from criproxy.commands.sentry import run

    return run(options.switch, options.config)


def _seconds(text: str) -> float:
    from criproxy.commands.hold_off import parse_seconds

    try:
        return parse_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _hold_off(options: argparse.Namespace) -> int:
    return _command(options, "hold-off", of=options.of, seconds=f"{options.seconds:g}", reason=options.reason)


def _release(options: argparse.Namespace) -> int:
    return _command(options, "release", of=options.of)


def _command(options: argparse.Namespace, name: str, **asked: str) -> int:
    """Have the running criproxy do it."""
    from urllib.parse import urlencode

    from criproxy.observe import client

    question = f"/{name}?{urlencode(asked)}"
    return _asking(options, lambda socket: _print(client.command(socket, question, _TIMEOUT_S)))


def _asking(options: argparse.Namespace, job: Callable[[Path], object]) -> int:
    """Has the job ask the running criproxy, at its socket; returns the exit status."""
    from criproxy.config.last_run import load_as_it_runs
    from criproxy.observe import client

    try:
        job(Path(load_as_it_runs(options.config).config.proxy.status_path))
    except client.AskError as error:
        _fail(str(error))
        return error.exit_status
    except ValueError as error:
        return _fail(str(error))
    return 0


def _print(*lines: str, end: str = "\n") -> None:
    sys.stdout.write("\n".join(lines) + end)


def _fail(*lines: str) -> int:
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    return 1
