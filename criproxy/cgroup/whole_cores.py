"""Which CPUs of its physical cores the box runs on: never beside a CPU that an online pod has alone. Pure.

Two hyperthreads of one core share its units and its nearest caches, so that a busy offline thread slows down the online
one beside it, and neither a weight nor cpu.idle helps. So the box leaves the siblings of exclusive CPUs (`spared`).
A box that is to run on whole cores alone (`choose`) has its own siblings only, in as few moves as possible:

    candidates   the cores of which every CPU may be the box's: never one that an online pod has alone, nor its sibling
    kept         the candidates that the box has already
    grow         while they have fewer CPUs than its limit, the candidate with the highest numbers comes (the lowest
                 take most interrupts)
    shrink       the one with the lowest numbers goes when the others have half a core more than the limit

So a limit that sways by less than half a core moves nothing. CPUs that offline pods have alone (kubelet's static CPU
manager) are the box's whatever becomes of the rest of their cores.
"""

from collections.abc import Sequence

from criproxy.model import UNLIMITED, Unlimited
from criproxy.model.cpulist import Cpus, format_cpus


def spared(cores: Sequence[Cpus], allowed: Cpus, own: Cpus, exclusive: Cpus) -> tuple[Cpus, str]:
    """`allowed` without the siblings of CPUs that online pods have alone (`exclusive`), and in words what is left; "":
    all of them.

    Where no others are left that pods share, the siblings stay. The other arguments are those of `choose`.
    """
    beside = frozenset().union(*(core & allowed for core in cores if core & exclusive)) - own
    if not beside:
        return allowed, ""
    if beside | own >= allowed:
        return allowed, "kubelet leaves no CPU but siblings of online pods' exclusive ones, so the box has these"
    return allowed - beside, f"what kubelet leaves, without {format_cpus(beside)}, the siblings of exclusive CPUs"


def choose(
    cores: Sequence[Cpus],
    allowed: Cpus | Unlimited,
    own: Cpus,
    held: Cpus,
    limit_cores: float | Unlimited,
) -> tuple[Cpus | Unlimited, str]:
    """The CPUs that the box shall run on, and in words how many cores that are, or why they are not whole ones.

    `cores`: the machine's physical cores, each by its CPUs. `allowed`: what may be the box's; `own`: what offline
    pods have alone. `held`: what was chosen last. `limit_cores`: the box's CPU limit, in CPUs.
    """
    if all(len(core) < 2 for core in cores):
        return allowed, "this machine has no hyperthreads, so each CPU is a whole core"
    candidates = [core for core in cores if allowed is UNLIMITED or core <= allowed]
    if not candidates:
        return allowed, "no physical core is left whole, so the box has siblings of online pods' exclusive CPUs"
    wanted = float("inf") if limit_cores is UNLIMITED else float(limit_cores)
    chosen = _adjusted(sorted(candidates, key=min), held, wanted)
    return own.union(*chosen), f"{len(chosen)} of {len(cores)} physical cores, with all their hyperthreads"


def _adjusted(candidates: Sequence[Cpus], held: Cpus, wanted: float) -> list[Cpus]:
    """`candidates`: by their lowest CPU."""
    kept = [core for core in candidates if core <= held]
    others = [core for core in candidates if not core <= held]
    while others and (not kept or _size(kept) < wanted):
        kept.append(others.pop())
    kept.sort(key=min)
    while len(kept) > 1 and _size(kept[1:]) >= wanted + len(kept[0]) / 2:
        kept.pop(0)
    return kept


def _size(cores: Sequence[Cpus]) -> int:
    return sum(map(len, cores))
