"""Asks online services how they fare, as their pods' annotations say (see `control.interference.service_checks`).

It is bounded: at most `MOST` services of a node have a check, `MOST_COMMANDS` of them a command, one at a time each,
for as long as its check says, and an answer of more than `MOST_BYTES` puts its check off for `PUT_OFF_S`. Nobody
waits for an answer, and there are no checks while no offline pod runs: there is no harm to be seen then.

The pace is one always, with a random pause of up to `PAUSE_S` before each request: whether an experiment waits for a
service's word, and when others are asked, is nothing that the service could tell by its requests.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import asdict

from criproxy.config.ladder import ladder_settings
from criproxy.control.interference.detectors import DETECTORS, by_name
from criproxy.control.interference.ladder import phases
from criproxy.control.interference.service_checks import (
    SERVICE_CHECK,
    ServiceAnswer,
    ServiceCheck,
    ServiceSignal,
    check_of,
    fair_places,
    percent_of,
    problem_of,
    unprovable,
)
from criproxy.control.interference.victim import owner_of
from criproxy.hooks.offline import OfflineRules
from criproxy.model import Pod, PodRef
from criproxy.model.shown import Gauge, listed
from criproxy.pods.inventory import PodObserver
from criproxy.pods.part import AsksServices, NodeSettings, Part, Ports
from criproxy.pods.shared import PodsShared

MOST: Final = 20
MOST_COMMANDS: Final = 8
"""A command costs the runtime some 50 ms of a processor each time."""

COMMAND_S: Final = 2.0
MOST_BYTES: Final = 16 * 1024
PUT_OFF_S: Final = 300.0
EVERY_S: Final = 1.0
PAUSE_S: Final = EVERY_S / 2
_NEVER_WELL: Final = "it has not been well since it was first asked"


def random_pause_s() -> float:
    """How long a request waits before it is made; nobody can foresee it."""
    return random.SystemRandom().uniform(0.0, PAUSE_S)


class TooLargeError(Exception):
    """An answer that is too much to read: what of it, as `has more than 16384 bytes`."""


class NotAskedError(Exception):
    """The service was not reached, for a reason that is not its own: the runtime does not answer."""


class AskedService(Struct):
    """One check at work. `problem`: why its signal is not known, or what failed of the last answer; "": nothing.

    `owner`: what owns the pod, as far as is known, or itself. `percent` is what the last answer says, which came at
    `read_s` and was requested at `asked_s`.
    """

    pod: PodRef
    check: ServiceCheck | None
    problem: str = ""
    owner: str = ""
    percent: float | None = None
    asked_s: float = 0.0
    read_s: float = 0.0
    due_s: float = 0.0
    was_well: bool = False


class ServiceStatus(PodRef, frozen=True):
    """An online pod that says how it fares: `percent` of its threshold (from 100 on it is harm); None: `problem`."""

    asked: str
    percent: float | None
    problem: str


class ServiceChecksSettings(Struct, frozen=True):
    """`active`: offline pods are ours to act on; else there are no checks. `rules` tell which pods are offline.

    `measured_s`: for how long the shortest experiment measures; a check that lags behind for as long proves nothing,
    and is not asked, and none but commands is asked more rarely.
    `queries`: PromQL by the names that checks may use.
    """

    active: bool
    rules: OfflineRules
    measured_s: float
    queries: Mapping[str, str] = {}

    @classmethod
    def of(cls, now: NodeSettings) -> "ServiceChecksSettings":
        ladder, detector = ladder_settings(now.config.interference), by_name(DETECTORS)[SERVICE_CHECK]
        tried = (phases(one, detector, ladder) for one in ladder.resources if one.phase_s is not None)
        measured_s = min(one.shortest_s - one.settle_s for one in tried)
        queries = {one.name: one.promql for one in now.config.interference.queries}
        return cls(now.writes, now.config.colocation.offline_rules(), measured_s, queries)


class ServiceChecks(PodObserver, Part, Struct, eq=False):
    """See the module."""

    NAME = "asking online services how they fare"
    EVERY_S = EVERY_S
    SLACK_S = EVERY_S / 2
    GAUGES = (
        Gauge(
            "service_worst_percent",
            "What the online service that fares worst says, in percent of its threshold",
            lambda part: max((one.percent for one in part.signals()), default=None),
        ),
    )

    shared: PodsShared
    asks: AsksServices
    settings: ServiceChecksSettings | None = None
    pause_before_s: Callable[[], float] = random_pause_s
    _services: Mapping[str, AskedService] = {}
    """By sandbox. Replaced as a whole: the status reads it from its thread."""
    _asking: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _anew: bool = True
    """Whether there may be pods with a check that are not among `_services`."""
    _known_well: frozenset[str] = frozenset()
    """Sandboxes whose service was well before its first check, or its next: by a process before this
    one, or before a while without checks.
    """

    def __post_init__(self) -> None:
        self.shared.inventory.watch(self)

    @classmethod
    def made(cls, ports: Ports) -> "ServiceChecks":
        return cls(ports.shared, ports.services)

    def configure(self, now: NodeSettings) -> None:
        settings = ServiceChecksSettings.of(now)
        if self.settings is not None and settings.queries != self.settings.queries:
            self._known_well, self._services = self.well, {}
        self.settings, self._anew = settings, True

    def pods_listed(self) -> None:
        self._anew = True

    # --- what others ask of it --------------------------------------------------------------------------------------

    def signals(self) -> tuple[ServiceSignal, ...]:
        """Those that are known now: an answer counts until two more should have come."""
        now_s = self.shared.clock.boottime_s()
        return tuple(
            ServiceSignal(one.pod, one.percent, one.check.threshold, one.check.hold_s, one.asked_s - one.check.lag_s)
            for one in self._services.values()
            if one.check is not None
            and one.percent is not None
            and now_s - one.read_s <= 2.0 * self._pace_s(one.check) + one.check.timeout_s + EVERY_S
        )

    @property
    def well(self) -> frozenset[str]:
        """The sandboxes whose service has been well at least once."""
        return self._known_well | {id for id, one in self._services.items() if one.was_well}

    def recall(self, well: Collection[str]) -> None:
        """These were well before a restart, so that what they say counts at once."""
        self._known_well = frozenset(well)

    def services(self) -> tuple[AskedService, ...]:
        """All that have a check. Any thread may call it."""
        return tuple(self._services.values())

    # --- at work ----------------------------------------------------------------------------------------------------

    def cease(self) -> None:
        for task in self._asking.values():
            task.cancel()

    async def look(self) -> None:
        """Begin with those that are due."""
        settings, inventory = self.settings, self.shared.inventory
        if settings is None or not settings.active or not inventory.running_pods:
            self._known_well, self._services, self._anew = self.well, {}, True
            return
        if self._anew:
            self._anew = False
            online = {id: pod for id, pod in inventory.outside.items() if settings.rules.why(pod) is None}
            known = {id: self._services.get(id) or self._new(id, pod, settings.queries) for id, pod in online.items()}
            self._services = {id: one for id, one in known.items() if one is not None}
        else:
            self._services = {id: one for id, one in self._services.items() if inventory.runs(id)}
        self._known_well = frozenset()
        now_s = self.shared.clock.boottime_s()
        wanted = {id: one for id, one in self._services.items() if one.check is not None}
        owners = {id: (one.pod.namespace, one.owner) for id, one in wanted.items()}
        commands = {id for id, one in wanted.items() if one.check is not None and one.check.exec is not None}
        by_command = fair_places({id: owners[id] for id in owners if id in commands}, MOST_COMMANDS)
        asked = fair_places({id: owner for id, owner in owners.items() if id in by_command or id not in commands}, MOST)
        for id in wanted:
            if id not in asked:
                full = f"{MOST} services" if id in by_command or id not in commands else f"{MOST_COMMANDS} commands"
                self._services[id].problem = f"{full} of this node are asked already"
                self._services[id].percent = None
        for id, service in self._services.items():
            if id not in asked:
                continue
            if service.check is not None and (why := unprovable(service.check, settings.measured_s)):
                service.problem, service.percent = why, None
                continue
            if service.check is not None and now_s >= service.due_s and id not in self._asking:
                service.due_s = now_s + self._pace_s(service.check) - EVERY_S / 2.0  # the look that is nearest to it
                self._asking[id] = task = asyncio.create_task(self._ask(id, service, service.check))
                task.add_done_callback(lambda _, id=id: self._asking.pop(id, None))  # type: ignore[misc]

    def _pace_s(self, check: ServiceCheck) -> float:
        """How often it is asked: as it says, and about once in what an experiment measures."""
        least_s = EVERY_S if check.exec is None else COMMAND_S
        most_s = check.every_s if self.settings is None else self.settings.measured_s
        return max(least_s, min(check.every_s, most_s))

    def _new(self, id: str, pod: Pod, queries: Mapping[str, str]) -> AskedService | None:
        try:
            check = check_of(pod.annotations, pod.ref, queries)
        except ValueError as error:
            self.shared.log.warning("service_check_ignored", pod=str(pod.ref), pod_uid=pod.ref.uid, error=str(error))
            return AskedService(pod.ref, None, str(error), owner_of(pod))
        if check is None:
            return None
        was_well = id in self._known_well
        return AskedService(
            pod.ref, check, "it has not been asked yet", owner_of(pod) or pod.ref.name, was_well=was_well
        )

    async def _ask(self, id: str, service: AskedService, check: ServiceCheck) -> None:
        await self.shared.clock.sleep(self.pause_before_s())
        asked_s = self.shared.clock.boottime_s()
        try:
            async with asyncio.timeout(check.timeout_s):
                outcome = await self.asks.ask(check, id, self._container(id, check))
        except TooLargeError as error:
            service.due_s = self.shared.clock.boottime_s() + PUT_OFF_S
            service.percent = None
            service.problem = f"its answer {error}: it is asked again in {PUT_OFF_S:.0f} s"
            return
        except NotAskedError as error:
            service.problem = f"it could not be asked: {error}"
            return
        except TimeoutError:
            outcome = ServiceAnswer(False, f"no answer within {check.timeout_s:g} s")
            barred = await self._hindrance(id, check)
        except (OSError, ValueError) as error:
            outcome = ServiceAnswer(False, str(error) or type(error).__name__)
            barred = await self._hindrance(id, check)
        else:
            barred = ""
        if barred:  # it says nothing of the service
            service.percent, service.problem = None, barred
            return
        percent = percent_of(outcome, check)
        service.was_well = service.was_well or percent < 100.0
        service.percent = percent if service.was_well else None
        problem = problem_of(outcome, check)
        service.problem = problem if service.was_well else f"{_NEVER_WELL}: {problem or f'{percent:.0f} %'}"
        service.asked_s, service.read_s = asked_s, self.shared.clock.boottime_s()

    async def _hindrance(self, id: str, check: ServiceCheck) -> str:
        with contextlib.suppress(OSError, ValueError, NotAskedError):
            async with asyncio.timeout(check.timeout_s):
                return await self.asks.hindrance(check, id)
        return ""

    def _container(self, sandbox_id: str, check: ServiceCheck) -> str:
        """The id of the one that a command is to run in; "": it is no command. Raises ValueError.

        Of one that was started again, the last: until the next listing, the one before counts as running, too.
        """
        if check.exec is None:
            return ""
        running = self.shared.inventory.containers_of(sandbox_id)
        wanted = check.exec.container
        found = {one.name: one.id for one in running if not wanted or one.name == wanted}
        if len(found) != 1:
            names = ", ".join(sorted({one.name for one in running}))
            raise ValueError(f"there is not exactly one container {wanted} that runs, of {names or 'none'}")
        return next(iter(found.values()))

    def status(self) -> tuple[ServiceStatus, ...]:
        return tuple(
            ServiceStatus(
                **asdict(one.pod),
                asked=str(one.check.asked) if one.check else "",
                percent=one.percent,
                problem=one.problem,
            )
            for one in self.services()
        )

    def section(self) -> Mapping[str, Any]:
        return {"services": self.status()}

    def rows(self) -> Iterator[tuple[str, ...]]:
        if services := [f"{one}: {_in_words(one)}" for one in self.status()]:
            yield "services", "what online pods say of themselves (100 % is their threshold)", *listed(services)


def _in_words(service: ServiceStatus) -> str:
    value = "not known" if service.percent is None else f"{service.percent:.0f} %"
    return f"{value}{f' ({service.asked})' if service.asked else ''}{f': {service.problem}' if service.problem else ''}"
