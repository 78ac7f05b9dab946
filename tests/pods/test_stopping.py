"""Who may not start for a while, after having been stopped."""

from criproxy.model import PodRef
from criproxy.pods.stopping import ON_OVER_LIMIT, ON_UNBOUNDED, Holds

POD, OTHER = PodRef("1", "batch", "job"), PodRef("2", "batch", "other")


class Clock:
    now_s = 1000.0

    def boottime_s(self) -> float:
        return self.now_s


def holds() -> tuple[Holds, Clock]:
    clock = Clock()
    return Holds(clock), clock  # type: ignore[arg-type]


def test_pod_is_held_for_its_time_and_no_other_one_is() -> None:
    held, clock = holds()
    held.hold(POD, 60.0, "it printed", ON_UNBOUNDED)
    clock.now_s += 20.0
    assert held.held(POD) == ("it was stopped, as it printed (colocation.on_unbounded), so it is not let in for 40 s")
    assert held.held(OTHER) == ""
    clock.now_s += 40.0
    assert held.held(POD) == ""


def test_hold_ends_with_its_setting_and_others_go_on() -> None:
    held, _ = holds()
    held.hold(POD, 60.0, "it printed", ON_UNBOUNDED)
    held.hold(POD, 60.0, "memory ended", ON_OVER_LIMIT)
    held.configure(frozenset([ON_OVER_LIMIT]))
    assert "memory ended" in held.held(POD)
    held.configure(frozenset())
    assert held.held(POD) == ""


def test_everybody_is_held_until_that_is_over() -> None:
    held, _ = holds()
    held.hold_everybody("the box is over")
    assert (held.held(POD), held.held(OTHER)) == ("the box is over",) * 2
    held.hold_everybody("")
    assert held.held(POD) == ""


def test_nobody_is_held_here_while_another_process_serves() -> None:
    held, _ = holds()
    held.hold(POD, 60.0, "it printed", ON_UNBOUNDED)
    held.hold_everybody("the box is over")
    held.rest()
    assert (held.held(POD), held.held(OTHER)) == ("", "")
    held.resume()
    assert (held.held(POD) != "", held.held(OTHER)) == (True, "the box is over")


def test_hold_is_added_as_a_whole_as_the_status_is_asked_from_a_thread() -> None:
    class Watched(Holds):
        def __setattr__(self, name: str, value: object) -> None:
            seen.append(dict(value) if isinstance(value, dict) else value)
            super().__setattr__(name, value)

    seen: list[object] = []
    held = Watched(Clock())  # type: ignore[arg-type]
    held.hold(POD, 60.0, "it printed", ON_UNBOUNDED)
    assert seen[-1] == {(POD.uid, ON_UNBOUNDED): (1060.0, "it printed")}
