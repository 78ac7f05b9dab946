"""The runtime as a port: what it knows of pods, and how one is stopped. A front implements it."""

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from criproxy.model import PodRef, Sandbox


class UnknownError(ConnectionError):
    """The runtime answered that it does not know that pod or container."""


class ListedSandbox(Struct, frozen=True):
    """A listed sandbox. `placement` is the value of its placement annotation, or "". `created_s`: UTC; 0: not known."""

    id: str
    pod: PodRef
    placement: str
    running: bool
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    created_s: float = 0.0


class ListedContainer(Struct, frozen=True):
    """A container of a list."""

    id: str
    sandbox_id: str
    name: str
    running: bool


class Running(Struct, frozen=True):
    """A sandbox in the box that runs, or a container of one: its `id` and the container's name ("" for the sandbox)."""

    sandbox: Sandbox
    id: str
    container: str


class Process(Struct, frozen=True):
    """`pid`: None when the runtime does not say (CRI-O, of a sandbox that needs no process), 0 when nothing runs.

    `runtime_type` (`io.containerd.runc.v2`) is what containerd alone says, and `handler` (of the RuntimeClass) what
    CRI-O alone says, of sandboxes. `log` is the file with a container's output. Each is "" when it is not known.
    """

    pid: int | None
    runtime_type: str = ""
    handler: str = ""
    log: str = ""


class Runtime(Protocol):
    """Each call raises ConnectionError when the runtime gives no answer, and ValueError when that makes no sense."""

    @property
    def ready(self) -> bool:
        """Whether its lists can be relied upon now."""

    @property
    def pid(self) -> int:
        """Its process; 0 when that is not known."""

    async def sandboxes(self, sandbox_id: str = "") -> list[ListedSandbox]:
        """All of them, or those whose id begins like this."""

    async def containers(self, container_id: str = "") -> list[ListedContainer]:
        """All of them, or those whose id begins like this."""

    async def process_of(self, running: Running) -> Process:
        """The first process of a sandbox or container. Raises UnknownError when it is not there any more."""

    async def stop(self, sandbox_id: str) -> None:
        """Stop a sandbox and its containers at once (SIGKILL); one that is not there is stopped."""

    async def give_notice(self, container_id: str, notice_s: int) -> None:
        """Send a container its stop signal (SIGTERM, if its image names no other); return once it has ended.

        Raises CallError when it has not within `notice_s`. The runtime does not kill it by then; CRI-O does some time
        later, also if this was cancelled.
        """
