"""Throwaway Debian nodes (systemd, cgroup v2 or v1, containerd) in QEMU without KVM, and the suites run on them."""
