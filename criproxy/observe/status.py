"""What `criproxy status` shows: the data of /status, and its picture as text."""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from criproxy.control.guardlaw import GUARD_OFF, GuardStatus
from criproxy.model import UNLIMITED, Decision, Sandbox, Snapshot

_SHOWN_PODS: Final = 50


@dataclass(frozen=True, slots=True)
class CpuStatus:
    """CPU at the last tick. `prediction_cores`, and `hour_cores` for an hour ahead, None: not known."""

    capacity_cores: float
    node_cores: float
    online_cores: float
    box_cores: float
    prediction_cores: float | None
    hour_cores: float | None
    limit_cores: float | Literal["unlimited"]
    throttled_ratio: float
    reason: str


@dataclass(frozen=True, slots=True)
class MemoryStatus:
    """Memory at the last tick. `prediction_bytes`, and `hour_bytes` for an hour ahead, None: not known."""

    capacity_bytes: int
    node_bytes: int
    online_bytes: int
    box_bytes: int
    prediction_bytes: float | None
    hour_bytes: float | None
    limit_bytes: int | Literal["unlimited"]
    reason: str


@dataclass(frozen=True, slots=True)
class BoxStatus:
    """The box. `path` is below the cgroup root, None before the first offline pod.

    `drift` counts files that somebody else had changed.
    """

    path: str | None
    drift: int
    swept: int
    tick_failures: int
    cpu: CpuStatus | None
    memory: MemoryStatus | None


@dataclass(frozen=True, slots=True)
class RuntimeStatus:
    """The runtime; `version` as it names itself, `problem` why it is not ready ("" when it is)."""

    socket: str
    ready: bool
    version: str
    problem: str


@dataclass(frozen=True, slots=True)
class ConfigStatus:
    """The config file, with its errors, and the changed keys that wait for a restart."""

    file: str
    errors: tuple[str, ...]
    needs_restart: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ScheduleStatus:
    """Which window holds and what comes next; "": there is no schedule.

    `closed`: why no new offline pod is let in; "": it is.
    """

    holds: str
    closed: str


@dataclass(frozen=True, slots=True)
class OfflinePod:
    """A pod in the box."""

    namespace: str
    name: str
    uid: str
    placement: str


@dataclass(frozen=True, slots=True)
class Status:
    """The state of the daemon. `colocation`: on, off, or pass-through (a bad config at the start)."""

    version: str
    pid: int
    uptime_s: float
    dry_run: bool
    colocation: Literal["on", "off", "pass-through"]
    runtime: RuntimeStatus
    config: ConfigStatus
    box: BoxStatus
    pods: tuple[OfflinePod, ...]
    schedule: ScheduleStatus = ScheduleStatus("", "")
    guard: GuardStatus = GUARD_OFF


def cpu_status(snapshot: Snapshot, decision: Decision) -> CpuStatus:
    return CpuStatus(
        capacity_cores=snapshot.capacity_cores,
        node_cores=snapshot.node_cores,
        online_cores=snapshot.online_cores,
        box_cores=snapshot.box_cores,
        prediction_cores=decision.prediction.cpu_cores,
        hour_cores=decision.prediction.hour_cores,
        limit_cores="unlimited" if decision.limits.cpu_cores is UNLIMITED else decision.limits.cpu_cores,
        throttled_ratio=snapshot.throttled_ratio,
        reason=decision.cpu_reason,
    )


def memory_status(snapshot: Snapshot, decision: Decision) -> MemoryStatus:
    return MemoryStatus(
        capacity_bytes=snapshot.capacity_bytes,
        node_bytes=snapshot.node_bytes,
        online_bytes=snapshot.online_bytes,
        box_bytes=snapshot.box_bytes,
        prediction_bytes=decision.prediction.memory_bytes,
        hour_bytes=decision.prediction.hour_bytes,
        limit_bytes="unlimited" if decision.limits.memory_bytes is UNLIMITED else decision.limits.memory_bytes,
        reason=decision.memory_reason,
    )


def offline_pod(sandbox: Sandbox) -> OfflinePod:
    """A placed sandbox, for the list."""
    return OfflinePod(sandbox.pod.namespace, sandbox.pod.name, sandbox.pod.uid, sandbox.placement or "")


def to_json(status: Status) -> str:
    """ASCII only: names come from requests and may hold anything."""
    return json.dumps(dataclasses.asdict(status))


def from_json(text: str) -> Status:
    """Raises ValueError when `text` is no status."""
    return msgspec.convert(json.loads(text), Status)


def render(status: Status) -> str:
    """The status as text for a terminal, newline at the end."""
    return "".join(f"{printable(line)}\n" for line in _lines(status))


def printable(text: str) -> str:
    """`text` without what a terminal would obey: names come from requests and may hold anything."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _lines(status: Status) -> Iterator[str]:
    dry = ", dry run: nothing is written" if status.dry_run else ""
    yield f"criproxy {status.version}, pid {status.pid}, up {_duration(status.uptime_s)}{dry}"
    yield _row("colocation", status.colocation)
    if status.schedule.holds:
        yield _row("schedule", status.schedule.holds)
    if status.schedule.closed:
        yield f"  no new offline pods: {status.schedule.closed}"
    runtime = status.runtime
    state = f"ready, {runtime.version}" if runtime.ready else f"not ready: {runtime.problem}"
    yield _row("runtime", f"{runtime.socket} ({state})")
    yield from _config_lines(status.config)
    yield from _box_lines(status.box)
    yield from _guard_lines(status.guard)
    yield _row("offline pods", str(len(status.pods)))
    for pod in status.pods[:_SHOWN_PODS]:
        yield f"  {pod.namespace}/{pod.name}  {pod.uid}  {pod.placement}"
    if len(status.pods) > _SHOWN_PODS:
        yield f"  and {len(status.pods) - _SHOWN_PODS} more (--json lists them all)"


def _config_lines(config: ConfigStatus) -> Iterator[str]:
    yield _row("config", f"{config.file} ({f'{len(config.errors)} errors' if config.errors else 'ok'})")
    for error in config.errors:
        yield f"  {error}"
    if config.needs_restart:
        yield f"  changed, but in force only after a restart: {', '.join(config.needs_restart)}"


def _box_lines(box: BoxStatus) -> Iterator[str]:
    path = "none yet" if box.path is None else box.path
    yield _row("box", f"{path} (drift {box.drift}, pod cgroups swept {box.swept}, ticks failed {box.tick_failures})")
    if box.cpu is None or box.memory is None:
        yield "  no sample yet"
        return
    cpu, memory = box.cpu, box.memory
    yield f"  {'':8}{'capacity':>12}{'node':>12}{'online':>12}{'predicted':>12}{'box':>12}{'limit':>12}"
    cores = (cpu.capacity_cores, cpu.node_cores, cpu.online_cores, cpu.prediction_cores, cpu.box_cores, cpu.limit_cores)
    yield f"  {'cores':8}" + "".join(f"{_cores(value):>12}" for value in cores)
    sizes = (
        memory.capacity_bytes,
        memory.node_bytes,
        memory.online_bytes,
        memory.prediction_bytes,
        memory.box_bytes,
        memory.limit_bytes,
    )
    yield f"  {'memory':8}" + "".join(f"{_size(value):>12}" for value in sizes)
    yield f"  in the next hour, online should stay below {_cores(cpu.hour_cores)} cores and {_size(memory.hour_bytes)}"
    yield f"  throttled {cpu.throttled_ratio:.1%} of the time"
    yield f"  CPU: {cpu.reason}"
    yield f"  memory: {memory.reason}"


def _guard_lines(guard: GuardStatus) -> Iterator[str]:
    if not guard.enabled:
        yield _row("guard", "off")
        return
    state = "at rest" if guard.ceiling_cores is None else f"{guard.ceiling_cores:.2f} cores at most ({guard.reason})"
    counts = f"squeezes {guard.squeezes}, needless {guard.false_alarms}, failures {guard.failures}"
    yield _row("guard", f"{state} ({counts})")
    yield f"  pressure: {guard.pressure}"


def _row(name: str, text: str) -> str:
    return f"{name:<14}{text}"


def _cores(value: float | str | None) -> str:
    return _word(value) if value is None or isinstance(value, str) else f"{value:.2f}"


def _size(value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return _word(value)
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"


def _word(value: str | None) -> str:
    return "not known" if value is None else value


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = ((days, "d"), (hours, "h"), (minutes, "min"), (rest, "s"))
    return " ".join([f"{count} {unit}" for count, unit in parts if count][:2]) or "0 s"
