"""The hugetlb controller: limits on huge pages, as kubelet sets them on each pod, carried from its cgroup to ours.

Source: Documentation/admin-guide/cgroup-v1/hugetlb.rst; cgroup-v2.rst, HugeTLB.
"""

from collections.abc import Mapping

from msgspec import Struct

from criproxy.cgroup.places import checked_path
from criproxy.cgroup.tree import Tree


class Hugetlb(Struct, frozen=True):
    """`mount`: the hierarchy that has the controller; None: there is none. `limit`: how names of limits end."""

    mount: str | None
    tree: Tree
    limit: str

    def read(self, path: str) -> dict[str, str]:
        """The limits of a cgroup, by the names of their files (hugetlb.2MB.max): one or two for each size of page."""
        directory = f"{self.mount}{checked_path(path)}"
        if self.mount is None:
            return {}
        names = [name for name in self.tree.files(directory, "hugetlb.") if name.endswith(f".{self.limit}")]
        return {name: self.tree.read(f"{directory}/{name}") for name in names}

    def settle(self, path: str, limits: Mapping[str, str]) -> None:
        """Give a cgroup of ours these limits, as far as it has the files. Raises CgroupError."""
        held = self.read(path) if limits else {}
        for name in held.keys() & limits.keys():
            if held[name] != limits[name]:
                self.tree.write(f"{self.mount}{checked_path(path)}/{name}", limits[name])
