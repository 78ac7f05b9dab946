"""Values that the tests of this folder show."""

from criproxy.control.history import Record
from criproxy.model import UNLIMITED, Bounds, Decision, PodRef, Prediction, Sandbox, Snapshot
from criproxy.observe.status import (
    BoxStatus,
    CgroupStatus,
    ConfigStatus,
    RuntimeStatus,
    Status,
    cpu_status,
    latest_decisions,
    memory_status,
    offline_pod,
)

GIB = 1 << 30
SNAPSHOT = Snapshot(
    t_s=1.0,
    capacity_cores=4.0,
    capacity_bytes=8 * GIB,
    node_cores=3.0,
    node_bytes=4 * GIB,
    box_cores=1.25,
    box_bytes=GIB,
    online_cores=1.75,
    online_bytes=3 * GIB,
    throttled_ratio=0.125,
)
DECISION = Decision(
    t_s=1.0,
    limits={"cpu": 1.5, "memory": UNLIMITED},
    prediction=Prediction(cpu_cores=2.1, memory_bytes=None),
    cpu_reason="lowered to 1.50 cores",
    memory_reason="not known",
    cpu_bounds=Bounds(floor=0.1, ceiling=3.0, reserve=0.5, watermark_ratio=0.9),
    memory_bounds=Bounds(floor=GIB, ceiling=None, reserve=0.0, watermark_ratio=None),
    before={"cpu": 2.0, "memory": UNLIMITED},
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
        cpu=cpu_status(SNAPSHOT, DECISION),
        memory=memory_status(SNAPSHOT, DECISION),
    ),
    pods=(offline_pod(SANDBOX),),
    engine="grpc",
    cgroup=CgroupStatus(1, "cgroupfs"),
    decisions=latest_decisions([Record(1.7e9, SNAPSHOT, DECISION)], 1),
)
