"""The one table of the ways in which criproxy does not act as it does when all is on and well.

Several modes can be in force at once. For each question, the answer that acts least then holds: a dry run of a node
whose schedule is off refuses nobody, and one whose config has errors writes no limit.
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from msgspec import Struct


class NewPod(Enum):
    """What becomes of an offline pod that starts. A later member acts less. The values are words for people."""

    BOUNDED = "starts in the box"
    REFUSED = "is refused (kubelet tries again)"
    WOULD_BE_BOUNDED = "starts outside the box, and the log says what would be done"
    UNBOUNDED = "starts outside the box"


class LimitsUse(Enum):
    """What becomes of the box's limits on CPU and memory. A later member acts less."""

    WRITTEN = "follow the policy"
    LIFTED = "are lifted, or its pods are stopped (colocation.on_disable)"
    LOWERED = "are only lowered"
    KEPT = "stay as they are"


_LESS: Final = {answer: rank for answers in (NewPod, LimitsUse) for rank, answer in enumerate(answers)}


class Mode(Enum):
    """The modes. The value is the name that people see."""

    DISABLED = "disabled"
    DRY_RUN = "dry run"
    PASS_THROUGH = "pass-through"
    CLOSED = "closed"
    HELD_OFF = "held off"
    HELD = "held"
    UNWELCOME = "box not welcoming"
    NO_CGROUPS = "no cgroups"
    ENGINE_GIVEN_UP = "relay given up"
    BYPASS = "bypass"
    NOT_CALLED = "not called"


class Row(Struct, frozen=True):
    """What a mode means. `when` tells people what brings it about. `well`: it is no problem, but asked for.

    `online` and `ready` say what becomes of an online pod's calls, and what /readyz answers. No mode refuses or changes
    such a call, or makes a criproxy that runs unready.
    """

    when: str
    new_pod: NewPod = NewPod.BOUNDED
    online: str = "passes as it came"
    limits: LimitsUse = LimitsUse.WRITTEN
    ready: str = "ok while the runtime is ready"
    well: bool = False


TABLE: Final[Mapping[Mode, Row]] = MappingProxyType(
    {
        Mode.DISABLED: Row("colocation.enabled is false", NewPod.UNBOUNDED, limits=LimitsUse.LIFTED, well=True),
        Mode.DRY_RUN: Row("criproxy runs with --dry-run", NewPod.WOULD_BE_BOUNDED, limits=LimitsUse.KEPT, well=True),
        Mode.PASS_THROUGH: Row(
            "the config had errors when criproxy started, and has not been correct since",
            NewPod.UNBOUNDED,
            limits=LimitsUse.LOWERED,
        ),
        Mode.CLOSED: Row("the schedule is off, or turns off within schedule.grace_s", NewPod.REFUSED, well=True),
        Mode.HELD_OFF: Row(
            "an operator holds criproxy off the box (`criproxy hold-off`)",
            NewPod.REFUSED,
            limits=LimitsUse.KEPT,
            well=True,
        ),
        Mode.HELD: Row(
            "this pod was stopped a short time ago, or the box is closed, as it was found to harm online pods or to "
            "hold memory that brings the node near kubelet's eviction",
            NewPod.REFUSED,
            well=True,
        ),
        Mode.UNWELCOME: Row("the kernel does not take the box's limits", NewPod.REFUSED),
        Mode.NO_CGROUPS: Row(
            "criproxy can't have cgroups here, as where it is rootless", NewPod.REFUSED, limits=LimitsUse.KEPT
        ),
        Mode.ENGINE_GIVEN_UP: Row("the relay broke again and again for a client, which the gRPC engine serves for now"),
        Mode.BYPASS: Row(
            "criproxy does not run, for longer than proxy.bypass_after_s",
            NewPod.UNBOUNDED,
            "passes by criproxy",
            LimitsUse.KEPT,
            "nobody answers",
        ),
        Mode.NOT_CALLED: Row(
            "kubelet uses another endpoint, or with the NRI front the runtime has not called criproxy for a while",
            NewPod.UNBOUNDED,
            "passes by criproxy",
            well=True,
        ),
    }
)


class Modes(Struct, frozen=True):
    """The modes in force, each with why it is ("": the table's `when` says it)."""

    why: Mapping[Mode, str] = {}

    def __contains__(self, mode: object) -> bool:
        return mode in self.why

    @property
    def new_pod(self) -> NewPod:
        return max((TABLE[mode].new_pod for mode in self.why), key=_LESS.__getitem__, default=NewPod.BOUNDED)

    @property
    def limits(self) -> LimitsUse:
        return max((TABLE[mode].limits for mode in self.why), key=_LESS.__getitem__, default=LimitsUse.WRITTEN)

    @property
    def judges(self) -> bool:
        """Whether it is found out which pods are offline: to place or refuse them, or to report what would be done."""
        return self.new_pod is not NewPod.UNBOUNDED

    @property
    def writes(self) -> bool:
        """Whether the box's limits are criproxy's to set, up and down, and its pods criproxy's to stop."""
        return self.limits is LimitsUse.WRITTEN


def in_words(mode: Mode) -> str:
    """What the mode means, in a line for people."""
    row = TABLE[mode]
    return f"{mode.value}: a new offline pod {row.new_pod.value}; the box's limits {row.limits.value}"
