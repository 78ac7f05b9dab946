"""Kueue's quota follows what nodes lend. The leader alone runs it, where its command line says so.

How it works
------------
    nodes, as the controller sees them ──▶ pool ──▶ what each flavor's nodes lend, and carry, now
                                                      │ each second
                                                      ▼
                                                     law ──▶ the quota ──▶ keeper ──▶ one Cohort
    Kueue's Workloads ──▶ surplus: who goes, where nodes carry less than is in use ──▶ keeper ──▶ spec.active

`law`, `pool` and `surplus` are pure. `keeper` reads ResourceFlavors and Workloads, and writes. Whatever fails there
(Kueue is not installed, the flavor is missing, the Cohort is somebody else's) is said once and tried again, and holds
up nothing else.

Source: Kueue, kueue.x-k8s.io/v1beta2 (apis/kueue/v1beta2 of its module): Cohort, ResourceFlavor, Workload.
"""
