"""What containerd 1.6 answers about a pod when a call about it was cut, or itself was killed in the middle of one."""

import re
from collections.abc import Collection, Mapping, Sequence

from integration.lab.churn import Failure

_REMOVING = re.compile(
    r'failed to set removing state for container ".*": container is already in removing state'
    r'|get container info: container ".*" in namespace ".*": not found'
)

RECOVERING = "server is not initialized yet"
"""To all calls between opening its socket and knowing its pods again."""

ECHOES: Mapping[str, re.Pattern[str]] = {
    "RunPodSandbox": re.compile(r'^failed to reserve sandbox name ".*": name ".*" is reserved for '),
    "CreateContainer": re.compile(r'^failed to reserve container name ".*": name ".*" is reserved for '),
    "StartContainer": re.compile(
        r'failed to set removing state for container ".*": container is (in starting state|still running)'
    ),
    "RemoveContainer": _REMOVING,
    "RemovePodSandbox": _REMOVING,
}
"""To the next call about a pod while it still works on one that was cut, by that one's method."""

LEFTOVERS = (
    re.compile(r"^failed to create containerd container: .*rename .*/snapshots/\d+: file exists$"),
    re.compile(r"^failed to delete containerd container .*: cannot delete running task .*: failed precondition$"),
)
"""When its files and what it had begun are at odds: of a snapshot that it was making the directory is left, and not the
number; a container that it was starting runs, and it takes it for created.
"""


def is_echo(failure: Failure, cut: Collection[str]) -> bool:
    """Whether it is an answer to a client of whom calls of these methods were cut before."""
    return failure.code in ("UNKNOWN", "FAILED_PRECONDITION", "NOT_FOUND") and any(
        ECHOES[method].search(failure.details) for method in ECHOES.keys() & cut
    )


def is_leftover(failure: Failure) -> bool:
    """Whether it is an answer of a containerd that was killed before."""
    return failure.code in ("UNKNOWN", "FAILED_PRECONDITION") and any(
        text.search(failure.details) for text in LEFTOVERS
    )


def strange(failures: Sequence[Failure]) -> list[Failure]:
    """The failures that are neither UNAVAILABLE nor an echo of a call of the same client that was."""
    cut: dict[str, set[str]] = {}
    found = []
    for failure in failures:
        if failure.code == "UNAVAILABLE":
            cut.setdefault(failure.thread, set()).add(failure.method)
        elif not is_echo(failure, cut.get(failure.thread, ())):
            found.append(failure)
    return found
