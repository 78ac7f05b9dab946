"""Where the words of kubelet, or of what brings it, begin in a command, and what may stand before it.

A flag that is added at the end of a command is kubelet's where kubelet is the last program of it. A wrapper without
options, of whatever name, ends where the next word is kubelet. One with options must be known, as the value of an
option looks like any word. What hands its words to a shell, or has another service start kubelet, takes no flag.
Source: getopt(3), and the manual of each program: util-linux, coreutils, numactl, systemd.
"""

import posixpath
import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

PREFIXES: Final = "@-:+!|"
"""What systemd takes before a program's path. Source: systemd.service(5), special executable prefixes."""

KUBELET: Final = "kubelet"
_SHELLS: Final = ("sh", "bash", "dash", "ash", "busybox", "su", "sudo", "runuser", "systemd-run", "script", "flock")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)


class Wrapper(Struct, frozen=True):
    """Options that take the next word as their value, where it is not joined to them; and what follows the options.

    `short` are letters, `long` names without dashes. `words`: how many words stand between options and program.
    `refused`: with one of these, no program follows that could be kubelet.
    """

    short: str = ""
    long: tuple[str, ...] = ()
    words: int = 0
    refused: tuple[str, ...] = ()


_SETPRIV: Final = (
    *("ambient-caps", "inh-caps", "bounding-set", "securebits", "pdeathsig", "selinux-label", "apparmor-profile"),
    *("ruid", "euid", "rgid", "egid", "reuid", "regid", "groups"),
)
_KNOWN: Final = {
    "nice": Wrapper("n", ("adjustment",)),
    "ionice": Wrapper("cn", ("class", "classdata"), refused=("p", "pid", "P", "pgid", "u", "uid")),
    "chrt": Wrapper(
        "TPD", ("sched-runtime", "sched-period", "sched-deadline"), words=1, refused=("p", "pid", "m", "max")
    ),
    "taskset": Wrapper(words=1, refused=("p", "pid")),
    "numactl": Wrapper(
        "imNCpPw",
        ("interleave", "membind", "cpunodebind", "physcpubind", "preferred", "preferred-many", "weighted-interleave"),
        refused=("s", "show", "H", "hardware"),
    ),
    "env": Wrapper("uC", ("unset", "chdir"), refused=("S", "split-string")),
    "systemd-inhibit": Wrapper(long=("what", "who", "why", "mode"), refused=("list",)),
    "systemd-cat": Wrapper("tp", ("identifier", "priority", "stderr-priority", "level-prefix", "namespace")),
    "choom": Wrapper("n", ("adjust",), refused=("p", "pid")),
    "prlimit": Wrapper(refused=("p", "pid")),
    "setpriv": Wrapper(long=_SETPRIV),
    "stdbuf": Wrapper("ioe", ("input", "output", "error")),
    "timeout": Wrapper("ks", ("kill-after", "signal"), words=1),
    "setsid": Wrapper(),
    "nohup": Wrapper(),
    "chroot": Wrapper(long=("groups", "userspec"), words=1),
    "nsenter": Wrapper("tSG", ("target", "setuid", "setgid")),
    "unshare": Wrapper("RwSG", ("root", "wd", "setuid", "setgid", "propagation", "setgroups")),
}


def is_called(path: str, program: str) -> bool:
    """Whether a path is that of a program, by whatever version or kind its name ends with."""
    name = posixpath.basename(path)
    return name == program or name.startswith(tuple(f"{program}{mark}" for mark in "._-"))


def program_at(words: Sequence[str], program: str = KUBELET) -> int:
    """The index of the word that is the program. Raises ValueError, saying why no flag can be added to kubelet's."""
    at = 0
    while at < len(words):
        path = words[at] if at else words[at].lstrip(PREFIXES)
        name = posixpath.basename(path)
        if is_called(path, program):
            if ";" in words[at:]:
                raise ValueError("it starts several commands")
            return at
        if name in _SHELLS:
            raise ValueError(f"{name} starts kubelet")
        at = _after(name, words, at + 1)
    raise ValueError("it does not start kubelet itself")


def _after(name: str, words: Sequence[str], at: int) -> int:
    """Where the program begins that a wrapper runs, whose own options begin at `at`."""
    wrapper = _KNOWN.get(name)
    if wrapper is None:
        if at < len(words) and words[at].startswith("-"):
            raise ValueError(f"it begins with {name} and options of it that criproxy does not know ({words[at]} …)")
        return at
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        if words[at] == "--":
            at += 1
            break
        at += 1 + _takes_the_next(name, wrapper, words[at])
    if name == "env":
        while at < len(words) and (words[at] == "-" or _ASSIGNMENT.fullmatch(words[at])):
            at += 1
    return at + wrapper.words


def _takes_the_next(name: str, wrapper: Wrapper, word: str) -> bool:
    """Whether an option has its value in the next word. Raises ValueError for one that refuses a program."""
    if word.startswith("--"):
        key, equals, _ = word[2:].partition("=")
        if key in wrapper.refused:
            raise ValueError(f"{name} {word} is before kubelet")
        return not equals and key in wrapper.long
    for at, letter in enumerate(word[1:], 1):
        if letter in wrapper.refused:
            raise ValueError(f"{name} {word} is before kubelet")
        if letter in wrapper.short:
            return at == len(word) - 1
    return False
