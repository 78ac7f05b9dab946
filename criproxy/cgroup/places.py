"""Which paths a driver may touch: boxes and the pods in them, both in cgroupfs' shape, and nothing else for writing."""

from criproxy.cgroup.driver import CgroupError
from criproxy.cgroup.naming import BoxPath, Driver, PodParent, parse_box, parse_placement


def checked_box(path: str) -> str:
    """`path`, when it is a box's. Raises CgroupError otherwise."""
    try:
        return _cgroupfs(parse_box(path), path)
    except ValueError as error:
        raise CgroupError(str(error)) from error


def checked_pod(path: str) -> PodParent:
    """The pod in a box that `path` names. Raises CgroupError otherwise."""
    try:
        pod = parse_placement(path)
    except ValueError as error:
        raise CgroupError(str(error)) from error
    _cgroupfs(pod.box, path)
    return pod


def is_pod(box: str, name: str) -> bool:
    """Whether a cgroup of this name in the box is a pod's."""
    try:
        return parse_placement(f"{box}/{name}").name == name
    except ValueError:
        return False


def checked_path(path: str) -> str:
    """`path`, when it is absolute and does not climb: for reading only. Raises CgroupError otherwise."""
    if not path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise CgroupError(f"{path!r} is not an absolute cgroup path")
    return path


def _cgroupfs(box: BoxPath, path: str) -> str:
    if box.driver is not Driver.CGROUPFS:
        raise CgroupError(f"{path!r} is a systemd slice, and this driver writes cgroupfs alone")
    return path
