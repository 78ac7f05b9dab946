"""Work that ends in time: what the owners of offline pods have met with, and what policies say follows from it.

How it works
------------
                       evictions, waits, ends                      the ConfigMap `criproxy-owners`
    watch of marked pods ──▶ Book (history) ──▶ the leader's keeper ──────────────▶ each replica of the webhook
                                                     │                                  │
                                                     ├──▶ a waiting pod is raised       ├──▶ converted for the box
                                                     └──▶ a waiting pod is made anew    └──▶ left for virtual nodes

An owner is the controller of a pod, by its namespace, kind, name and uid; a pod without one is its own. A pod's
requests can't be changed once it is there, so the webhook decides when it is made. It asks nobody then: it has the last
book that its watch has brought. Without one, or with an old one, it converts as if there were no policy.

The book is one ConfigMap, as small as `history.MOST_OWNERS` allow, made empty by the manifests. An owner's own
annotations would need the right to write Jobs, ReplicaSets and whatever else owns pods, and their authors could write
them; a policy's status is for people, and has no place for owners of several namespaces. A new leader begins with the
book, and counts nothing twice that is in it: what it lists may have been counted before.

All here is pure; who keeps the book, and follows it, is in `overflow`.
"""
