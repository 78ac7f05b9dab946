"""A node in a directory: a private containerd, a kubelet, criproxy and a CRI client, for tests, demo and benchmarks.

Everything has its own root, state, sockets, ports and cgroups, is ended by pid, and can be cleaned up by a later run
that knows the directory only.
"""
