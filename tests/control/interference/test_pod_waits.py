"""How long each pod waits, by two readings, and what the worst of them is shown as."""

import pytest

from criproxy.control.interference.detectors import POD
from criproxy.control.interference.pod_waits import UNHEARD, PodMeter
from criproxy.control.interference.signals import PodWait, pod_waits
from criproxy.model.signals import Missing, OwnLimits, PodStall, RunQueue, SignalReading, Stall, ThreadTimes, Throttling

A, B = "/kubepods/burstable/poda", "/kubepods/burstable/podb"
NAMES = {"a": "shop/a", "b": "shop/b"}


def pressed(t_s: float, waits: dict[str, float], stopped: dict[str, float] | None = None) -> SignalReading:
    own = None if stopped is None else OwnLimits(t_s, {path: Throttling(s, t_s) for path, s in stopped.items()}, t_s)
    pods = {uid: PodStall(path, Stall(t_s, waits[uid])) for uid, path in (("a", A), ("b", B)) if uid in waits}
    return SignalReading(pods=pods, own_limits=own)


def sampled(t_s: float, threads: dict[int, ThreadTimes]) -> SignalReading:
    return SignalReading(pods={"a": PodStall(A), "b": PodStall(B)}, run_queue=RunQueue(t_s, threads))


def test_pod_waits_for_its_share_of_the_time() -> None:
    found = pod_waits(pressed(10.0, {"a": 5.0, "b": 1.0}), pressed(12.0, {"a": 6.0, "b": 1.0}))

    assert found == {"a": PodWait(A, 50.0), "b": PodWait(B, 0.0)}


@pytest.mark.parametrize(
    ("stopped", "is_stopped"),
    [
        pytest.param({B: 1.0}, False, id="another"),
        pytest.param({A: 1.0}, True, id="itself"),
        pytest.param({f"{A}/c": 1.0}, True, id="in-it"),
        pytest.param({"/kubepods/burstable": 1.0}, True, id="around-it"),
        pytest.param({}, False, id="none"),
    ],
)
def test_pod_that_a_limit_stops_is_known(stopped: dict[str, float], is_stopped: bool) -> None:
    before = pressed(10.0, {"a": 0.0}, dict.fromkeys(stopped, 0.0))

    assert pod_waits(before, pressed(11.0, {"a": 0.5}, stopped)) == {"a": PodWait(A, 50.0, is_stopped)}


def test_pods_are_not_known_from_one_reading_nor_where_they_could_not_be_read() -> None:
    now = pressed(11.0, {"a": 1.0})

    assert pod_waits(None, now) == {}
    assert pod_waits(SignalReading(pods=Missing("why")), now) == {}
    assert pod_waits(now, SignalReading(pods=Missing("why"))) == {}
    assert pod_waits(pressed(10.0, {"b": 0.0}), now) == {}, "a pod that is new"
    assert pod_waits(pressed(10.0, {"a": 5.0}), now) == {}, "a pod made anew"


def test_without_pressure_its_threads_say_how_much_of_what_they_wanted_they_waited() -> None:
    last = {1: ThreadTimes(f"{A}/c", 0.0, 0.0), 2: ThreadTimes(f"{A}/d", 0.0, 0.0), 3: ThreadTimes(B, 0.0, 0.0)}
    this = {1: ThreadTimes(f"{A}/c", 0.5, 0.0), 2: ThreadTimes(f"{A}/d", 0.0, 0.5), 3: ThreadTimes(B, 0.01, 0.01)}

    found = pod_waits(sampled(10.0, last), sampled(11.0, this))

    assert found == {"a": PodWait(A, 50.0), "b": PodWait(B, 0.0)}, "b wanted next to nothing"


class Looks:
    """Each half second."""

    def __init__(self) -> None:
        self.meter, self.t_s = PodMeter(), 100.0

    def take(
        self,
        seconds: float,
        *,
        stopped: bool | None = False,
        names: dict[str, str] = NAMES,
        at_rest: bool = True,
        **percents: float,
    ):
        for _ in range(round(2 * seconds)):
            self.t_s += 0.5
            waits = {uid: PodWait(uid, percent, stopped) for uid, percent in percents.items()}
            self.meter.take(self.t_s, waits, names)
        return self.meter.at_rest() if at_rest else self.meter.of_accused()


def test_pod_is_shown_in_percent_of_its_bar_once_it_has_waited_for_long_enough() -> None:
    looks = Looks()
    calm = looks.take(10, a=2.0, b=1.0)
    soon = looks.take(1, a=2.0, b=50.0)
    then = looks.take(3, a=2.0, b=50.0)

    assert (calm.value, calm.note) == (0.0, "")
    assert (soon.value, soon.note) == (UNHEARD, "of shop/b")
    assert (then.value, then.note) == (pytest.approx(100.0 * 50.0 / POD.threshold), "of shop/b")


def test_pod_that_may_have_been_stopped_by_its_own_limit_makes_own_limits_be_read() -> None:
    looks = Looks()
    unknown = looks.take(5, stopped=None, a=60.0)
    stopped = looks.take(5, stopped=True, a=60.0)

    assert (unknown.value, unknown.most) == (0.0, pytest.approx(300.0))
    assert (stopped.value, stopped.most) == (0.0, 0.0)


def test_accused_is_shown_by_the_bar_of_its_alarm_until_it_goes() -> None:
    looks = Looks()
    looks.take(4, a=40.0, b=30.0)
    accused = looks.take(0.5, at_rest=False, a=10.0, b=90.0)
    unknown = looks.take(0.5, at_rest=False, stopped=None, a=90.0, b=90.0)
    gone = looks.take(0.5, at_rest=False, names={"b": "shop/b"}, a=40.0, b=30.0)

    assert (accused.value, accused.note) == (pytest.approx(50.0), "of shop/a"), "b's word is not the accused's"
    assert (unknown.value, unknown.gap != "") == (None, True)
    assert (gone.value, gone.gap) == (None, "the pod that waited has gone")


def test_accused_that_was_not_read_is_not_known_and_one_that_hardly_waits_is_also_after_a_restart() -> None:
    looks = Looks()
    looks.meter.accused = "a", 20.0
    unread = looks.take(0.5, at_rest=False)
    hardly = looks.take(0.5, at_rest=False, a=4.0)

    assert (unread.value, unread.gap) == (None, "how long the pod waits is not known yet")
    assert (hardly.value, hardly.note) == (pytest.approx(20.0), "of shop/a")


def test_acquitted_pod_becomes_usual_and_leaves_others_their_bars() -> None:
    looks = Looks()
    for _ in range(100):
        looks.take(10, a=40.0)
        looks.meter.acquit(looks.t_s)
    usual = looks.take(60, a=40.0)
    victim = looks.take(4, a=40.0, b=40.0)

    assert (usual.value is not None and usual.value < 100.0, usual.note) == (True, "of shop/a")
    assert (victim.value, victim.note) == (pytest.approx(200.0), "of shop/b")


def test_what_is_known_of_a_pod_goes_with_it() -> None:
    looks = Looks()
    looks.take(4, a=40.0)
    looks.take(0.5, names={}, a=40.0)
    again = looks.take(0.5, a=40.0)

    assert (again.value, again.note) == (UNHEARD, "of shop/a")
