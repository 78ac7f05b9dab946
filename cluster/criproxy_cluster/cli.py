"""The verbs of `criproxy-cluster`. Each imports what it needs, as none needs all."""

import argparse
import errno
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from criproxy_cluster.vocabulary.presets import NAMES
from criproxy_cluster.vocabulary.unboundable import FOLDER, WRITABLE_HOST_PATHS
from criproxy_cluster.webhook.conversion import ConversionSettings
from criproxy_cluster.webhook.hardening import HardeningSettings

MOST_SECONDS = 7 * 86400.0

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a write says, and no other call without naming a file, where the disk has no room."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Exits with 1 when something is wrong with what it was given, 2 for a command line that it does not know."""
    sys.exit(_run_verb(arguments))


def _run_verb(arguments: Sequence[str] | None) -> int:
    status = 1
    try:
        try:
            chosen = _parser().parse_args(arguments)
            verb: Callable[[argparse.Namespace], int] = chosen.verb
            return verb(chosen)
        finally:
            print(end="", flush=True)
    except BrokenPipeError:  # the reader (head, less) has gone
        pass
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None:
            raise
        status = _complain(f"the output can't be written: {error.strerror}")
    # Python must not try to flush again when it exits.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="criproxy-cluster", description="The cluster's side of criproxy.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    convert = verbs.add_parser("convert", help="make the pods of a manifest ask for what nodes lend")
    convert.add_argument("file", help="YAML or JSON, of one or several objects; - for the input")
    _add_preset(convert)
    convert.set_defaults(verb=_convert)

    plan = verbs.add_parser(
        "plan",
        help="show which nodes other policies would change, how, and what they would lend then",
        epilog="Exit status: 0 nothing would change; 1 something would; 2 it can't be said, and why.",
    )
    plan.add_argument("file", nargs="?", help="YAML or JSON with ColocationPolicies; - for the input")
    plan.add_argument("--delete", metavar="NAME", action="append", default=[], help="a policy that would be deleted")
    plan.set_defaults(verb=_plan)

    webhook = verbs.add_parser("webhook", help="answer the API server, in the cluster: convert its offline pods")
    webhook.add_argument("--port", type=int, default=9443, help="(default: %(default)s)")
    _add_certificates(webhook)
    _add_preset(webhook)
    webhook.add_argument(
        "--trusted-namespace",
        metavar="NAME",
        action="append",
        default=[],
        help="its offline pods may be privileged and have the node's namespaces and folders, if the nodes let them",
    )
    webhook.add_argument(
        "--writable-host-path",
        metavar="FOLDER",
        type=_folder,
        action="append",
        default=[],
        help="offline pods' hostPath volumes in it may be writable, as nodes lend it (hardening.writable_host_paths)",
    )
    webhook.add_argument(
        "--own-users",
        action="store_true",
        help="give offline pods user namespaces of their own (hostUsers: false), where all their nodes can",
    )
    webhook.add_argument(
        "--owners",
        action="store_true",
        help="leave pods for virtual nodes where policies and the owners' past say so",
    )
    webhook.add_argument(
        "--require-plugin",
        action="store_true",
        help="have runtimes make no container of an offline pod while criproxy's NRI plugin is away, where all nodes "
        "have that front, and runtimes whose default validator is on (containerd 2.2, CRI-O 1.34)",
    )
    webhook.set_defaults(verb=_webhook)

    controller = verbs.add_parser("controller", help="give nodes their policies, in the cluster, if it leads")
    controller.add_argument(
        "--cohort", metavar="NAME", help="keep this Cohort of Kueue at what nodes lend (default: Kueue is left alone)"
    )
    controller.add_argument(
        "--flavor",
        metavar="NAME",
        action="append",
        help="a ResourceFlavor whose nodes lend to the Cohort, as often as you like (default: lent)",
    )
    controller.add_argument(
        "--suspends-per-hour",
        metavar="N",
        type=int,
        help="suspend as many of the newest Workloads where nodes lend less than is in use for five minutes; 0: none, "
        "and have those wait in their queues again that are suspended (default: Workloads are left alone)",
    )
    controller.add_argument(
        "--owners", action="store_true", help="keep the book of owners, and do what policies say of them"
    )
    controller.add_argument(
        "--remakes-per-hour",
        metavar="N",
        type=int,
        default=0,
        help="evict as many pods that wait for a node, where their successors overflow (default: none)",
    )
    _add_preset(controller)
    controller.add_argument(
        "--metrics-port", metavar="PORT", type=int, help="serve /metrics there, to whoever asks (default: nowhere)"
    )
    controller.set_defaults(verb=_controller)

    ledger = verbs.add_parser("ledger", help="let binds through that nodes have room for, in the cluster, if it leads")
    ledger.add_argument("--port", type=int, default=9444, help="of the API server's calls (default: %(default)s)")
    ledger.add_argument("--grpc-port", type=int, default=9445, help="of schedulers' calls (default: %(default)s)")
    _add_certificates(ledger)
    _add_yarn(ledger)
    ledger.set_defaults(verb=_ledger)

    certificates = verbs.add_parser(
        "certificates", help="make what is due of the webhook's certificates, in the cluster, and end"
    )
    certificates.add_argument("--ledger", action="store_true", help="the ledger's, not the webhook's")
    certificates.set_defaults(verb=_certificates)
    return parser


def _add_preset(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--preset", choices=sorted(NAMES), default="batch", help="what nodes call the resources that they lend"
    )


def _add_yarn(parser: argparse.ArgumentParser) -> None:
    yarn = parser.add_argument_group("YARN, beside the pods in what nodes lend")
    yarn.add_argument(
        "--resource-manager",
        metavar="URL",
        action="append",
        default=[],
        help="http://HOST:PORT of its web interface, once for each of several of which one is active "
        "(default: YARN is left alone)",
    )
    yarn.add_argument(
        "--yarn-share",
        metavar="RATIO",
        type=_ratio,
        help="YARN's part of what a node lends, 0 to 1; the rest is kept for pods (default: 0.5)",
    )
    yarn.add_argument(
        "--yarn-grace",
        metavar="SECONDS",
        type=_seconds,
        help="from when YARN is told to give memory back until its containers are killed for it (default: 30)",
    )
    yarn.add_argument(
        "--yarn-drain-grace",
        metavar="SECONDS",
        type=_seconds,
        help="the same where the node is switched off, or the NodeManager's pod is being deleted (default: 600)",
    )
    yarn.add_argument("--yarn-cluster", metavar="ID", help="leave NodeManagers alone whose pods name another one")
    yarn.add_argument(
        "--yarn-namespace",
        metavar="NAME",
        action="append",
        help="where NodeManagers' pods are, once for each; pods elsewhere are none (default: anywhere)",
    )
    _add_preset(yarn)


def _ratio(text: str) -> float:
    value = float(text)
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to 1")
    return value


def _folder(text: str) -> str:
    if not re.search(FOLDER, text):
        raise argparse.ArgumentTypeError(f"{text} is not an absolute path with * at the end of names alone")
    return text


def _seconds(text: str) -> float:
    value = float(text)
    if not 1.0 <= value <= MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text} is not from 1 to {MOST_SECONDS:.0f}")
    return value


def _add_certificates(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--certificates",
        metavar="FOLDER",
        type=Path,
        default=Path("/certificates"),
        help="with tls.crt and tls.key (default: %(default)s)",
    )


def _convert(chosen: argparse.Namespace) -> int:
    from criproxy_cluster.commands.convert import convert, lines
    from criproxy_cluster.commands.manifests import ManifestError

    try:
        text, notes = convert(chosen.file, ConversionSettings(names=NAMES[chosen.preset]))
    except ManifestError as error:
        return _complain(str(error))
    for line in lines(notes):
        print(line, file=sys.stderr)
    sys.stdout.write(text)
    return 0


def _plan(chosen: argparse.Namespace) -> int:
    from criproxy_cluster.commands.manifests import ManifestError
    from criproxy_cluster.commands.plan.changes import lines
    from criproxy_cluster.commands.plan.command import plan_change
    from criproxy_cluster.controller.policies import PolicyError
    from criproxy_cluster.requests import Trouble

    if chosen.file is None and not chosen.delete:
        return _complain("plan: there is nothing to plan: name a file, or a policy with --delete", 2)
    try:
        found = plan_change(chosen.file, chosen.delete)
    except (ManifestError, PolicyError, Trouble) as error:
        return _complain(str(error), 2)
    for line in lines(found):
        print(line)
    return 1 if found.changes else 0


def _webhook(chosen: argparse.Namespace) -> int:
    from criproxy_cluster.commands.webhook import WebhookSettings, main

    if chosen.owners:
        from criproxy_cluster.commands.overflowing_webhook import main
    lent = (*WRITABLE_HOST_PATHS, *chosen.writable_host_path)
    hardening = HardeningSettings(frozenset(chosen.trusted_namespace), chosen.own_users, lent)
    names, required = NAMES[chosen.preset], chosen.require_plugin
    conversion = ConversionSettings(names=names, hardening=hardening, require_plugin=required)
    return main(WebhookSettings(chosen.certificates, conversion, chosen.port))


def _controller(chosen: argparse.Namespace) -> int:
    from criproxy_cluster.commands.controller import main
    from criproxy_cluster.overflow.keeper import OwnersSettings
    from criproxy_cluster.quota.keeper import QuotaSettings

    quota = None
    if chosen.cohort is not None:
        flavors = tuple(dict.fromkeys(chosen.flavor or ["lent"]))
        suspends = None if chosen.suspends_per_hour is None else max(chosen.suspends_per_hour, 0)
        quota = QuotaSettings(chosen.cohort, flavors, NAMES[chosen.preset], suspends)
    elif chosen.flavor or chosen.suspends_per_hour:
        return _complain("controller: --flavor and --suspends-per-hour are of a Cohort: add --cohort NAME", 2)
    if chosen.remakes_per_hour and not chosen.owners:
        return _complain("controller: --remakes-per-hour is of owners: add --owners", 2)
    owners = OwnersSettings(max(chosen.remakes_per_hour, 0)) if chosen.owners else None
    return main(chosen.metrics_port, quota, owners)


def _ledger(chosen: argparse.Namespace) -> int:
    from criproxy_cluster.commands.ledger import LedgerSettings, main
    from criproxy_cluster.yarn.operator import YarnSettings

    said: dict[str, Any] = {
        name: value
        for name, value in (
            ("share_ratio", chosen.yarn_share),
            ("grace_s", chosen.yarn_grace),
            ("drain_grace_s", chosen.yarn_drain_grace),
            ("cluster_id", chosen.yarn_cluster),
            ("namespaces", chosen.yarn_namespace and tuple(chosen.yarn_namespace)),
        )
        if value is not None
    }
    if said and not chosen.resource_manager:
        return _complain("ledger: --yarn-… is of a ResourceManager: add --resource-manager URL", 2)
    if any(not one.startswith(("http://", "https://")) for one in chosen.resource_manager):
        return _complain("ledger: --resource-manager is a URL, as http://rm.example:8088", 2)
    addresses = tuple(chosen.resource_manager)
    yarn = YarnSettings(addresses, names=NAMES[chosen.preset], **said) if addresses else None
    return main(LedgerSettings(chosen.certificates, chosen.port, chosen.grpc_port, yarn))


def _certificates(chosen: argparse.Namespace) -> int:
    from criproxy_cluster.certificates.keeper import LEDGER, WEBHOOK
    from criproxy_cluster.commands.certificates import main

    return main(LEDGER if chosen.ledger else WEBHOOK)


def _complain(problem: str, status: int = 1) -> int:
    print(f"criproxy-cluster: {problem}", file=sys.stderr)
    return status
