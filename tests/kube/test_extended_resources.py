"""What a node publishes, and when: as data."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from criproxy.control.publication import Lendable, OpenBoxSettings
from criproxy.kube.extended_resources import (
    QUIET_S,
    SHED_S,
    Offer,
    OnNode,
    Published,
    PublishSettings,
    due,
    ended,
    needs_allocated,
    offer,
    publication,
    published,
    resources_called,
    wanted,
    why,
)
from criproxy.model import (
    CPU,
    MEMORY,
    Bounds,
    Decision,
    ResourceDecision,
    ResourcePrediction,
    ResourceSample,
    Snapshot,
)
from criproxy.model.modes import Mode, Modes
from criproxy.vocabulary.published import annotation_of, names_of

GIB = 2**30
BATCH_CPU, BATCH_MEMORY = (resource.name for resource in resources_called("batch"))
SETTINGS = PublishSettings()
PODS = frozenset({"a", "b"})
BOUNDS = Bounds(floor=0.1, ceiling=None, reserve=0.0, watermark_ratio=0.9)
SAMPLE = ResourceSample(capacity=16.0, node=4.0, box=1.0, online=3.0)


def decided(hour=6.0, limit=9.0, **bounds):
    return ResourceDecision(limit, "so", replace(BOUNDS, **bounds), ResourcePrediction(5.0, hour=hour))


def offered(cores=4.0, size=8 * GIB, **fields):
    return Offer({CPU: Lendable(cores, "because"), MEMORY: Lendable(float(size), "because")}, **fields)


def taken(one, last=None, now_s=0.0, allocated=(), jitter=0.0):
    made = publication(one, dict(allocated), last, SETTINGS, "")
    return published(made, one, now_s, jitter)


# --- how much --------------------------------------------------------------------------------------------------------


def test_offer_of_a_tick_has_what_is_measured():
    snapshot = Snapshot(1.0, {CPU: SAMPLE}, 0.0)
    made = offer(snapshot, Decision(1.0, {CPU: decided(), "pids": decided()}), Modes(), SETTINGS)
    assert set(made.lendable) == {CPU}
    assert (made.withheld, made.held) == ("", "")


def test_offer_of_a_box_that_may_not_run_on_all_cpus_is_less_and_says_so():
    snapshot = Snapshot(1.0, {CPU: replace(SAMPLE, for_box=2.0)}, 0.0)
    made = offer(snapshot, Decision(1.0, {CPU: decided()}), Modes(), SETTINGS)
    last = published(publication(made, {}, None, SETTINGS, ""), made, 0.0, 0.0)
    assert last.quantities[BATCH_CPU] == 1800
    assert "(1.80 cores): 2.00 cores that the box may run on x 0.90, below 16.00 cores x 0.90" in why(
        made, last, SETTINGS
    )


@pytest.mark.parametrize(
    ("modes", "withheld", "held"),
    [
        pytest.param({}, "", "", id="all well"),
        pytest.param({Mode.DISABLED: ""}, "disabled (colocation.enabled is false)", "", id="off"),
        pytest.param({Mode.CLOSED: "mon 9:00"}, "closed (mon 9:00)", "", id="closed"),
        pytest.param({Mode.PASS_THROUGH: "bad"}, "pass-through (bad)", "", id="unbounded"),
        pytest.param({Mode.ENGINE_GIVEN_UP: ""}, "", "", id="the other engine"),
        pytest.param({Mode.HELD: "near eviction"}, "", "near eviction", id="held"),
        pytest.param({Mode.HELD_OFF: "repair"}, "", "repair", id="held off"),
        pytest.param({Mode.NOT_CALLED: "detached"}, "", "detached", id="not called"),
        pytest.param({Mode.UNWELCOME: "systemd is silent"}, "", "systemd is silent", id="box not welcoming"),
        pytest.param({Mode.NO_CGROUPS: "rootless"}, "no cgroups (rootless)", "", id="no box can be made"),
        pytest.param(
            {Mode.UNWELCOME: "systemd is silent", Mode.CLOSED: "mon 9:00"},
            "closed (mon 9:00)",
            "systemd is silent",
            id="closed, and box not welcoming",
        ),
    ],
)
def test_offer_withholds_where_new_pods_would_not_be_bounded(modes, withheld, held):
    made = offer(Snapshot(1.0, {}, 0.0), Decision(1.0, {}), Modes(modes), SETTINGS)
    assert (made.withheld, made.held) == (withheld, held)


def test_offer_of_a_drained_node_withholds():
    assert offer(Snapshot(1.0, {}, 0.0), Decision(1.0, {}), Modes(), SETTINGS, drained="drained").withheld == "drained"


@pytest.mark.parametrize(
    ("preset", "cpu", "memory"),
    [
        ("batch", ("kubernetes.io/batch-cpu", 3999), ("kubernetes.io/batch-memory", 8 * GIB)),
        ("crane", ("gocrane.io/cpu", 3), ("gocrane.io/memory", 8 * GIB)),
    ],
)
def test_presets_publish_in_their_units_rounded_down(preset, cpu, memory):
    settings = PublishSettings(resources_called(preset))
    assert wanted(offered(3.9999, 8 * GIB + 0.5), settings) == dict([cpu, memory])


@given(st.integers(0, 10**6))
def test_whole_milli_cores_stay_what_they_are(milli):
    assert resources_called("batch")[0].quantity(milli / 1000) == milli


# --- when ------------------------------------------------------------------------------------------------------------


NAMES = f"{BATCH_CPU},{BATCH_MEMORY}"


def ask(one, last, now_s=100.0, seen=None, publishes=NAMES):
    return due(one, None if seen is None else OnNode(seen, publishes), last, SETTINGS, now_s)


def test_first_is_due_at_once():
    assert ask(offered(), None)


@pytest.mark.parametrize(
    ("cores", "expected"),
    [(4.0, False), (9.0, False), (3.6, False), (3.599, True), (0.0, True)],
)
def test_fall_by_more_than_a_tenth_is_due_and_a_rise_waits(cores, expected):
    assert bool(ask(offered(cores), taken(offered(4.0)))) is expected


@pytest.mark.parametrize(("jitter", "due_s"), [(0.0, 300.0), (1.0, 390.0)])
def test_report_is_due_after_its_time_and_by_chance_later(jitter, due_s):
    last = taken(offered(), jitter=jitter)
    assert ask(offered(), last, due_s - 1.0) == ""
    assert ask(offered(), last, due_s) == f"the last report is {due_s:.0f} s old"


def test_what_somebody_else_has_written_is_written_anew():
    last = taken(offered())
    assert ask(offered(), last, seen=last.quantities) == ""
    assert ask(offered(), last, seen={**last.quantities, BATCH_CPU: 7}) == f"somebody else has set {BATCH_CPU} to 7"
    assert ask(offered(), last, seen={}) == f"somebody else has set {BATCH_CPU} to nothing"


@pytest.mark.parametrize("publishes", [None, "", BATCH_CPU])
def test_annotation_that_somebody_else_has_changed_is_written_anew(publishes):
    last = taken(offered())
    said = "somebody else has changed the annotation colocation.criproxy.io/publishes"
    assert ask(offered(), last, seen=last.quantities, publishes=publishes) == said


def test_nothing_but_lending_nothing_breaks_the_quiet_after_a_patch():
    last = taken(offered())
    assert ask(offered(0.1), last, QUIET_S - 1.0, seen={}) == ""
    assert ask(offered(withheld="off"), last, 0.0) == "nothing is lent: off"
    assert ask(offered(withheld="off"), taken(offered(withheld="off")), 0.0) == ""


@given(st.lists(st.tuples(st.floats(0, 64), st.booleans()), max_size=60), st.floats(0, 1))
def test_two_writers_never_patch_in_circles(steps, jitter):
    """However the numbers jump, and whatever somebody else writes: with a look each second, a patch each 10 s."""
    last, patches = None, []
    for now_s, (cores, other) in enumerate(steps):
        one = offered(cores)
        if ask(one, last, float(now_s), seen={} if other else None):
            last = taken(one, last, float(now_s), jitter=jitter)
            patches.append(now_s)
    assert all(later - earlier >= QUIET_S for earlier, later in pairwise(patches))


def test_end_of_withholding_is_due_though_the_numbers_are_the_same():
    nothing = Offer({CPU: Lendable(0.0, ""), MEMORY: Lendable(0.0, "")})
    assert ask(nothing, taken(replace(nothing, withheld="off"))) == "the node lends again"


# --- what pods were promised -----------------------------------------------------------------------------------------


def test_number_never_sinks_below_what_pods_were_promised():
    last = taken(offered(4.0))
    assert needs_allocated(offered(1.0), last, SETTINGS)
    made = publication(offered(1.0), {BATCH_CPU: 3000, BATCH_MEMORY: 0}, last, SETTINGS, "")
    assert made.quantities == {BATCH_CPU: 3000, BATCH_MEMORY: 8 * GIB}
    assert made.raised


def test_number_sinks_below_what_pods_were_promised_on_purpose():
    last = taken(offered(4.0))
    off = offered(1.0, withheld="off")
    assert not needs_allocated(off, last, SETTINGS)
    assert publication(off, {BATCH_CPU: 3000}, last, SETTINGS, "").quantities[BATCH_CPU] == 0


@pytest.mark.parametrize("before", [0.0, 4.0])
def test_box_that_is_closed_lends_just_what_pods_were_promised(before):
    """However much it could lend: no further pod is let in."""
    held, last = offered(4.0, held="online suffers"), taken(offered(before))
    assert needs_allocated(held, last, SETTINGS)
    made = publication(held, {BATCH_CPU: 3000}, last, SETTINGS, "")
    assert (made.quantities[BATCH_CPU], made.quantities[BATCH_MEMORY]) == (3000, 0)


def test_box_that_the_kernel_does_not_bound_lends_what_pods_were_promised_and_0_without_pods():
    """A moment of it is enough: with 0, a kubelet that restarts then would fail all of its pods."""
    snapshot, decision = Snapshot(1.0, {CPU: SAMPLE}, 0.0), Decision(1.0, {CPU: decided()})
    lends = offer(snapshot, decision, Modes(), SETTINGS, pods=PODS)
    last = taken(lends)
    fault = offer(snapshot, decision, Modes({Mode.UNWELCOME: "systemd is silent"}), SETTINGS, pods=PODS)
    assert ask(fault, last)
    assert needs_allocated(fault, last, SETTINGS)
    held = taken(fault, last, 100.0, {BATCH_CPU: 2000}.items())
    assert held.quantities[BATCH_CPU] == 2000
    assert ask(lends, held, 100.0 + QUIET_S) == "further pods are let in again"
    assert taken(replace(fault, pods=frozenset()), held, 200.0).quantities[BATCH_CPU] == 0


def test_pods_are_not_asked_for_while_numbers_rise():
    assert not needs_allocated(offered(4.0), taken(offered(3.0)), SETTINGS)
    assert needs_allocated(offered(4.0), None, SETTINGS), "what stands there from before is not known"


def test_pods_are_asked_for_when_the_node_lends_again_as_they_may_run_on():
    last = taken(offered(4.0, withheld="closed"))
    assert needs_allocated(offered(4.0), last, SETTINGS)


def test_pods_are_asked_for_when_a_name_comes_anew_as_they_may_have_been_promised_it_before():
    assert needs_allocated(offered(4.0), taken(offered(4.0)), PublishSettings(resources_called("crane")))


def test_number_that_pods_hold_up_is_looked_at_again_when_one_has_ended():
    last = taken(offered(1.0, pods=PODS), taken(offered(4.0)), allocated={BATCH_CPU: 3000}.items(), jitter=1.0)
    fewer, others, then_s = offered(1.0, pods=frozenset({"a"})), offered(1.0, pods=PODS | {"c"}), SHED_S + 1.0
    assert ask(offered(1.0, pods=PODS), last, then_s) == ask(others, last, then_s) == ""
    assert ask(fewer, last, then_s) == "a pod has ended while more is published than can be lent"
    assert needs_allocated(fewer, last, SETTINGS)
    assert ended(fewer, last) == {"b"}


def test_rise_waits_for_the_report_unless_its_settings_have_changed():
    snapshot = Snapshot(1.0, {CPU: SAMPLE}, 0.0)
    offers = [
        offer(snapshot, Decision(1.0, {CPU: decided(**bounds)}), Modes(), settings)
        for bounds, settings in (
            ({}, SETTINGS),
            ({"kept": 0.5}, SETTINGS),
            ({"floor": 1.0}, SETTINGS),
            ({}, PublishSettings(open_box=OpenBoxSettings(speed_ratio=0.9))),
        )
    ]
    last = taken(offers[0])
    why = "the settings that it comes of have changed"
    assert [ask(one, last, 60.0) for one in offers] == ["", "", why, why]


@pytest.mark.parametrize("allocated", [{}, {BATCH_CPU: 200}], ids=["empty", "pods"])
def test_end_of_a_hold_is_due_at_once_as_nothing_more_is_lent_until_then(allocated):
    held = taken(offered(held="online suffers"), allocated=allocated.items())
    assert held.quantities == {BATCH_CPU: 0, BATCH_MEMORY: 0, **allocated}
    assert ask(offered(held="online suffers still"), held) == ""
    assert ask(offered(), held, QUIET_S - 1.0) == ""
    assert ask(offered(), held, QUIET_S) == "further pods are let in again"
    assert ask(offered(), taken(offered(), held, QUIET_S), 60.0) == ""


def test_end_of_a_pod_waits_until_the_last_report_is_of_some_age():
    last = taken(offered(1.0, pods=PODS), allocated={BATCH_CPU: 3000}.items(), jitter=1.0)
    assert ask(offered(1.0), last, SHED_S - 1.0) == ""
    assert ask(offered(1.0), last, SHED_S)


def test_end_of_a_pod_is_written_at_once_while_no_further_pod_is_let_in():
    held = offered(held="nobody calls criproxy", pods=PODS)
    last = taken(held, allocated={BATCH_CPU: 2000}.items(), jitter=1.0)
    fewer = replace(held, pods=frozenset({"b"}))
    assert ask(held, last, 2 * QUIET_S) == ask(fewer, last, 2 * QUIET_S - 1.0) == ""
    assert ask(fewer, last, 2 * QUIET_S) == "a pod has ended while more is published than can be lent"


def test_pods_that_end_each_second_cost_a_patch_each_quiet_time():
    last, patches = None, 0
    for second in range(100):
        one = offered(held="nobody calls criproxy", pods=frozenset(str(uid) for uid in range(second, 200)))
        if ask(one, last, float(second)):
            last = taken(one, last, float(second), allocated={BATCH_CPU: 2000}.items())
            patches += 1
    assert patches == 100 / QUIET_S


@given(st.floats(0, 64), st.floats(0, 64), st.integers(0, 64_000), st.booleans(), st.booleans())
def test_publication_is_what_can_be_lent_or_was_promised(before, cores, promised, withheld, held):
    one = offered(cores, withheld="off" if withheld else "", held="held" if held else "")
    last = taken(offered(before))
    known = {BATCH_CPU: promised} if needs_allocated(one, last, SETTINGS) else {}
    amount = publication(one, known, last, SETTINGS, "").quantities[BATCH_CPU]
    milli = resources_called("batch")[0].quantity(cores)
    if withheld:
        assert amount == 0
    elif held:
        assert amount == promised
    elif not known:
        assert amount == milli
    else:
        assert amount == max(milli, promised)


def test_other_names_take_the_place_of_the_old_ones():
    other = PublishSettings(resources_called("crane"))
    last = taken(offered())
    assert due(offered(), None, last, other, 100.0) == "other names are to be published"
    made = publication(offered(), {}, last, other, "")
    assert made.quantities == {BATCH_CPU: None, BATCH_MEMORY: None, "gocrane.io/cpu": 4, "gocrane.io/memory": 8 * GIB}
    assert set(published(made, offered(), 0.0, 0.0).quantities) == {"gocrane.io/cpu", "gocrane.io/memory"}


def test_names_that_an_earlier_process_has_left_go_with_the_first_publication():
    made = publication(offered(), {}, None, SETTINGS, "", left=("gocrane.io/cpu", BATCH_CPU))
    assert made.quantities == {"gocrane.io/cpu": None, BATCH_CPU: 4000, BATCH_MEMORY: 8 * GIB}
    assert made.publishes == NAMES
    assert published(made, offered(), 0.0, 0.0).publishes == NAMES


def test_names_are_left_to_others_where_nothing_is_to_be_published():
    off = PublishSettings(off="kubernetes.publish is false")
    assert publication(offered(withheld=off.off), {}, None, off, "").publishes is None


@pytest.mark.parametrize(
    ("annotation", "names"),
    [
        pytest.param(None, (), id="none"),
        pytest.param("", (), id="empty"),
        pytest.param(NAMES, (BATCH_CPU, BATCH_MEMORY), id="ours"),
        pytest.param(f"cpu,memory,{BATCH_CPU},hugepages-2Mi", (BATCH_CPU,), id="what a node has besides"),
        pytest.param("a/b/c, /x,x/,\u00e4/b,a/" + "b" * 64, (), id="no names"),
        pytest.param(",".join(f"a/{n}" for n in range(100)), tuple(f"a/{n}" for n in range(64)), id="many"),
    ],
)
def test_names_in_an_annotation_are_extended_resources_and_bounded(annotation, names):
    assert names_of(annotation) == names
    assert names_of(annotation_of(names)) == tuple(sorted(names))


def test_why_explains_each_number():
    last = Published({BATCH_CPU: 3000, BATCH_MEMORY: GIB}, {BATCH_CPU: 1000, BATCH_MEMORY: GIB}, 0.0, 0.0, 0.0)
    assert why(offered(held="hot"), last, SETTINGS) == (
        f"{BATCH_CPU} 3000 (3.00 cores): what pods were promised, above 1.00 cores: because; "
        f"{BATCH_MEMORY} {GIB} (1.00 GiB): because; held: hot"
    )
    calm = why(offered(), last, SETTINGS)
    assert f"{BATCH_MEMORY} {GIB} (1.00 GiB): 8.00 GiB with the next report: because" in calm
    assert why(offered(withheld="off"), last, SETTINGS) == "0 of each, as nothing is lent: off"
    assert why(Offer({}), None, SETTINGS).startswith(f"{BATCH_CPU} not published yet: it is not measured")
