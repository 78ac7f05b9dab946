"""What each part is set to, by the config, the schedule and how the daemon was started."""

from typing import Literal

import pytest
from msgspec.structs import replace

from criproxy.cgroup.resctrl import CacheLimits
from criproxy.config import Config
from criproxy.config.settings import (
    Colocation,
    Control,
    Cpu,
    Cpuset,
    Guard,
    Interference,
    Io,
    Kubernetes,
    Memory,
    Network,
)
from criproxy.control.guardlaw import GuardLaw
from criproxy.control.interference.detectors import DETECTORS, by_name
from criproxy.control.interference.ladder import LOOK_S, LadderSettings, doubled_s, phases
from criproxy.control.policy import DynamicSettings, StaticSettings, safe_limits
from criproxy.daemon import settings as of
from criproxy.daemon.settings import Timetable
from criproxy.hooks import HookSettings, offline_chain
from criproxy.hooks.bandwidth import Bandwidth
from criproxy.hooks.hardening import Hardening
from criproxy.model import CPU, MEMORY
from criproxy.model.modes import LimitsUse, Mode, NewPod
from criproxy.pods.cache_share import cache_asked
from criproxy.pods.cpu_pinning import pinning_asked
from criproxy.pods.disk_bounds import DisksUse
from criproxy.pods.disk_keeping import keeper_asked
from criproxy.pods.interference import answer_asked
from criproxy.pods.part import NodeSettings, Stage
from criproxy.pods.pod_stops import all_leave
from criproxy.pods.policy_settings import loop_settings, policy, predictor
from criproxy.pods.proactive_reclaim import reclaim_asked
from criproxy.pods.service_checks import ServiceChecksSettings
from criproxy.pods.stopping import ON_HARM, ON_OVER_LIMIT, ON_STARVED, ON_UNBOUNDED
from criproxy.vocabulary.unboundable import HOST_PATHS

GIB = 1 << 30


def guard(config: Config) -> GuardLaw | None:
    config = replace(config, colocation=Colocation(enabled=True))
    return of.guard(NodeSettings(config, Stage(policy(config)), False, False))


def settings(colocation: Colocation, pass_through: bool = False, dry_run: bool = False) -> NodeSettings:
    config = Config(colocation=colocation)
    return NodeSettings(config, Timetable(config).stage(0.0), pass_through, dry_run)


def when_off(now: NodeSettings) -> str | None:
    """What becomes of the pods in the box; None: nothing."""
    return "release" if now.lifts else "evict" if all_leave(now) else None


@pytest.mark.parametrize(
    ("given", "evicts"),
    [
        pytest.param(settings(Colocation(enabled=True, on_unbounded="evict")), True, id="on"),
        pytest.param(settings(Colocation(enabled=True)), False, id="by-default"),
        pytest.param(settings(Colocation(on_unbounded="evict")), False, id="off"),
        pytest.param(settings(Colocation(enabled=True, on_unbounded="evict"), dry_run=True), False, id="dry-run"),
        pytest.param(settings(Colocation(enabled=True, on_unbounded="evict"), True), False, id="pass-through"),
    ],
)
def test_misplaced_pods_are_evicted_only_where_the_config_says_so_and_the_box_is_ours(
    given: NodeSettings, evicts: bool
) -> None:
    assert (ON_UNBOUNDED in given.stops_by) == evicts


def test_limits_of_a_bad_config_are_those_of_the_dynamic_policy_at_its_defaults_and_a_dry_run_has_none() -> None:
    """The salvaged config may say static, with limits meant for a night."""
    config = Config(control=Control(policy="static"), cpu=Cpu(static_cores=64.0), memory=Memory(static_bytes=1 << 38))
    bad = NodeSettings(config, Timetable(config).stage(0.0), pass_through=True, dry_run=False)
    safe = policy(Config())
    assert loop_settings(bad).policy.resources == safe.resources
    assert (loop_settings(bad).kept_by, bad.adopts, when_off(bad)) == (None, True, None)
    assert not bad.modes.writes
    assert of.guard(bad) is None
    dry = replace(bad, dry_run=True)
    assert (loop_settings(dry).kept_by, dry.adopts) == (Mode.DRY_RUN, False)


@pytest.mark.parametrize(
    ("config", "dry_run", "active", "stops_by"),
    [
        pytest.param(
            Config(colocation=Colocation(enabled=True)),
            False,
            True,
            {ON_OVER_LIMIT, ON_HARM, ON_STARVED},
            id="by-default",
        ),
        pytest.param(
            Config(colocation=Colocation(enabled=True), memory=Memory(on_over_limit="report")),
            False,
            True,
            {ON_HARM, ON_STARVED},
            id="report",
        ),
        pytest.param(
            Config(colocation=Colocation(enabled=True), interference=Interference(on_harm="close")),
            False,
            True,
            {ON_OVER_LIMIT, ON_STARVED},
            id="close",
        ),
        pytest.param(
            Config(colocation=Colocation(enabled=True), kubernetes=Kubernetes(on_starved="report")),
            False,
            True,
            {ON_OVER_LIMIT, ON_HARM},
            id="starved-report",
        ),
        pytest.param(Config(), False, False, set(), id="off"),
        pytest.param(Config(colocation=Colocation(enabled=True)), True, False, set(), id="dry-run"),
    ],
)
def test_memory_is_relieved_by_default_wherever_the_box_is_ours(
    config: Config, dry_run: bool, active: bool, stops_by: set[str]
) -> None:
    parts = NodeSettings(config, Timetable(config).stage(0.0), False, dry_run)
    assert (parts.modes.writes, parts.stops_by) == (active, stops_by)


ALWAYS = Stage(policy(Config()))
CLOSED = Stage(policy(Config()), closed="the schedule is off", drain=True)
ON, OFF = Config(colocation=Colocation(enabled=True)), Config()


@pytest.mark.parametrize(
    ("given", "modes", "expected"),
    [
        pytest.param((ON, ALWAYS, False, False), set(), (1, 0, 1, 1, None, 1), id="on"),
        pytest.param((OFF, ALWAYS, False, False), {Mode.DISABLED}, (0, 0, 0, 0, "release", 1), id="off"),
        pytest.param((ON, ALWAYS, False, True), {Mode.DRY_RUN}, (1, 1, 0, 0, None, 0), id="dry"),
        pytest.param((ON, ALWAYS, True, False), {Mode.PASS_THROUGH}, (0, 0, 1, 0, None, 1), id="pass"),
        pytest.param((OFF, ALWAYS, True, False), {Mode.PASS_THROUGH}, (0, 0, 1, 0, None, 1), id="bad-and-off"),
        pytest.param((ON, CLOSED, False, False), {Mode.CLOSED}, (1, 0, 1, 1, "evict", 1), id="closed"),
        pytest.param((OFF, ALWAYS, False, True), {Mode.DISABLED, Mode.DRY_RUN}, (0, 1, 0, 0, None, 0), id="off-dry"),
        pytest.param((ON, ALWAYS, True, True), {Mode.PASS_THROUGH, Mode.DRY_RUN}, (0, 1, 0, 0, None, 0), id="bad-dry"),
        pytest.param((ON, CLOSED, False, True), {Mode.CLOSED, Mode.DRY_RUN}, (1, 1, 0, 0, None, 0), id="closed-dry"),
        pytest.param((OFF, CLOSED, False, False), {Mode.CLOSED, Mode.DISABLED}, (0, 0, 0, 0, "release", 1), id="shut"),
        pytest.param((ON, CLOSED, True, False), {Mode.CLOSED, Mode.PASS_THROUGH}, (0, 0, 1, 0, None, 1), id="bad-shut"),
    ],
)
def test_parts_do_what_the_table_of_modes_says(
    given: tuple[Config, Stage, bool, bool], modes: set[Mode], expected: tuple[object, ...]
) -> None:
    """Whether pods are judged, that is only told, limits are applied, the box is criproxy's, and taken over at all."""
    config, stage, pass_through, dry_run = given
    parts = NodeSettings(config, stage, pass_through, dry_run)
    assert set(parts.modes.why) == modes
    owners = {bool(one) for one in (of.guard(parts), parts.relieves, parts.modes.writes)}
    intercept, (writes,) = of.admission(parts), owners
    applies = loop_settings(parts).kept_by is None
    found = (intercept.enabled, intercept.dry_run, applies, writes, when_off(parts), parts.adopts)
    assert found == expected
    assert (parts.modes.new_pod is NewPod.REFUSED) == (intercept.enabled and not dry_run and stage is CLOSED)
    assert (parts.modes.limits is LimitsUse.KEPT) == dry_run


def test_policy_of_the_default_config_is_dynamic_with_the_floors() -> None:
    found = policy(Config())
    assert isinstance(found.resources["cpu"], DynamicSettings)
    assert isinstance(found.resources["memory"], DynamicSettings)
    assert (found.resources["cpu"].floor, found.resources["memory"].floor) == (0.1, 128 << 20)
    assert (found.resources["cpu"].ceiling, found.resources["memory"].ceiling) == (None, None)


def test_guard_keeps_to_the_cpus_floor_watermark_and_reserve() -> None:
    config = Config(cpu=Cpu(watermark_ratio=0.7, min_cores=0.5, reserve_cores=1.5), guard=Guard(hold_s=9.0))
    assert guard(config) == GuardLaw(0.5, 0.7, 1.5, 9.0)


def test_guard_holds_until_the_second_tick_at_least() -> None:
    law = guard(Config(control=Control(interval_s=10.0)))
    assert law is not None
    assert law.hold_s == 20.0


def test_guard_that_is_switched_off_has_no_law() -> None:
    assert guard(Config(guard=Guard(enabled=False))) is None


def test_policy_takes_each_resource_s_own_values() -> None:
    config = Config(
        cpu=Cpu(watermark_ratio=0.7, min_cores=0.5, max_cores=3.0, static_cores=9.0),
        memory=Memory(watermark_ratio=0.6, min_bytes=GIB, max_bytes=4 * GIB, static_bytes=9 * GIB),
        control=Control(raise_threshold_ratio=0.2, raise_after_s=7.0),
    )
    values = [
        (r.floor, r.ceiling, r.watermark_ratio, r.raise_threshold_ratio, r.raise_after_s)
        for r in (policy(config).resources["cpu"], policy(config).resources["memory"])
        if isinstance(r, DynamicSettings)
    ]
    assert values == [(0.5, 3.0, 0.7, 0.2, 7.0), (GIB, 4 * GIB, 0.6, 0.2, 7.0)]


def test_policy_static_is_the_static_limits_also_before_the_first_decision() -> None:
    config = Config(cpu=Cpu(static_cores=1.5), memory=Memory(static_bytes=GIB), control=Control(policy="static"))
    found = policy(config)
    assert isinstance(found.resources["cpu"], StaticSettings)
    assert isinstance(found.resources["memory"], StaticSettings)
    safe = safe_limits(found)
    assert (safe["cpu"], safe["memory"]) == (1.5, GIB)


@pytest.mark.parametrize(("interval_s", "horizon_s"), [(0.1, 60.0), (20.0, 60.0), (60.0, 180.0)])
def test_predictor_looks_ahead_a_minute_or_three_ticks(interval_s: float, horizon_s: float) -> None:
    assert predictor(Config(control=Control(interval_s=interval_s))).horizon_s == horizon_s


def test_predictor_takes_the_config_s_values() -> None:
    control = replace(Control(), predictor="calibrated", half_life_s=5.0, percentile=0.75)
    found = predictor(Config(control=control))
    assert (found.kind, found.half_life_s, found.percentile_ratio) == ("calibrated", 5.0, 0.75)


def test_numbers_of_the_ladder_are_the_issues_by_default_and_those_of_the_config() -> None:
    at_once = Config(interference=Interference(evict_after_s=7.0, evict_after_memory_s=3.0, evict_most=2, trial_s=4.0))
    default, set_so = (
        answer_asked(NodeSettings(config, Timetable(config).stage(0.0), False, False)) for config in (Config(), at_once)
    )

    assert (default.ladder.evict_after_s, default.ladder.shortage_evict_after_s) == (120.0, 5.0)
    assert {one.name for one in default.ladder.resources} == {"memory", "cpu", "io"}
    assert replace(default.ladder, resources=()) == LadderSettings(resources=())
    assert (set_so.ladder.evict_after_s, set_so.ladder.shortage_evict_after_s) == (7.0, 3.0)
    assert set_so.ladder.budget.most == 2


def test_box_is_closed_for_as_long_as_is_asked_for_also_where_the_most_is_less() -> None:
    config = Config(interference=Interference(open_after_s=1800.0))
    ladder = answer_asked(NodeSettings(config, Timetable(config).stage(0.0), False, False)).ladder

    assert doubled_s(ladder.closed_calm_s, 1, ladder.longest_calm_s) == 1800.0


@pytest.mark.parametrize(("trial_s", "found"), [(2.0, (2.0, 10.0)), (3.0, (3.0, 10.0)), (30.0, (30.0, 30.0))])
def test_phases_for_what_a_service_says_take_as_long_as_is_set_and_on_memory_longer(trial_s, found) -> None:
    config = Config(interference=Interference(trial_s=trial_s))
    ladder = answer_asked(NodeSettings(config, Timetable(config).stage(0.0), False, False)).ladder
    detectors, rows = by_name(DETECTORS), {one.name: one for one in ladder.resources}
    service = detectors["service_check"]
    assert tuple(phases(rows[name], service, ladder).shortest_s for name in (CPU, MEMORY)) == found
    for found_so in (phases(rows[name], service, ladder) for name in (CPU, MEMORY)):
        assert 1 + (found_so.longest_s - found_so.shortest_s) / LOOK_S >= 3, "one length could be told"
    assert phases(rows[CPU], detectors["cpu_pressure"], ladder).shortest_s == 1.0


@pytest.mark.parametrize(("bound", "on", "by_evidence"), [
    ("prediction", True, False), ("evidence", True, True), ("evidence", False, False),
])  # fmt: skip
def test_cpu_is_bound_by_evidence_where_the_config_says_so_and_the_box_is_ours(bound, on, by_evidence) -> None:
    config = Config(colocation=Colocation(enabled=on), cpu=Cpu(bound=bound))
    now = NodeSettings(config, Timetable(config).stage(0.0), False, False)
    assert loop_settings(now).cpu_by_evidence is by_evidence


@pytest.mark.parametrize("child_quota", [True, False])
def test_chain_is_built_with_the_settings_of_the_config_that_holds(child_quota: bool) -> None:
    config = Config(network=Network(max_egress_bits_per_s=1000))
    before, after = (
        of.placing(NodeSettings(one, Timetable(one).stage(0.0), False, False), child_quota=child_quota)
        for one in (Config(), config)
    )

    hardening = Hardening(refuse_host_paths=(*HOST_PATHS, "/run/containerd", "/run/criproxy"))
    assert before.chain == offline_chain(HookSettings(child_quota, hardening=hardening))
    assert after.chain == offline_chain(HookSettings(child_quota, Bandwidth(egress=1000), hardening))


def test_while_criproxy_is_held_off_the_box_only_what_keeps_kubelet_from_evicting_online_pods_goes_on() -> None:
    given = settings(Colocation(enabled=True, on_unbounded="evict", on_runtime_overload="evict"))
    held_off = replace(given, held_off="an operator holds criproxy off the box: repair")
    admission = of.admission(held_off)
    assert (admission.enabled, admission.dry_run, admission.closed) == (True, False, held_off.held_off)
    assert of.box(held_off).hands_off
    assert loop_settings(held_off).kept_by is Mode.HELD_OFF
    assert of.guard(held_off) is None
    assert held_off.stops_by == {ON_OVER_LIMIT}
    assert held_off.relieves
    assert (when_off(held_off), held_off.adopts) == (None, True)
    assert not of.box(given).hands_off


def test_hold_off_stops_nothing_that_a_dry_run_or_a_switch_that_is_off_would_not() -> None:
    for one in (settings(Colocation(enabled=True), dry_run=True), settings(Colocation(enabled=False))):
        held_off = replace(one, held_off="repair")
        assert (held_off.relieves, held_off.stops_by, when_off(held_off)) == (False, frozenset(), None)
        assert held_off.modes.new_pod is one.modes.new_pod


def test_memory_is_taken_back_where_it_is_asked_for_and_the_box_is_criproxys_to_change() -> None:
    asked = Config(colocation=Colocation(enabled=True), memory=Memory(proactive_reclaim=True))
    on = NodeSettings(asked, settings(asked.colocation).stage, pass_through=False, dry_run=False)

    assert reclaim_asked(on)
    assert not reclaim_asked(replace(on, config=Config(colocation=asked.colocation)))
    for other in (
        replace(on, held_off="repair"),
        replace(on, dry_run=True),
        replace(on, pass_through=True),
        replace(on, config=Config(memory=asked.memory)),
    ):
        assert not reclaim_asked(other)


def test_pods_are_pinned_while_the_box_is_criproxys_and_freed_as_its_limits_are_lifted() -> None:
    asked = Config(colocation=Colocation(enabled=True))
    on = NodeSettings(asked, settings(asked.colocation).stage, pass_through=False, dry_run=False)

    assert pinning_asked(on) is True
    assert (
        pinning_asked(replace(on, config=Config(colocation=asked.colocation, cpuset=Cpuset(pin_pods=False)))) is False
    )
    assert pinning_asked(replace(on, config=Config(colocation=Colocation(on_disable="release")))) is False
    evicts = replace(on, config=Config(colocation=Colocation(on_disable="evict")))
    for other in (evicts, replace(on, held_off="repair"), replace(on, dry_run=True), replace(on, pass_through=True)):
        assert pinning_asked(other) is None


def test_disks_are_switched_while_the_box_is_criproxys_and_put_back_as_its_limits_are_lifted() -> None:
    asked = Config(colocation=Colocation(enabled=True), io=Io(weight="io.cost"))
    on = NodeSettings(asked, settings(asked.colocation).stage, pass_through=False, dry_run=False)

    assert keeper_asked(on) == "io.cost"
    assert keeper_asked(replace(on, config=Config(colocation=asked.colocation))) == "leave"
    for on_disable in ("release", "evict"):
        off = Config(colocation=Colocation(on_disable=on_disable), io=asked.io)
        assert keeper_asked(replace(on, config=off)) == "leave", "colocation is off"
    for other in (replace(on, held_off="repair"), replace(on, dry_run=True), replace(on, pass_through=True)):
        assert keeper_asked(other) is None


@pytest.mark.parametrize(
    ("trial_s", "measured_s"), [(3.0, 2.0), (30.0, 25.0)], ids=["by-default-cpu", "the-longest-memory"]
)
def test_services_are_asked_only_what_the_shortest_experiment_can_measure(trial_s: float, measured_s: float) -> None:
    given = replace(settings(Colocation(enabled=True)), config=Config(interference=Interference(trial_s=trial_s)))

    assert ServiceChecksSettings.of(given).measured_s == measured_s


@pytest.mark.parametrize(
    ("on_disable", "disks", "cache"),
    [("release", DisksUse.LIFTED, CacheLimits()), ("evict", DisksUse.LEFT, None)],
)
def test_pods_that_are_to_be_stopped_as_colocation_is_off_stay_bounded_until_they_have_gone(
    on_disable: Literal["release", "evict"], disks: DisksUse, cache: CacheLimits | None
) -> None:
    """As with CPU and memory: a disruption budget may keep them for long, and nobody looks for harm meanwhile."""
    off = settings(Colocation(on_disable=on_disable))

    assert (answer_asked(off).disks, cache_asked(off)) == (disks, cache)
