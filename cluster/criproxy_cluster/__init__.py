"""The cluster's side of criproxy: what no node needs to stay safe.

How it works
------------
    a pod ──▶ webhook ── conversion ──▶ the same pod, which asks for what nodes lend instead of what online is promised
    ColocationPolicy ──▶ controller ──▶ an annotation of each Node that it selects ──▶ the node's criproxy
    Node: its report, its condition ──▶ controller ──▶ status of the policy, taint, labels; 0 for who is away

Nothing is kept but in Kubernetes' own objects, so any replica may go at any moment. `webhook`, `controller` and
`certificates` do not know each other: each is a process of its own, with an account of its own, so that the one that
anybody may send something to has no right in the cluster. In each, decisions are in pure modules, and what acts is
around them. Beside them is what several need: `objects` (what is read of Kubernetes), `resources` and `requests` (how
it is asked), `memory`, and `vocabulary`.

Nothing is imported from the package of the nodes, and nothing of this is installed there. What both sides write into
Kubernetes' objects is said in `vocabulary`, which is a folder of both.
"""
