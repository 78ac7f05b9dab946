"""All nodes and policies, and what each policy has come to. Pure.

How it works
------------
A change of one node concerns that node alone: it is compared with the policies, of which there are few, and its part in
each policy's figures is taken out and put in anew. Nothing looks at the other nodes. A change of a policy concerns the
nodes that it selected or selects now; only their labels are looked at to find them.

What has to be looked at again at some time is in a heap, by that time. Each report of a node puts its time off: then
the one in the heap stays, and when it comes, the later one takes its place. So a node is there about once.
"""

import heapq
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final

from msgspec import Struct

from criproxy_cluster.controller.node_law import Judgement, Memory, is_switched_off, judge
from criproxy_cluster.controller.policies import (
    Policy,
    Told,
    in_order,
    mentions,
    selecting,
    switch_off,
    told_by,
    was_switched_off,
)
from criproxy_cluster.objects import Json, NodeView

MAX_SHOWN: Final = 10
"""Nodes that a policy's status names, of those that refuse it."""


_NONE: Final[Mapping[str, str]] = {}
"""One for all of 10,000 nodes."""


class Stage(Enum):
    """How far a node is with what a policy says."""

    WAITING = "waiting"
    IN_FORCE = "inForce"
    REFUSED = "refused"


class _Entry(Struct, gc=False):
    """`due_s`: when to look again. `queued_s`: the time that stands for it in the heap, no later."""

    view: NodeView
    memory: Memory | None = None
    policies: tuple[str, ...] = ()
    stage: Stage = Stage.WAITING
    refused: Mapping[str, str] = _NONE
    """Those of the policies that the node leaves out, while the stage is that of the others."""
    drained: bool = False
    due_s: float | None = None
    queued_s: float | None = None

    def stage_of(self, policy: str) -> Stage:
        return Stage.REFUSED if policy in self.refused else self.stage

    def has_drained(self, policy: str) -> bool:
        return self.drained and policy not in self.refused


class _Tally(Struct):
    matched: int = 0
    in_force: int = 0
    drained: int = 0
    refused: dict[str, str] = {}


class Fleet:
    """`looks` counts how often a node was compared with the policies."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Entry] = {}
        self._policies: dict[str, Policy] = {}
        self._ordered: tuple[Policy, ...] = ()
        self._tallies: dict[str, _Tally] = {}
        self._changed: set[str] = set()
        self._due: list[tuple[float, str]] = []
        self._texts: dict[tuple[tuple[str, ...], bool], Told | None] = {}
        self._unusable: frozenset[str] = frozenset()
        self._unseen: set[str] = set()
        """Nodes that were not looked at since they came, or since a policy changed that concerns them."""
        self.looks = 0

    def __len__(self) -> int:
        return len(self._nodes)

    # --- what is seen -------------------------------------------------------------------------------------------------

    def see(self, node: NodeView) -> bool:
        """Whether somebody may wait for what follows: it is new, or more is than what the node reports of itself."""
        entry = self._nodes.get(node.name)
        if entry is None:
            self._nodes[node.name] = _Entry(node)
            self._unseen.add(node.name)
            return True
        before, entry.view = entry.view, node
        return _awaited(before) != _awaited(node)

    def forget(self, name: str) -> None:
        entry = self._nodes.pop(name, None)
        if entry is not None:
            self._take_out(name, entry)
            self._was_looked_at(name)

    def forget_all_but(self, names: set[str]) -> None:
        """After a list of all nodes."""
        for name in self._nodes.keys() - names:
            self.forget(name)

    def set_policy(self, name: str, policy: Policy | None) -> list[str]:
        """A policy is there, is another one, or is gone. Returns the nodes that it concerns."""
        before = self._policies.pop(name, None)
        if policy is not None:
            self._policies[name] = policy
            self._tallies.setdefault(name, _Tally(refused={}))
            self._changed.add(name)
        self._ordered = in_order(self._policies.values())
        self._texts.clear()
        if policy == before:
            return []
        selectors = [one.selector for one in (before, policy) if one is not None]
        concerned = [
            node
            for node, entry in self._nodes.items()
            if name in entry.policies or any(selector.selects(entry.view.labels) for selector in selectors)
        ]
        self._unseen.update(concerned)
        if policy is None:
            for node in concerned:
                entry = self._nodes[node]
                entry.policies = tuple(other for other in entry.policies if other != name)
            self._tallies.pop(name, None)
            self._changed.discard(name)
        return concerned

    def set_unusable(self, names: frozenset[str]) -> list[str]:
        """Policies that are there but can't be used, and whose last good content nobody knows.

        Nodes that they speak to keep what they have, unless other policies or the label switch them off, or that label
        has and is gone: a mistake in a policy must
        not take away the one before, also when another replica begins to lead. Returns the nodes that need not keep it
        any more.
        """
        before, self._unusable = self._unusable, names - self._policies.keys()
        if not (over := before - self._unusable):
            return []
        return [node for node, entry in self._nodes.items() if mentions(entry.view.policy, over)]

    # --- what is to be done -------------------------------------------------------------------------------------------

    def look(self, name: str, now_s: float, now_wall_s: float, deaf_s: float = 0.0) -> Judgement | None:
        """At one node; None: there is none. `deaf_s`: see `judge`."""
        entry = self._nodes.get(name)
        if entry is None:
            return None
        self.looks += 1
        chosen = selecting(self._ordered, entry.view.labels)
        off = is_switched_off(entry.view)
        told = self._told(chosen, off)
        if self._keeps(entry.view.policy, chosen, off=off):
            told = Told(entry.view.policy or "", entry.view.parts, "")
        self._take_out(name, entry)
        entry.policies = tuple(policy.name for policy in chosen)
        policy, parts = (told.policy, told.parts) if told else (None, None)
        report, current = entry.view.report, entry.view.policy == policy
        entry.stage, entry.refused = Stage.WAITING, _NONE
        if told is not None and current and report is not None and report.version == told.version:
            entry.refused = report.refused or _NONE
            entry.stage = Stage.IN_FORCE if report.in_force or entry.refused else Stage.REFUSED
        has_it = entry.stage is Stage.IN_FORCE or (told is not None and current and not entry.view.reports)
        entry.drained = has_it and entry.view.empty
        self._put_in(name, entry)
        self._was_looked_at(name)
        judgement = judge(entry.view, entry.memory, policy, now_s, now_wall_s, parts=parts, deaf_s=deaf_s)
        entry.memory = judgement.memory
        entry.due_s = judgement.due_s
        self._enqueue(name, entry)
        return judgement

    def _keeps(self, text: str | None, chosen: tuple[Policy, ...], *, off: bool) -> bool:
        """See `set_unusable`. One that the label has switched off is to lend again without it."""
        unusable = self._unusable and mentions(text, self._unusable)
        return bool(unusable and not (off or switch_off(chosen) or was_switched_off(text)))

    def _enqueue(self, name: str, entry: _Entry) -> None:
        if entry.due_s is not None and (entry.queued_s is None or entry.due_s < entry.queued_s):
            heapq.heappush(self._due, (entry.due_s, name))
            entry.queued_s = entry.due_s

    def _was_looked_at(self, name: str) -> None:
        """With the last one, it can be said whether a switch is done."""
        before = len(self._unseen)
        self._unseen.discard(name)
        if before and not self._unseen:
            self._changed.update(policy.name for policy in self._ordered if policy.off)

    def due(self, now_s: float) -> Iterator[str]:
        """The nodes whose time has come."""
        while self._due and self._due[0][0] <= now_s:
            at_s, name = heapq.heappop(self._due)
            entry = self._nodes.get(name)
            if entry is None or entry.queued_s != at_s:
                continue
            entry.queued_s = None
            if entry.due_s is not None and entry.due_s <= now_s:
                entry.due_s = None
                yield name
            else:
                self._enqueue(name, entry)

    def _told(self, chosen: tuple[Policy, ...], off: bool) -> Told | None:
        """Nodes of one group get the same: it is made once."""
        key = (tuple(policy.name for policy in chosen), off)
        if key not in self._texts:
            self._texts[key] = told_by(chosen, switched_off=off)
        return self._texts[key]

    # --- what has come of it ------------------------------------------------------------------------------------------

    @property
    def policies(self) -> tuple[Policy, ...]:
        """In their order: the one that wins comes last."""
        return self._ordered

    def policy_names(self) -> set[str]:
        return set(self._policies)

    def touch(self, name: str) -> None:
        """The status of this policy is to be written again."""
        self._changed.add(name)

    def changed_policies(self) -> list[str]:
        """Those whose status may be another one since the last call."""
        changed, self._changed = sorted(self._changed), set()
        return changed

    def status(self, name: str) -> Json | None:
        """A policy's; None: there is none."""
        policy, tally = self._policies.get(name), self._tallies.get(name)
        if policy is None or tally is None:
            return None
        refused = [{"node": node, "reason": why} for node, why in sorted(tally.refused.items())[:MAX_SHOWN]]
        status: Json = {
            "observedGeneration": policy.generation,
            "nodes": tally.matched,
            "inForce": tally.in_force,
            "refused": len(tally.refused),
            "waiting": tally.matched - tally.in_force - len(tally.refused),
            "refusedBy": refused,
        }
        if policy.ignored:
            status["ignored"] = [f"spec.settings.{key}" for key in policy.ignored]
        if policy.off:
            status["off"] = {"nodes": tally.drained, "done": tally.drained == tally.matched and not self._unseen}
        return status

    def _take_out(self, name: str, entry: _Entry) -> None:
        self._count(name, entry, -1)
        entry.policies = ()

    def _put_in(self, name: str, entry: _Entry) -> None:
        self._count(name, entry, 1)

    def _count(self, name: str, entry: _Entry, by: int) -> None:
        for policy in entry.policies:
            tally = self._tallies.get(policy)
            if tally is None:
                continue
            self._changed.add(policy)
            tally.matched += by
            stage = entry.stage_of(policy)
            tally.in_force += by * (stage is Stage.IN_FORCE)
            tally.drained += by * entry.has_drained(policy)
            if stage is Stage.REFUSED and by > 0:
                report = entry.view.report
                why = entry.refused.get(policy) or ("; ".join(report.problems) if report else "")
                tally.refused[name] = why[:300]
            elif by < 0:
                tally.refused.pop(name, None)


def _awaited(view: NodeView) -> tuple[object, ...]:
    return view.labels, view.policy, view.parts, view.evicted, view.taints, view.reason
