"""The systemd drop-in that adds one flag to kubelet's command: written, recognised, and taken apart again.

A drop-in is the one place that nobody else writes: kubeadm rewrites kubeadm-flags.env and config.yaml on each upgrade,
packages bring their own units and drop-ins. It wins wherever the endpoint came from, as a flag wins over configuration
files and the last of two flags over the first; and to undo it is to remove one file. Its price: it repeats the unit's
command, which a package may change. It repeats it as it is written, so that variables stay variables.
"""

import re
import shlex
from typing import Final

from criproxy.commands.attach.kubelet import Command
from criproxy.kubelet.flags import ENDPOINT_FLAG, socket_path
from criproxy.kubelet.units import commands, logical_lines

MARK: Final = "# Written by `criproxy attach`; `criproxy detach` removes it."
"""The first line of a file that is all ours."""

_BEFORE: Final = "# Before, this kubelet used "
_COMMAND: Final = "ExecStart="
_PLAIN: Final = re.compile(r"[A-Za-z0-9_@%+=:,./$-]+")


def write(command: Command, listen: str, before: str) -> str:
    """The drop-in that sends the kubelet of `command` to the socket `listen`; `before` is the endpoint it had."""
    return "\n".join(
        (
            MARK,
            "# A flag wins over kubelet's configuration files, and the last of two flags over the first: so the",
            f"# command of {command.file} is repeated with one flag added, and nothing else is changed.",
            f"{_BEFORE}{before}",
            "[Unit]",
            "Wants=criproxy.service",
            "",
            "[Service]",
            _COMMAND,
            f"{_COMMAND}{command.text} {_flag(listen)}",
            "",
        )
    )


def listen_of(text: str) -> str:
    """The socket that a drop-in of ours sends kubelet to; "" when it is none of ours."""
    if not text.startswith(MARK):
        return ""
    try:
        last = shlex.split(_command_of(text))[-1:]
    except ValueError:
        return ""
    key, _, value = last[0].replace("%%", "%").replace("$$", "$").partition("=") if last else ("", "", "")
    return (socket_path(value) or "") if key == ENDPOINT_FLAG else ""


def is_stale(text: str, command: Command, listen: str) -> bool:
    """Whether the copy in `text`, a drop-in of ours, is not what `write` would copy today."""
    return bool(listen_of(text)) and _command_of(text) != f"{command.text} {_flag(listen)}"


def taken_out(text: str, listen: str, copied: str) -> str | None:
    """`text`, a drop-in of ours that somebody has changed, without what is ours; None: nothing else is in it.

    `copied` is the command that we copied: one that somebody has changed since keeps the change, without our flag.
    """
    ours = [MARK, "# A flag wins over", "# command of ", _BEFORE, "Wants=criproxy.service"]
    if _command_of(text) == f"{copied} {_flag(listen)}":
        ours.append(_COMMAND)
    left = "".join(line for line in text.splitlines(keepends=True) if not line.startswith(tuple(ours)))
    left = re.sub(rf"[ \t]+{re.escape(_flag(listen))}(?=\s|$)", "", left)
    return left if any(not line.startswith("[") for line in logical_lines(left)) else None


def _command_of(text: str) -> str:
    """The command that a drop-in sets; "" when it sets none."""
    return "".join(commands(text.encode(errors="surrogateescape"))[-1:])


def _flag(listen: str) -> str:
    """The flag as systemd reads it: one word, and nothing in it a variable or a specifier."""
    word = f"{ENDPOINT_FLAG}=unix://{listen}".replace("%", "%%").replace("$", "$$")
    if _PLAIN.fullmatch(word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
