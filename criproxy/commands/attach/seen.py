"""Whether this node's kubelet uses criproxy, as far as its process tells: for `criproxy status`.

Only files are read, and of processes only kubelet's own: whoever asks for the status each second costs next to nothing,
and the daemon needs no YAML parser for it.
"""

import posixpath
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from criproxy.commands.attach import byhand, dropin
from criproxy.commands.attach.record import STATE, Record, from_json, sha256
from criproxy.kubelet.flags import ENDPOINT_FLAG, Argument, flag, socket_path
from criproxy.kubelet.walk import walk
from criproxy.observe.status import AttachStatus

_HIERARCHIES: Final = ("", "systemd/", "unified/")
"""Where systemd keeps its units below /sys/fs/cgroup: v2, v1, v1 with v2 beside it."""

_SLICES: Final = ("system.slice/", "", "*.slice/", "*.slice/*.slice/")
"""Where a unit is: systemd's default, or what its Slice= says (EKS: runtime.slice), the likeliest first.

A pod may have a kubelet.service too, but below a scope or a path that is no slice.
"""

_ENDPOINT_KEY: Final = "containerRuntimeEndpoint"
_DRIVER_KEY: Final = "cgroupDriver"
_KUBEADMS: Final = "/var/lib/kubelet/config.yaml"
"""Where kubeadm has kubelet's configuration."""


def attachment(listen: str, root: Path = Path("/")) -> AttachStatus:
    """Whether kubelet uses the socket `listen`, and by what. Never raises."""
    try:
        words = _kubelet(root)
        if not words:
            return AttachStatus("unknown", f"no {byhand.UNIT} runs")
        given = flag(words, ENDPOINT_FLAG)
        endpoint, origin = (given.text, "a flag") if given else _by_configuration(words, root, _ENDPOINT_KEY)
        if socket_path(endpoint) != listen:
            used = f"kubelet uses {endpoint or 'its default'}"
            return AttachStatus("no", f"{used}; see `criproxy attach`", _lost(root, listen, used))
        return AttachStatus("yes", _where(root) if given else f"by {origin}")
    except (OSError, ValueError) as error:
        return AttachStatus("unknown", str(error))


def cgroup_driver(root: Path = Path("/")) -> tuple[str, str]:
    """The driver that kubelet was told to use, and by what; ("", "") when it was told none. Never raises.

    Source: kubelet, --cgroup-driver, which goes before cgroupDriver of its configuration.
    """
    try:
        words = _kubelet(root) or [Argument(f"--config={_KUBEADMS}", "")]
        given = flag(words, "--cgroup-driver")
        return (given.text, "a flag of kubelet's") if given else _by_configuration(words, root, _DRIVER_KEY)
    except (OSError, ValueError):
        return "", ""


def _lost(root: Path, listen: str, used: str) -> str:
    """What is wrong with it that kubelet does not use `listen`; "": nothing, as nobody has attached it."""
    try:
        record = from_json(_read(root, STATE))
    except ValueError:  # there is none, or none that can be read: nothing is known for sure
        return ""
    if record.phase != "attached":
        return ""
    if record.listen != listen:
        return f"kubelet is attached to {record.listen}, not to {listen}: `criproxy detach`, then `criproxy attach`"
    return (
        f"{used}, though it was attached, so new offline pods are not bounded: `criproxy attach` again, or "
        "`criproxy detach` to forget the attachment"
    )


def _read(root: Path, path: str) -> bytes:
    """The content; empty when there is no such file."""
    try:
        return (root / path.lstrip("/")).read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _kubelet(root: Path) -> list[Argument]:
    """The command line of the unit's kubelet, which may have helpers; empty when there is none."""
    for path in _process_lists(root):
        for pid in _read(root, path).split():
            if _read(root, f"/proc/{int(pid)}/comm").startswith(b"kubelet"):
                words = _read(root, f"/proc/{int(pid)}/cmdline").decode(errors="surrogateescape").split("\0")
                return [Argument(word, "") for word in words]
    return []


def _process_lists(root: Path) -> Iterator[str]:
    """The files with the processes of the unit."""
    for slices in _SLICES:
        for hierarchy in _HIERARCHIES:
            for path in (root / "sys/fs/cgroup").glob(f"{hierarchy}{slices}{byhand.UNIT}/cgroup.procs"):
                yield f"/{path.relative_to(root)}"


def _by_configuration(words: Sequence[Argument], root: Path, key: str) -> tuple[str, str]:
    """The value that the configuration of this command line has for a key, and where; ("", "") when it has none."""
    found = "", ""
    wanted = re.compile(rf"""^[^#\n]*\b{key}["']?\s*:\s*["']?([^\s"',}}]+)""", re.MULTILINE)
    for path in _configuration(words, root):
        if values := wanted.findall(_read(root, path).decode(errors="replace")):
            found = values[-1], f"{key} in {path}"
    return found


def _configuration(words: Sequence[Argument], root: Path) -> Iterator[str]:
    """Its files, the later over the earlier."""
    config, directory = flag(words, "--config"), flag(words, "--config-dir")
    if config:
        yield config.text
    if directory and directory.text:
        yield from (path for path in walk(root, posixpath.join("/", directory.text)) if path.endswith(".conf"))


def _where(root: Path) -> str:
    path = dropin.path(byhand.UNIT)
    if not _read(root, path):
        return "by a flag"
    content = _read(root, STATE)
    return f"by {path}{_outdated(root, from_json(content)) if content else ''}"


def _outdated(root: Path, record: Record) -> str:
    """The command that we copied may have been changed since by a package, or by somebody."""
    if not record.copied_file or sha256(_read(root, record.copied_file)) == record.copied_sha256:
        return ""
    return f"; {record.copied_file} has changed since: `criproxy attach` again takes that up"
