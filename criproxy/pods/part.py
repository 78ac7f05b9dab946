"""What a part of the daemon is: one feature, which takes a look again and again and does what follows from it.

A part is a module with a class, and a line in the register (`daemon.register`). From that the daemon builds it, the
round (`daemon.round`) has it look, and status, metrics and docs have what it shows.

    made        from what every part may have of the node (`Ports`)
    configure   what holds now (`NodeSettings`): at first, and whenever something else holds
    look        one look. It may wait for the kernel or the runtime, but does not sleep; what it raises is logged once
                by the round, is `failure` until a look succeeds, and a problem in the status until then
    cease       no look follows for now: of two criproxys, another one has the node
    close       the process ends
"""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Protocol, Self

from msgspec import Struct
from msgspec.structs import replace

from criproxy.cgroup.box import Box
from criproxy.cgroup.processes import ProcCgroupReader
from criproxy.concurrency.clock import Wake
from criproxy.concurrency.workers import Workers
from criproxy.config import Config
from criproxy.control.interference.service_checks import ServiceAnswer, ServiceCheck
from criproxy.control.policy import PolicySettings
from criproxy.model.modes import LimitsUse, Mode, Modes
from criproxy.model.shown import Shows
from criproxy.pods.cpu_assignments import CpusOfBox
from criproxy.pods.shared import PodsShared
from criproxy.pods.stopping import (
    ON_CLOSE,
    ON_DISABLE,
    ON_HARM,
    ON_OVER_LIMIT,
    ON_RUNTIME_OVERLOAD,
    ON_STARVED,
    ON_UNBOUNDED,
    StopRequests,
)


class Stage(Struct, frozen=True):
    """What the schedule says now. `words`: what holds and what comes next ("": there is no schedule).

    `off`: the box has its floor alone. `closed`: why no new offline pod is let in, "" when they are; none is
    within the grace period before it is off, either. `drain`: the pods that run must stop.
    """

    policy: PolicySettings
    words: str = ""
    off: bool = False
    closed: str = ""
    drain: bool = False


class NodeSettings(Struct, frozen=True):
    """What holds now, by config, schedule, operator and command line. `pass_through`: the config had errors at the
    start. `held_off`: who holds criproxy off the box and why, in words; "": nobody does. `front`: the one that
    runs, and `own_folders`: kubelet's and those of the sockets, also while a change of them waits for a restart.
    """

    config: Config
    stage: Stage
    pass_through: bool
    dry_run: bool
    held_off: str = ""
    front: str = "cri"
    own_folders: tuple[str, ...] = ()

    @property
    def modes(self) -> Modes:
        """Those that the config, the schedule and the command line bring about."""
        why = {
            Mode.DISABLED: not self.config.colocation.enabled and not self.pass_through,
            Mode.DRY_RUN: self.dry_run,
            Mode.PASS_THROUGH: self.pass_through,
            Mode.CLOSED: self.stage.closed,
            Mode.HELD_OFF: self.held_off,
        }
        return Modes({mode: reason if isinstance(reason, str) else "" for mode, reason in why.items() if reason})

    @property
    def writes(self) -> bool:
        """Whether the box's limits are criproxy's to set, up and down, and its pods criproxy's to stop."""
        return self.modes.writes

    @property
    def lifts(self) -> bool:
        """Colocation is off, and what runs stays. What must stop stays bounded until it has gone."""
        return self.modes.limits is LimitsUse.LIFTED and self.config.colocation.on_disable == "release"

    @property
    def adopts(self) -> bool:
        """Whether the box of pods that run is taken over, with its limits."""
        return Mode.DRY_RUN not in self.modes

    @property
    def relieves(self) -> bool:
        """Whether pods are stopped before kubelet evicts online ones: also while criproxy is held off the box."""
        return replace(self, held_off="").modes.writes

    @property
    def stops_by(self) -> frozenset[str]:
        """The settings by which pods are stopped; while the box is not ours, all are, or none."""
        colocation = self.config.colocation
        does: dict[str, str] = {
            ON_UNBOUNDED: colocation.on_unbounded,
            ON_RUNTIME_OVERLOAD: colocation.on_runtime_overload,
            ON_OVER_LIMIT: self.config.memory.on_over_limit,
            ON_HARM: self.config.interference.on_harm,
            ON_STARVED: self.config.kubernetes.on_starved,
        }
        if self.writes and self.stage.drain:
            does[ON_CLOSE] = "evict"
        if self.modes.limits is LimitsUse.LIFTED and colocation.on_disable == "evict":
            return frozenset([ON_DISABLE])
        asked = frozenset(setting for setting, what in does.items() if what == "evict")
        if self.writes:
            return asked
        return asked & {ON_OVER_LIMIT} if self.relieves else frozenset()


class AsksServices(Protocol):
    """Asks one service, and takes no longer than the check's time-out."""

    async def ask(self, check: ServiceCheck, sandbox_id: str, container_id: str) -> ServiceAnswer:
        """Raises OSError (a ConnectionError, a TimeoutError) when there is no answer, TooLargeError or ValueError, and
        NotAskedError (`pods.service_checks`).
        """

    async def hindrance(self, check: ServiceCheck, sandbox_id: str) -> str:
        """Why this machine does not let criproxy ask this one at all, with the remedy, or that the runtime does not
        answer, which runs a command; "": nothing hinders it, or who knows. Called once there was no answer. Raises
        OSError or ValueError.
        """


class Ports(Struct, frozen=True):
    """What every part may have of the node. `run_path`: criproxy's socket; what must survive a restart, but not a boot,
    lies beside it. `kubelet_path`: kubelet's --root-dir.
    """

    shared: PodsShared
    box: Box
    cpus: CpusOfBox
    stops: StopRequests
    services: AsksServices
    proc_cgroups: ProcCgroupReader
    workers: Workers
    run_path: Path
    kubelet_path: Path


class Part(Shows):
    """See the module."""

    NAME: ClassVar[str]
    """For people, in the middle of a sentence."""
    EVERY_S: ClassVar[float | None] = None
    """From one look to the next; None: there is none before `wake` asks for it."""
    SLACK_S: ClassVar[float] = 1.0
    """How much later a look may come, to share a wake-up with others."""
    FIRST_S: ClassVar[float] = 0.0
    """How long after the beginning the first look comes."""

    failure: str = ""
    """What the last look failed of; "": of nothing."""

    @classmethod
    def made(cls, ports: Ports) -> Self:
        """The part of a daemon."""
        raise NotImplementedError(cls)

    def configure(self, now: NodeSettings) -> None:
        """From now on this holds."""

    @property
    def wake(self) -> Wake | None:
        """What asks for a look before its time; None: nothing does."""
        return None

    @property
    def pause_s(self) -> float | None:
        """How long after a look the next one is due; None: not before `wake` asks for it."""
        return self.EVERY_S

    async def look(self) -> None:
        """See the module."""
        raise NotImplementedError(type(self))

    def cease(self) -> None:
        """See the module."""

    def close(self) -> None:
        """See the module."""

    def problems(self) -> Iterator[str]:
        if self.failure:
            yield f"{self.NAME} failed, and is tried again: {self.failure}"
