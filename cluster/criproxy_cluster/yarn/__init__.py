"""YARN beside the pods in what nodes lend: a part of the ledger's leader, where its command line says so.

How it works
------------
    the ledger: what each node lends, and what pods have of it ──▶ law ──▶ how large YARN may be there
                     ▲                                                          │
                     └── what YARN holds ◀── the ResourceManager's REST ◀───────┘

YARN is a holder in the ledger, as a pod is: a bind for which YARN has left no room is refused, and YARN grows into
nothing that a pod has. `managers` knows the NodeManagers by their pods, `law` decides (both are pure), `client` speaks
with the ResourceManager, and `operator` looks at each node in its turn.

A ResourceManager that does not answer, or that does not know a node, changes nothing: YARN holds there what it held
before, and where nothing is known yet, all that it may have.

Source: Hadoop 3.4, ResourceManager REST APIs (Cluster Node API, Cluster Node Update API), also as tried.
"""
