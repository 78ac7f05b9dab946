"""Finds out kubelet's cgroup driver, before it starts a pod, from where the pods are that run already."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, Protocol

import structlog

from criproxy.cgroup.driver import CgroupError
from criproxy.cgroup.naming import Driver, driver_of_process
from criproxy.model import Pod, Sandbox
from criproxy.pods.runtime import Process, Running

ASKED_MOST: Final = 5
"""So many pods are asked after: one suffices, unless it is a virtual machine's or has just ended."""


class Inventory(Protocol):
    """What is asked of the inventory (`criproxy.pods.inventory`)."""

    @property
    def elsewhere(self) -> Mapping[str, Pod]: ...


async def find_driver(
    inventory: Inventory,
    *,
    process_of: Callable[[Running], Awaitable[Process]],
    cgroups_of: Callable[[Collection[int]], Awaitable[Mapping[int, str]]],
) -> Driver | None:
    """The driver that the place of a running pod tells; None when none does. Never raises.

    `process_of` asks the runtime and raises ConnectionError or ValueError; `cgroups_of` gives each process's
    /proc/PID/cgroup, if it is there, and raises CgroupError.
    """
    for sandbox_id, pod in list(inventory.elsewhere.items())[:ASKED_MOST]:
        try:
            process = await process_of(Running(Sandbox(sandbox_id, pod.ref, None), sandbox_id, ""))
            cgroups = (await cgroups_of([process.pid])).values() if process.pid else ()
        except (ConnectionError, ValueError, CgroupError) as error:
            structlog.get_logger().warning("driver_not_found", pod=str(pod.ref), pod_uid=pod.ref.uid, error=str(error))
            continue
        for text in cgroups:
            if driver := driver_of_process(text):
                return driver
    return None
