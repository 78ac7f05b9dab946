"""A node that has lived for a day, as the page shows it."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from criproxy.control.day import Day, Kind
from criproxy.control.interference.responder import InterferenceStatus, RungStatus
from criproxy.control.policy import PolicyState, StaticSettings, decide
from criproxy.model import Bounds, GuardCeiling
from criproxy.observe.status import OfflinePod, Status, resource_status
from criproxy.observe.why import Why
from criproxy.pods.pod_use import SizeFinding
from tests.answering import Answers, answering
from tests.observe.status_samples import STATUS
from tests.rows import laws, predictions, snapshot

GIB = 1 << 30
CORES = 32.0
WALL_S = 1_700_000_000.0
DAY_S = 86_400
STEP_S = 10

POD = OfflinePod("u0", "batch", "job", "/offline/podu0")
PODS = tuple(
    replace(
        POD,
        uid=f"u{number}",
        name=f"train-{number:02}",
        cpu_cores=7.25 / (number + 1),
        cpu_asked_cores=2.0 if number % 3 else None,
        cpu_waiting_ratio=0.03 * number if number % 2 else None,
        memory_bytes=(number + 1) * 300 << 20,
        memory_asked_bytes=4 * GIB,
        age_s=1800.0 * 7**number,
        cpus="0-3" if number == 1 else "",
        tier="mid" if number % 2 else "low",
        notice_s=30 if number == 2 else 0,
    )
    for number in range(6)
)
HOSTILE = replace(POD, uid="evil", name="</script><script>alert(1)</script>", namespace="<img src=x onerror=alert(1)>")


def day() -> Day:
    """Online's use goes up and down twice; a squeeze, a rung, a closing and an eviction in the last hour."""
    past = Day()
    for t_s in range(0, DAY_S, STEP_S):
        wave = math.sin(4 * math.pi * t_s / DAY_S)
        online, box = 12.0 + 8.0 * wave + 1.5 * math.sin(t_s / 97), 8.0 - 5.0 * wave + math.sin(t_s / 53)
        memory = (64.0 * GIB, (30 + box) * GIB, box * GIB, (30 + 6 * wave) * GIB)
        one = snapshot(float(t_s), (CORES, online + box, box, online), memory)
        decision, _ = decide(
            one,
            predictions(online * 1.15, memory[3] * 1.05),
            PolicyState(),
            laws(cpu=StaticSettings(max(1.0, CORES - 1.2 * online)), memory=StaticSettings(24 * GIB)),
        )
        kept = replace(decision.resources["memory"].bounds, kept=2.0 * GIB)
        decision = replace(
            decision,
            resources={**decision.resources, "memory": replace(decision.resources["memory"], bounds=kept)},
            guard=GuardCeiling(1.5, "online waited for 12 % of the time")
            if DAY_S - 1500 < t_s < DAY_S - 1300
            else None,
        )
        past.sampled(one, decision, "online pods were harmed" if DAY_S - 900 < t_s < DAY_S - 600 else "")
    for before_s, kind, of, state in (
        (1400, Kind.RUNG, "cpu", "tried"),
        (1380, Kind.RUNG, "cpu", "squeezed"),
        (900, Kind.RUNG, "memory", "closed"),
        (700, Kind.LEAVING, "batch/train-07", "evicted"),
        (600, Kind.RUNG, "memory", "squeezed"),
    ):
        past.mark(float(DAY_S - before_s), kind, f"online waited, {before_s} s ago", of, state)
    return past


def status() -> Status:
    one = snapshot(float(DAY_S), (CORES, 20.5, 7.25, 13.25), (64.0 * GIB, 44 * GIB, 8 * GIB, 36 * GIB), 0.125)
    laws_ = laws(cpu=StaticSettings(14.5), memory=StaticSettings(24 * GIB))
    decision, _ = decide(one, predictions(15.0, 38.0 * GIB), PolicyState(), laws_)
    bounds = Bounds(floor=0.1, ceiling=None, reserve=0.5, watermark_ratio=0.9)
    cpu = replace(decision.resources["cpu"], bounds=bounds, reason="raised to 14.50 cores: as online leaves so much")
    decision = replace(decision, resources={**decision.resources, "cpu": cpu})
    rungs = (
        RungStatus("cpu", "squeezed", WALL_S - 1380, "online waited", 0.5),
        RungStatus("memory", "squeezed", WALL_S - 600, "online waited", 0.8),
        RungStatus("io", "open", None, "", None),
    )
    lie = SizeFinding("u0", "batch", "train-00", "cpu", "it uses more than 3 x what it asked for", 7.2, 2.0)
    held = {"cpu": 14.5, "memory": 24.0 * GIB}
    box = replace(STATUS.box, resources=resource_status(one, decision, held, {"memory": 9.0 * GIB}))
    return replace(
        STATUS,
        config=replace(STATUS.config, errors=()),
        box=box,
        pods=(*PODS, HOSTILE),
        decisions=(),
        sections={"interference": InterferenceStatus("", (), rungs, "", 1, 6), "missized": (lie,)},
    )


@contextmanager
def node(folder: Path, shown: Callable[[], Status] = status) -> Iterator[Path]:
    """The config file of a node that answers so."""
    config, past = folder / "config.toml", day()
    config.write_text(f'[proxy]\nlisten = "{folder}/c.sock"\n')
    answers = Answers(
        page=lambda: "",
        metrics=lambda: b"",
        unhealthy=lambda: None,
        unready=lambda: None,
        status=shown,
        why=lambda asked_s: Why(asked_s, None, None, published="CPU 12.50 cores: what is free now; memory 20.00 GiB"),
        past=lambda since_s: past.to_json(float(DAY_S), WALL_S, since_s),
    )
    with answering(folder / "c-status.sock", answers):
        yield config
