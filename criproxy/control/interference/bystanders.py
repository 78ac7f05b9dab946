"""Who uses the node's CPUs while online is harmed: online itself, the box, or somebody else.

Evidence that costs nobody anything. An experiment with the box's CPU says nothing where the box used none just before,
and hardly anything where others have taken more since the harm began: what is outside of kubelet's pods and the box
(an image pull, a cron job, kubelet), or another machine of the same hypervisor (steal).

    others = (busy - online - box) + steal, in cores
    usual  = its mean while nothing is high, that forgets half in `USUAL_HALF_LIFE_S`
    rose   = others > usual + max(LEAST_CORES, LEAST_RATIO x CPUs)

Pure.
"""

import math
from typing import Final

from msgspec import Struct

from criproxy.control.interference.detectors import OnlineUse
from criproxy.model.signals import CpuSpent

USUAL_HALF_LIFE_S: Final = 60.0
LEAST_CORES: Final = 0.2
LEAST_RATIO: Final = 0.1
UNUSED_RATIO: Final = 0.01
"""A box that has less of what the node has harms nobody by it."""

_SHORTEST_S: Final = 0.1
"""Between two readings: /proc/stat counts in hundredths of a second."""


class CpuSeen(Struct, frozen=True):
    """What a look has found. `others_rose`: they take clearly more than while nothing was high."""

    online: OnlineUse
    box_cores: float
    others_cores: float
    others_rose: bool = False

    @property
    def box_is_idle(self) -> bool:
        return self.box_cores < UNUSED_RATIO * self.online.cpus


class Bystanders(Struct, eq=False):
    """Remembers what is usual of others, from look to look."""

    _last: CpuSpent | None = None
    _usual_cores: float | None = None

    def seen(self, now: CpuSpent, *, calm: bool) -> CpuSeen | None:
        """`calm`: no signal was high at the last look. None: there is no reading that this one can be compared with."""
        last = self._last
        if last is None or now.read_s <= last.read_s or now.busy_s < last.busy_s:
            self._last = now
            return None
        elapsed_s = now.read_s - last.read_s
        if elapsed_s < _SHORTEST_S:
            return None
        self._last = now
        online, box = (max(0.0, grown) / elapsed_s for grown in (now.online_s - last.online_s, now.box_s - last.box_s))
        outside = max(0.0, (now.busy_s - last.busy_s) / elapsed_s - online - box)
        others = outside + max(0.0, now.steal_s - last.steal_s) / elapsed_s
        usual = others if self._usual_cores is None else self._usual_cores
        if calm:
            kept = math.exp2(-elapsed_s / USUAL_HALF_LIFE_S)
            self._usual_cores = kept * usual + (1.0 - kept) * others
        rose = others > usual + max(LEAST_CORES, LEAST_RATIO * now.cpus)
        return CpuSeen(OnlineUse(online, now.cpus), box, others, rose)
