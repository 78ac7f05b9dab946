"""The parts of the daemon that take looks, a line each: status, metrics and docs show them in this order."""

from typing import Final

from criproxy.control.guard import CpuGuard
from criproxy.daemon.attachment_watch import AttachmentWatch
from criproxy.daemon.bypass import Bypass
from criproxy.daemon.checkpoint import Checkpointer
from criproxy.daemon.kubernetes import KubernetesPart
from criproxy.daemon.lifecycle import Threads
from criproxy.daemon.round import Round
from criproxy.fronts.nri.front import NriFront
from criproxy.fronts.sentry.rules import SentryRules
from criproxy.model.shown import Shows
from criproxy.pods.anchors import AnchorKeeping
from criproxy.pods.cache_share import CacheShare
from criproxy.pods.cpu_manager import CpuManager
from criproxy.pods.cpu_pinning import CpuPinning
from criproxy.pods.disk_keeping import DiskKeeping
from criproxy.pods.hold_offs import HoldOffs
from criproxy.pods.host_paths import HostPaths
from criproxy.pods.interference import InterferenceWatch
from criproxy.pods.kernel_tables import KernelTablesWatch
from criproxy.pods.memory_relief import MemoryRelief
from criproxy.pods.overhead import OverheadWatch
from criproxy.pods.part import Part
from criproxy.pods.placement_check import PlacementCheck
from criproxy.pods.pod_limits import PodLimitsUpkeep
from criproxy.pods.pod_speeds import PodSpeeds
from criproxy.pods.pod_stops import PodStops
from criproxy.pods.pod_use import PodUseWatch
from criproxy.pods.proactive_reclaim import ProactiveReclaim
from criproxy.pods.realtime import RealtimeWatch
from criproxy.pods.reconciler import Reconciler
from criproxy.pods.service_checks import ServiceChecks
from criproxy.pods.told_weights import ToldWeights
from criproxy.pods.unbounded import UnboundedPods

PARTS: Final[tuple[type[Part], ...]] = (
    Reconciler,
    AnchorKeeping,
    PodStops,
    CpuManager,
    PodLimitsUpkeep,
    ToldWeights,
    ServiceChecks,
    DiskKeeping,
    CacheShare,
    CpuPinning,
    PodSpeeds,
    ProactiveReclaim,
    OverheadWatch,
    PlacementCheck,
    UnboundedPods,
    RealtimeWatch,
    KernelTablesWatch,
    PodUseWatch,
    SentryRules,
    AttachmentWatch,
)

OTHERS: Final[tuple[type[Shows], ...]] = (
    NriFront,
    HoldOffs,
    Bypass,
    Threads,
    HostPaths,
    CpuGuard,
    MemoryRelief,
    InterferenceWatch,
    Checkpointer,
    Round,
    KubernetesPart,
)
"""What else shows itself. The daemon makes these by hand: others have them for ports, or they take no looks.

`KubernetesPart` shows what the publisher has published, and why: its section, problems and metrics. The publisher takes
no looks in the round, as a look at the API server waits for the network for up to 30 s, and pauses after a failure by a
law of its own (`kube.retry`); as it shares client and watch with evictions, events and policy, which end together; and
as nothing of `criproxy.kube` is imported before kubelet's credential was found.
"""
