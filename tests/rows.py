"""Values by resource, written shortly: what tests say of CPU and memory, in that order."""

from msgspec.structs import replace

from criproxy.control.policy import PolicySettings, ResourceSettings
from criproxy.model import Decision, Limit, Prediction, ResourcePrediction, ResourceSample, Snapshot

Amounts = tuple[float, float, float, float]
"""Capacity, and what the node, the box and online use of it."""


def snapshot(t_s: float, cpu: Amounts, memory: Amounts, throttled_ratio: float = 0.0) -> Snapshot:
    return Snapshot(t_s, {"cpu": ResourceSample(*cpu), "memory": ResourceSample(*memory)}, throttled_ratio, read_s=t_s)


def predictions(cpu: float | None, memory: float | None, cpu_note: str = "", memory_note: str = "") -> Prediction:
    return {"cpu": ResourcePrediction(cpu, cpu_note), "memory": ResourcePrediction(memory, memory_note)}


def laws(cpu: ResourceSettings, memory: ResourceSettings, window: str = "") -> PolicySettings:
    return PolicySettings({"cpu": cpu, "memory": memory}, window)


def limited(decision: Decision, **limits: Limit) -> Decision:
    """With these limits, by resource."""
    resources = {name: replace(decided, limit=limits[name]) for name, decided in decision.resources.items()}
    return replace(decision, resources=resources)
