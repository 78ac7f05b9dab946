"""Brings limits in force as the box does: written, and what takes reclaim sunk beside that."""

from criproxy.cgroup import files
from criproxy.cgroup.driver import CgroupDriver
from criproxy.model import UNLIMITED, LimitChange, Limits


def bring(driver: CgroupDriver, box: str, limits: Limits) -> tuple[LimitChange, ...]:
    """One tick's doings, and the next one's write."""
    changes = driver.write(box, limits)
    if limits["memory"] is not UNLIMITED:
        for _ in range(files.RECLAIM_STEPS):
            if not driver.memory.reclaim(box, limits["memory"]):  # type: ignore[arg-type]
                break
    return (*changes, *driver.write(box, limits))
