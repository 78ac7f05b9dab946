"""What the controller does to one Node. Pure.

How it works
------------
`judge` compares what a Node has with what it should have, and returns what is to be written, and when to look again
even if nothing changes. It is level-triggered: whatever was missed is made good at the next look, and when all is as it
should be, nothing is written.

| what | written | taken away |
|---|---|---|
| the policy's annotations | when a text is another one, unless people manage them (below) | when no policy selects it |
| a label for each controller with an evicted pod | as long as the annotation says, `LONGEST_S` at most | then |
| the taint, PreferNoSchedule | while the node holds offline pods back | when it has not for `CALM_S` |
| 0 of all that is published, and why | when one that lends has said nothing for `AWAY_S` | the node publishes again |

Where people manage the annotations (`names.MANAGED` = "false"), they are written for the switch alone, and when that
goes, once more: as the policies have them, since what was there before is not known any more.

The taint is PreferNoSchedule: online pods go elsewhere if they can, and start here all the same if not. Offline pods
are kept out by what the node publishes.

A node that says it lends nothing any more (`kubernetes.publish = false`, criproxy removed) says no more after that, and
what is published there is another system's. One that was away is no longer held back, so its taint goes in time.

Clocks may be wrong, the controller's too. So a node is away when its condition does not change for `AWAY_S` of a clock
that only grows. A controller that has just begun believes the time in it, but for `TRUST_S` before the end, in which a
node that lives writes it anew: neither a node whose clock is behind nor a controller whose clock is ahead makes a node
away. Time in which nodes could not be heard (`deaf_s`), as the watch of them was broken, counts for nothing. And of the
annotation of what was evicted the length of time counts, from when the controller has first seen it. The time of day
counts where a controller that has just begun finds no label for it: there, the time may be over.
"""

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from criproxy_cluster.controller.policies import was_switched_off
from criproxy_cluster.objects import Json, NodeView, Taint
from criproxy_cluster.vocabulary.names import (
    AWAY,
    CONDITION,
    EVICTED_FROM,
    HELD,
    MANAGED,
    POLICIES,
    POLICY,
    PRESSURE,
    SWITCH,
)
from criproxy_cluster.vocabulary.times import interval_s, rfc3339, wall_s

AWAY_S = 900.0
TRUST_S = 480.0
"""Longer than from one report of a node to the next, which is 390 s at most (criproxy/kube/extended_resources.py)."""

CALM_S = 300.0
LONGEST_S = 3600.0
EFFECT = "PreferNoSchedule"

_NOTHING: Mapping[str, "Entry"] = {}
"""One for all of 10,000 nodes."""


class Entry(Struct, frozen=True, gc=False):
    """Something that was evicted: what the annotation says of it, and when that is over."""

    text: str
    ends_s: float


class Memory(Struct, frozen=True, gc=False):
    """What is known beside the Node itself. Times are the controller's own clock."""

    beat: str | None = None
    beat_s: float = 0.0
    """Since when the condition is no newer, less `deaf_s` then."""
    calm_s: float | None = None
    """Since when a node with a taint holds nothing back."""
    evicted: Mapping[str, Entry] = {}
    """By the controller's uid."""


class Judgement(Struct, frozen=True):
    """`patch` is a merge patch of the Node, `status` a strategic one of its status; None: nothing is to be written.

    `due_s`: when to look again, None: when it changes.
    """

    patch: Json | None
    status: Json | None
    memory: Memory
    due_s: float | None
    why: tuple[str, ...]

    @property
    def writes(self) -> bool:
        return bool(self.patch or self.status)


def judge(
    node: NodeView,
    memory: Memory | None,
    policy: str | None,
    now_s: float,
    now_wall_s: float,
    *,
    parts: str | None = None,
    deaf_s: float = 0.0,
) -> Judgement:
    """`policy` and `parts` are the annotations that it should have; None: none. `memory` None: it was not seen before.

    `deaf_s`: for how long nodes could not be heard, in all, since the controller began.
    """
    memory = remembered(node, memory, now_s, now_wall_s, deaf_s)
    annotations: Json = {}
    why: list[str] = []
    due: list[float] = []
    if _is_ours(node):
        wanted = ((POLICY, node.policy, policy), (POLICIES, node.parts, parts))
        annotations = {name: text for name, has, text in wanted if has != text}
    if annotations:
        why.append("policy")
    labels = _kept_out(node, memory, now_s, due)
    if labels:
        why.append("evicted")
    taints = _taints(node, memory, now_s, due)
    status = _away(node, memory.beat_s + deaf_s + AWAY_S, now_s, now_wall_s, due)
    patch: Json = {}
    if annotations or labels:
        patch["metadata"] = {name: table for name, table in (("annotations", annotations), ("labels", labels)) if table}
    if taints is not None:
        why.append("taint" if len(taints) > len(node.taints) else "no taint")
        # The list is written as a whole: somebody else may have written another since.
        patch.setdefault("metadata", {})["resourceVersion"] = node.version
        patch["spec"] = {"taints": taints}
    if status is not None:
        why.append("away")
    return Judgement(patch or None, status, memory, min(due, default=None), tuple(why))


def remembered(node: NodeView, memory: Memory | None, now_s: float, now_wall_s: float, deaf_s: float) -> Memory:
    beat_s = now_s - deaf_s
    if memory is None:
        said_s = _wall_s(node.beat)
        age_s = 0.0 if said_s is None else now_wall_s - said_s
        beat_s -= min(max(age_s, 0.0), AWAY_S - TRUST_S)
    elif memory.beat == node.beat:
        beat_s = memory.beat_s
    calm_s = None
    if node.reason != HELD and _tainted(node):
        calm_s = memory.calm_s if memory is not None and memory.calm_s is not None else now_s
    return Memory(node.beat, beat_s, calm_s, _evicted(node, memory, now_s, now_wall_s))


def _evicted(node: NodeView, memory: Memory | None, now_s: float, now_wall_s: float) -> Mapping[str, Entry]:
    if not node.evicted:
        return _NOTHING
    try:
        entries = msgspec.json.decode(node.evicted, type=dict[str, str])
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return _NOTHING
    found = {}
    for uid, text in entries.items():
        known = memory.evicted.get(uid) if memory is not None else None
        if known is not None and known.text == text:
            found[uid] = known
        elif _is_uid(uid) and (times := _interval_s(text)):
            left_s = min(times[1] - times[0], LONGEST_S)
            if memory is None and uid not in node.kept_out:
                left_s = min(times[1] - now_wall_s, left_s)
            found[uid] = Entry(text, now_s + left_s)
    return found


def _is_ours(node: NodeView) -> bool:
    """Whether the policy's annotations are the controller's to write."""
    return node.labels.get(MANAGED) != "false" or is_switched_off(node) or was_switched_off(node.policy)


def is_switched_off(node: NodeView) -> bool:
    return node.labels.get(SWITCH) == "off"


def _kept_out(node: NodeView, memory: Memory, now_s: float, due: list[float]) -> Json:
    wanted = {uid for uid, one in memory.evicted.items() if one.ends_s > now_s}
    due += (memory.evicted[uid].ends_s for uid in wanted)
    have = node.kept_out
    return {
        **{f"{EVICTED_FROM}{uid}": "" for uid in sorted(wanted - have)},
        **{f"{EVICTED_FROM}{uid}": None for uid in sorted(have - wanted)},
    }


def _is_uid(text: str) -> bool:
    """Whether it can be a label's name: the node's annotation may hold anything."""
    return 0 < len(text) <= 63 and text.isascii() and text.replace("-", "").isalnum() and "-" not in (text[0], text[-1])


def _tainted(node: NodeView) -> bool:
    return any(taint.key == PRESSURE for taint in node.taints)


def _taints(node: NodeView, memory: Memory, now_s: float, due: list[float]) -> list[Json] | None:
    """All of the node's taints as they should be; None: they are so."""
    others = [taint for taint in node.taints if taint.key != PRESSURE]
    if node.reason == HELD:
        wanted = None if _tainted(node) else [*others, Taint(PRESSURE, None, EFFECT)]
    elif memory.calm_s is not None and now_s - memory.calm_s >= CALM_S:
        wanted = others
    else:
        if memory.calm_s is not None:
            due.append(memory.calm_s + CALM_S)
        wanted = None
    if wanted is None:
        return None
    return [{name: value for name, value in msgspec.to_builtins(one).items() if value is not None} for one in wanted]


def _away(node: NodeView, ends_s: float, now_s: float, now_wall_s: float, due: list[float]) -> Json | None:
    if node.beat is None or not node.lends:  # nothing there is ours
        return None
    if now_s < ends_s:
        due.append(ends_s)
        return None
    condition = {
        "type": CONDITION,
        "status": "Unknown",
        "reason": AWAY,
        "message": f"criproxy on the node has said nothing for {AWAY_S / 60:.0f} minutes: 0 of each is published",
        "lastTransitionTime": rfc3339(now_wall_s),
    }
    nothing = dict.fromkeys(node.lent, "0")
    amounts = {"capacity": nothing, "allocatable": nothing} if nothing else {}
    return {"status": {**amounts, "conditions": [condition]}}


def _wall_s(text: str | None) -> float | None:
    try:
        return None if text is None else wall_s(text)
    except ValueError:
        return None


def _interval_s(text: str) -> tuple[float, float] | None:
    try:
        return interval_s(text)
    except ValueError:
        return None
