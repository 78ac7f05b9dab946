"""Programs of today that the tests start, built from Go modules: Kubernetes, etcd, containerd, CRI's tests, Kueue."""
