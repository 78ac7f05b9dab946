"""Which paths a driver may touch: boxes and the pods in them, and nothing else for writing; and their directories."""

from criproxy.cgroup.driver import CgroupError
from criproxy.cgroup.naming import directory_of, parse_box, parse_placement


def checked_box(path: str) -> str:
    """The directory of the box that `path` names, below the hierarchy's root. Raises CgroupError for another path."""
    try:
        return directory_of(parse_box(path).path)
    except ValueError as error:
        raise CgroupError(str(error)) from error


def is_slice(path: str) -> bool:
    """Whether systemd makes this cgroup: one made by hand below a slice loses its controllers."""
    return path.endswith(".slice")


def checked_pod(path: str) -> tuple[str, str]:
    """The directories of the box and of the pod in it that `path` names. Raises CgroupError for another path."""
    try:
        pod = parse_placement(path)
        return directory_of(pod.box.path), directory_of(pod.in_box)
    except ValueError as error:
        raise CgroupError(str(error)) from error


def checked_path(path: str) -> str:
    """The directory of any cgroup that does not climb: for reading only. Raises CgroupError otherwise."""
    try:
        return directory_of(path)
    except ValueError as error:
        raise CgroupError(str(error)) from error


def pod_named(box: str, directory: str) -> str | None:
    """What the pod is called whose cgroup in the box is this directory; None: it is no pod's."""
    try:
        pod = parse_placement(directory if is_slice(box) else f"{box}/{directory}")
    except ValueError:
        return None
    return pod.name if pod.box.path == box else None
