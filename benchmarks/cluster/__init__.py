"""A cluster of simulated nodes on a real API server: what ours costs it, and how soon it acts. `./bench cluster`

How it works
------------
    etcd, kube-apiserver    real, of the lab (integration/lab/control_plane.py); no kubelet, no leases, no controllers
    agents, a process       N nodes: publisher and watch of criproxy/kube, with each node's own certificate and a
                            connection for each request; what online uses is played from traces
    replica, two processes  `criproxy-cluster webhook` and `controller`, with their manifests' rights
    webhook, a process      asks the replica to convert pods, open loop
    criproxy, a process     a real daemon with `[kubernetes]` on and 110 offline pods: what that costs a node

Each node has lived for some minutes before it is there (`agents`), as nodes that all began at once would also publish
at once. What is measured is in `run`, and the targets in `figures`.
"""
