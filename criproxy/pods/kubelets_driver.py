"""Kubelet's cgroup driver, as its pods show it: by the cgroup_parent at their start, or by where one runs."""

import contextlib
from typing import Final

from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from criproxy.cgroup.naming import Driver, driver_of_process
from criproxy.cgroup.processes import ProcCgroupReader
from criproxy.model import Pod, Sandbox
from criproxy.pods.admission import kubelets_place
from criproxy.pods.inventory import Inventory
from criproxy.pods.runtime import Running, Runtime

ASKED_MOST: Final = 5
"""How many pods are looked at: one suffices, unless it is a virtual machine's or has just ended."""


class KubeletsDriver(Struct):
    """`driver` is None until a pod has shown it."""

    inventory: Inventory
    runtime: Runtime
    proc_cgroups: ProcCgroupReader
    log: FilteringBoundLogger
    driver: Driver | None = None

    def pod_starts(self, pod: Pod) -> None:
        with contextlib.suppress(ValueError):
            self.driver = kubelets_place(pod).box.driver

    async def find(self) -> None:
        """Look at the pods that run, unless the driver is known. Never raises."""
        for sandbox_id, pod in list(self.inventory.outside.items())[:ASKED_MOST]:
            if self.driver is not None:
                return
            try:
                process = await self.runtime.process_of(Running(Sandbox(sandbox_id, pod.ref, None), sandbox_id, ""))
                cgroups = (await self.proc_cgroups.read([process.pid])).values() if process.pid else ()
            except (OSError, ValueError) as error:
                self.log.warning("driver_not_found", pod=str(pod.ref), pod_uid=pod.ref.uid, error=str(error))
                continue
            for text in cgroups:
                self.driver = self.driver or driver_of_process(text)
