"""The box: the one bounded cgroup of all offline pods, where the request stream and the sample stream meet.

| module | has |
|---|---|
| box | `Box`: what the rest of criproxy asks of it |
| limits | the limits: bounding, squeezing, lifting them, taking over a box that is there |
| pods | its pods: let in, resized, swept when they have gone |
| memory | what must be reclaimed for a limit that sinks, and what is taken back beside the limits |
| threads | the threads of all three |

What a feature reads or writes by itself lives with the feature: `Box.reads` and `Box.writes` carry out its job, with
driver and path, on the right thread.

**Threads.** The event loop only asks and waits, never longer than a time-out; the work is done by the
`Workers` of `concurrency.workers`:

| thread | does | may wait for |
|---|---|---|
| cgroup-writer | all that changes the box, one job after another | systemd, a cgroup lock |
| cgroup-reader | readings (but see `box._AT_ONCE_S`): no blocked write blinds the loop | a cgroup lock |
| cgroup-reclaimer | lowers memory limits, drops ended pods' page cache, in steps | the kernel's reclaim: seconds |
| one apart (`Box.writes`) | what else may be slow: disks, kills; it begins with its first job | a disk's queue |

The writer's jobs of limits and CPUs come before all others that wait: the guard waits for the pod that is being let in,
and for none behind it. Each of both kinds is in one order.

What happened is kept by the job, on its thread, whether or not the caller still waits. Other threads and the event loop
read those attributes; each is replaced, or copied, as a whole.

**States**, by `BoxLimits.path` (where the box is) and `wanted` (the limits that it shall have):

| state | path | wanted | what the kernel holds |
|---|---|---|---|
| no box yet | None | None, or what was decided already | nothing |
| bounded | set | the last decision; None: the floor | `held`, which is at most what is wanted, but for memory |
| lifted, by `release` | set | None | no limit on what is decided about (`BoxSettings.lifted`); the rest stays |
| config not known (`only_lower`) | set | never above what was found first | as bounded |

The rest is always in force: the lowest priority, the CPUs (`cpus`) and what else bounds the box by one file each
(`kernel_files.LIMITS`: what was decided, or else a share of what the node can have).

**Memory.** A limit below the usage is brought to just above the usage by the writer. What is left takes reclaim and
sinks on the reclaimer's thread (`BoxMemory.sink`), towards `_sink_to`; each step looks at that anew, so that the steps
stop as soon as the wanted limit has risen. What a last step undid, the next `apply` mends. What memory is to be brought
down to below its limit (MEMORY_HIGH), on v2, sinks the same way, and leaves memory.max alone.

**Invariants.** A pod's cgroup is made in the job that has bounded the box, after that (`BoxPods._admit`), or that has
found the limits in the kernel which another job left there a moment ago (`BoxLimits._is_bounded`). Neither CPU nor the
start of a pod waits for memory. Something that can't be bounded keeps nothing else from being bounded
(`BoxLimits._bound`).

**Errors.** One that kept the box from being bounded is its `fault`: no pod is admitted until it was bounded again.
A job that takes too long is blocked: its call fails (`StuckError`), and so do all others of that thread until it has
ended; with the writer blocked no pod is admitted. What failed of a reclaim is raised by the next `apply`. Requests get
an `AdmissionError`.
"""

from criproxy.cgroup.box.box import Box, BoxState
from criproxy.cgroup.box.limits import BoxSettings
from criproxy.cgroup.box.memory import Held

__all__ = ["Box", "BoxSettings", "BoxState", "Held"]
