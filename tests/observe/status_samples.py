"""Values that the tests of this folder show."""

from msgspec.structs import asdict

from criproxy.control.history import DecisionRecord
from criproxy.model import UNLIMITED, Bounds, Decision, PodRef, ResourceDecision, ResourcePrediction, Sandbox
from criproxy.observe.status import (
    BoxStatus,
    CgroupStatus,
    ConfigStatus,
    OfflinePod,
    RuntimeStatus,
    Status,
    latest_decisions,
    resource_status,
)
from tests.rows import snapshot

GIB = 1 << 30
SNAPSHOT = snapshot(1.0, (4.0, 3.0, 1.25, 1.75), (8 * GIB, 4 * GIB, GIB, 3 * GIB), throttled_ratio=0.125)
DECISION = Decision(
    t_s=1.0,
    resources={
        "cpu": ResourceDecision(
            limit=1.5,
            reason="lowered to 1.50 cores",
            bounds=Bounds(floor=0.1, ceiling=3.0, reserve=0.5, watermark_ratio=0.9),
            prediction=ResourcePrediction(2.1),
            before=2.0,
        ),
        "memory": ResourceDecision(
            limit=UNLIMITED,
            reason="not known",
            bounds=Bounds(floor=GIB, ceiling=None, reserve=0.0, watermark_ratio=None),
            prediction=ResourcePrediction(None),
            before=UNLIMITED,
        ),
    },
)
SANDBOX = Sandbox("s1", PodRef("u1", "batch", "job\x1b[2J"), "/offline/podu1")
STATUS = Status(
    version="0.1.0",
    pid=12,
    uptime_s=3725.0,
    dry_run=False,
    colocation="on",
    runtime=RuntimeStatus("/run/c.sock", ready=True, version="containerd 1.6", problem=""),
    config=ConfigStatus("/etc/c.toml", errors=("a: b",), needs_restart=("proxy.listen",)),
    box=BoxStatus(
        path="/offline",
        drift=1,
        swept=2,
        tick_failures=3,
        resources=resource_status(SNAPSHOT, DECISION, used={"memory": None}),
    ),
    pods=(OfflinePod(**asdict(SANDBOX.pod), placement=SANDBOX.placement or ""),),
    engine="grpc",
    cgroup=CgroupStatus(1, "cgroupfs"),
    decisions=latest_decisions([DecisionRecord(1.7e9, SNAPSHOT, DECISION)], 1),
)
