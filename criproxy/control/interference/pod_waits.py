"""How long each online pod waits for CPU, against what is usual for that pod: the signal `pod_pressure`.

The sum of all pods (`cpu_pressure`) hides a victim beside a pod that waits much of its time by itself: what that one
does becomes usual for the sum, and on a node of many CPUs one pod hardly moves it. So each pod that was ever seen to
wait has a monitor of its own (`detectors.POD`), with its own bar, patience, and what it was acquitted of.

    value     the share of time in which some thread of the pod waited, in % (v1: of the time in which it wanted CPU);
              0 where a limit of online's own has stopped the pod, or is around it: that is its own doing
    shown     100 * value / the pod's bar

Of all pods, one value goes to the detector:

    at rest          the worst of those whose own monitor gives the alarm; of the others no more than `UNHEARD`
    from its alarm   the accused pod's, by the bar that it had then; none, where it could not be read twice

Pure.
"""

from collections.abc import Mapping
from typing import Final

from criproxy.control.interference.detectors import POD, POD_PRESSURE, Monitor, OnlineUse
from criproxy.control.interference.signals import PodWait, SignalValue

UNHEARD: Final = 99.0
"""In % of its bar: what a pod is shown as at most before its alarm."""


class PodMeter:
    """What is known of all online pods."""

    def __init__(self) -> None:
        self._monitors: dict[str, Monitor] = {}
        self._names: Mapping[str, str] = {}
        self._known: dict[str, float] = {}
        """By uid, in % of its bar; of pods that give an alarm, and of others that were seen to wait."""
        self._alarms: dict[str, float] = {}
        self._unknown = 0.0
        """The worst, in % of its bar, of those that may have been stopped by a limit of their own."""
        self.accused = "", POD.threshold
        """By uid, and its bar; "": none is, yet."""
        self._values: dict[str, float | None] = {}

    def take(
        self, t_s: float, waits: Mapping[str, PodWait], names: Mapping[str, str], use: OnlineUse | None = None
    ) -> None:
        """`names`: online's pods, by uid; what is known of others is forgotten."""
        self._names = names
        self._monitors = {uid: one for uid, one in self._monitors.items() if uid in names}
        self._known, self._alarms, self._values, self._unknown = {}, {}, {}, 0.0
        for uid, wait in waits.items():
            known = uid in self._monitors or uid == self.accused[0]
            if uid in names and (known or wait.percent > POD.threshold / 2.0):
                self._observe(t_s, uid, wait, use)

    def _observe(self, t_s: float, uid: str, wait: PodWait, use: OnlineUse | None) -> None:
        monitor = self._monitors.setdefault(uid, Monitor(POD))
        bar, value = monitor.bar(), self._value(wait, monitor.bar())
        self._values[uid] = value
        if value is None:
            self._unknown = max(self._unknown, 100.0 * wait.percent / bar)
            return
        found = monitor.observe(t_s, value, use)
        shown = 100.0 * value / found.bar
        self._known[uid] = min(UNHEARD, shown)
        if found.alarm:
            self._alarms[uid] = shown

    def _value(self, wait: PodWait, bar: float) -> float | None:
        """None: it is not known whether a limit of its own has stopped it."""
        if wait.percent < bar - POD.hysteresis:
            return wait.percent
        return None if wait.stopped is None else 0.0 if wait.stopped else wait.percent

    # --- the signal ---------------------------------------------------------------------------------------------------

    def at_rest(self) -> SignalValue:
        """The worst pod of those that give an alarm becomes the accused."""
        if self._alarms:
            accused = max(self._alarms, key=lambda uid: (self._alarms[uid], uid))
            self.accused = accused, self._monitors[accused].bar()
            return self._shown(self._alarms[accused], accused)
        if not self._known:
            return SignalValue(POD_PRESSURE, "%", 0.0, max(0.0, self._unknown))
        worst = max(self._known, key=lambda uid: (self._known[uid], uid))
        return self._shown(self._known[worst], worst)

    def of_accused(self) -> SignalValue:
        accused, bar = self.accused
        if accused not in self._names:
            return SignalValue(POD_PRESSURE, "%", gap="the pod that waited has gone")
        if accused not in self._values:
            return SignalValue(POD_PRESSURE, "%", gap="how long the pod waits is not known yet")
        value = self._values[accused]
        if value is None:
            why = "whether a limit of its own has stopped the pod is not known yet"
            return SignalValue(POD_PRESSURE, "%", most=self._unknown, gap=why)
        return self._shown(100.0 * value / bar, accused)

    def _shown(self, value: float, uid: str) -> SignalValue:
        return SignalValue(POD_PRESSURE, "%", value, max(value, self._unknown), note=f"of {self._names[uid]}")

    # --- what became of it --------------------------------------------------------------------------------------------

    def acquit(self, t_s: float) -> None:
        """The box is not the cause of what the accused waits for."""
        if (monitor := self._monitors.get(self.accused[0])) is not None:
            monitor.acquit(t_s)

    def explain(self, t_s: float, excess: float) -> None:
        """Nor of an alarm of so much, in % of its bar."""
        accused, bar = self.accused
        if accused in self._monitors:
            self._monitors[accused].explain(t_s, excess * bar / 100.0)
