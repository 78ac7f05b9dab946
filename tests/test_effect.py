"""The effect benchmark's arithmetic: ratios to alone, intervals, what could have been seen, and when to stop."""

import math
import os
import random
import socket
import subprocess
import threading
from array import array
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

import pytest

from benchmarks.effect.arms import AGAIN, ALONE, DEFAULT, OFFLINE, QUICK, arms
from benchmarks.effect.claims import FEWEST_ROUNDS, MEASURES, enough, estimate, mean, ratios, student_t
from benchmarks.effect.offline import ASKED, MIX, WORKS, Work
from benchmarks.effect.online import Load
from benchmarks.effect.openloop import Connection, Memcached, Nginx, Protocol, Redis, arrivals, run
from benchmarks.effect.phase import LATE_RATIO, LATE_S, STOLEN_RATIO, Figures, is_by_evidence, why_void
from benchmarks.effect.report import EVERY, Scale, draw, kept, next_round, results, rows_of, told
from criproxy.config.settings import Cpu
from criproxy.control.evidence import CpuEvidence, bound_by_evidence
from criproxy.control.policy import DynamicSettings
from criproxy.hooks.batch import asked_by, of_pod
from criproxy.model import ResourceDecision, ResourcePrediction

ARM = "criproxy 0.9"


def round_of(alone: float, again: float, arm: float, work: str = "sort") -> Mapping[str, Mapping[str, object]]:
    about = {"server": "redis", "load": "50", "work": work}
    values = {ALONE: alone, AGAIN: again, ARM: arm}
    return {name: {**about, "p99": value} for name, value in values.items()}


def test_ratio_is_to_the_geometric_mean_of_both_phases_alone() -> None:
    assert ratios([round_of(1.0, 4.0, 3.0)], ARM, "p99") == [[pytest.approx(1.5)]]
    assert ratios([round_of(1.0, 4.0, 3.0)], AGAIN, "p99") == [[pytest.approx(4.0)]]


def test_ratio_may_be_to_another_arm() -> None:
    assert ratios([round_of(1.0, 4.0, 3.0)], ARM, "p99", (AGAIN,)) == [[pytest.approx(0.75)]]


def test_round_without_alone_or_without_the_value_tells_nothing() -> None:
    whole = round_of(1.0, 1.0, 2.0)
    assert ratios([{ARM: whole[ARM]}], ARM, "p99") == []
    assert ratios([{**whole, ARM: {**whole[ARM], "p99": None}}], ARM, "p99") == []
    assert estimate([]) is None


def test_estimate_is_a_geometric_mean_within_its_interval() -> None:
    found = estimate([[0.5, 2.0, 1.0, 1.0]])
    assert found is not None and found.low is not None and found.high is not None
    assert found.mean == pytest.approx(1.0)
    assert found.low < 1.0 < found.high == pytest.approx(1 / found.low)


def test_one_round_has_no_interval() -> None:
    found = estimate([[2.0]])
    assert found is not None and (found.mean, found.low, found.high, found.seen) == (
        pytest.approx(2.0),
        None,
        None,
        None,
    )


def test_each_cell_counts_the_same_and_its_own_mean_is_no_scatter() -> None:
    found = mean([[1.0, 1.0, 1.0, 1.0], [3.0, 3.0]])
    assert found is not None
    assert (found.mean, found.low, found.high, found.rounds) == (2.0, 2.0, 2.0, 6)


def test_scatter_of_a_cell_of_one_round_is_that_within_the_others() -> None:
    found = mean([[1.0, 3.0], [4.0, 4.0, 7.0], [5.0]])
    assert found is not None and found.high is not None
    pooled = (2.0 + 6.0) / 3  # of 1 + 2 degrees of freedom
    parts = {1: 2.0 / 2, 2: 3.0 / 3, 3: pooled}
    freedom = int(sum(parts.values()) ** 2 / sum(part**2 / freedom for freedom, part in parts.items()))
    assert (found.mean, found.freedom) == (pytest.approx(4.0), freedom)
    assert found.high - found.mean == pytest.approx(student_t(0.975, freedom) * math.sqrt(sum(parts.values())) / 3)


def test_where_no_cell_has_two_rounds_their_means_scatter() -> None:
    apart, alike = mean([[1.0], [2.0], [3.0]]), mean([[1.0, 2.0, 3.0]])
    assert apart is not None and alike is not None
    assert (apart.rounds, apart.freedom) == (alike.rounds, alike.freedom)
    assert (apart.low, apart.high) == (pytest.approx(alike.low), pytest.approx(alike.high))


def test_interval_over_unlike_cells_holds_the_truth_about_19_times_of_20() -> None:
    dice, held = random.Random(9), 0
    for _ in range(400):
        found = mean([[dice.gauss(1.0, 0.1) for _ in range(4)], [dice.gauss(9.0, 0.3) for _ in range(3)]])
        assert found is not None and found.low is not None and found.high is not None
        held += found.low <= 5.0 <= found.high
    assert 0.92 <= held / 400 <= 0.99


@pytest.mark.parametrize(
    ("probability", "freedom", "quantile"),
    [(0.975, 1, 12.706), (0.975, 2, 4.303), (0.975, 3, 3.182), (0.8, 4, 0.941), (0.95, 5, 2.015), (0.975, 30, 2.042)],
)
def test_students_quantiles_are_those_of_the_tables(probability: float, freedom: int, quantile: float) -> None:
    assert student_t(probability, freedom) == pytest.approx(quantile, abs=0.001)


def test_smallest_ratio_that_could_be_seen_is_told_from_1_four_times_of_five() -> None:
    dice, told_apart = random.Random(3), 0
    for _ in range(400):
        found = estimate([[math.exp(dice.gauss(0.0, 0.2)) for _ in range(6)]])
        assert found is not None and found.seen is not None
        there = estimate([[found.seen * math.exp(dice.gauss(0.0, 0.2)) for _ in range(6)]])
        assert there is not None and there.low is not None
        told_apart += there.low > 1.0
    assert 0.7 <= told_apart / 400 <= 0.88


@pytest.mark.parametrize("rounds", [3, 4, 6, 20])
def test_interval_holds_the_truth_about_19_times_of_20_however_few_the_rounds(rounds: int) -> None:
    dice, held, held_by_bootstrap = random.Random(5), 0, 0
    for _ in range(400):
        values = [math.exp(dice.gauss(math.log(1.2), 0.3)) for _ in range(rounds)]
        found = estimate([values])
        assert found is not None and found.low is not None and found.high is not None
        held += found.low <= 1.2 <= found.high
        means = sorted(fmean(dice.choices([math.log(value) for value in values], k=rounds)) for _ in range(200))
        held_by_bootstrap += means[4] <= math.log(1.2) <= means[195]
    assert 0.92 <= held / 400 <= 0.98
    if rounds <= 4:
        assert held_by_bootstrap / 400 < 0.88


def test_rounds_are_enough_when_each_arm_is_known_well_enough() -> None:
    steady = [round_of(1.0, 1.0, 1.0)] * FEWEST_ROUNDS
    noisy = [round_of(1.0, 1.0, arm) for arm in (0.5, 1.0, 2.0) * FEWEST_ROUNDS]
    assert enough(steady, [ARM], 1.05)
    assert not enough(steady[:-1], [ARM], 1.05)
    assert not enough(noisy, [ARM], 1.05)
    assert not enough(steady, [ARM, "another"], 1.05)
    of_many_works = [round_of(1.0, 1.0, 1.0, work) for work in "abcde"] + [round_of(1.0, 1.0, 1.0, "a")]
    assert not enough(of_many_works, [ARM], 1.05), "two that are alike may be so by chance"


def test_next_round_is_of_what_is_known_least_in_earlier_runs_too_until_all_is_known_well_enough() -> None:
    wanted = Scale(6.0, ("20", "80"), ("redis",), ("compress", "sort"), (ARM,), 600.0, 2)
    rows: list[dict[str, object]] = []

    def measure(load: str, work: str) -> None:
        number = len(rows)
        about = {"round": str(number), "server": "redis", "load": load, "work": work}
        rows.extend({**about, "arm": arm, "p99": 1.0, "void": ""} for arm in (ALONE, AGAIN, ARM))

    measured: list[tuple[str, str]] = []
    while (combo := next_round(rows, "redis", wanted)) and len(measured) < 100:
        measured.append(combo)
        measure(*combo)

    assert sorted(measured[:4]) == [("20", "compress"), ("20", "sort"), ("80", "compress"), ("80", "sort")]
    assert len(measured) == 2 * (FEWEST_ROUNDS + 1)  # of each load, five degrees of freedom over its two works
    assert next_round(rows, "memcached", wanted) is not None


def test_load_whose_phases_are_void_leaves_the_others_their_turn() -> None:
    wanted = Scale(6.0, ("20", "80"), ("redis",), ("compress",), (ARM,), 600.0, 2)
    rows: list[dict[str, object]] = []
    measured = []
    for number in range(6):
        combo = next_round(rows, "redis", wanted)
        assert combo is not None
        measured.append(combo[0])
        about = {"round": str(number), "server": "redis", "load": combo[0], "work": combo[1]}
        rows += [{**about, "arm": ALONE, "p99": 1.0, "void": "late"} for _ in range(2)]
    assert measured == ["20", "80"] * 3


def test_arrivals_come_at_the_rate_of_their_segment() -> None:
    due = arrivals([(100.0, 10.0), (1000.0, 10.0)], 5.0, seed=1)
    first = [at_s for at_s in due if at_s < 15.0]
    assert due == sorted(due)
    assert due[0] > 5.0 and due[-1] < 25.0
    assert len(first) == pytest.approx(1000, rel=0.15)
    assert len(due) - len(first) == pytest.approx(10_000, rel=0.05)


def test_arms_of_a_round_get_the_same_arrivals() -> None:
    assert arrivals([(100.0, 5.0)], 0.0, seed=7) == arrivals([(100.0, 5.0)], 0.0, seed=7)
    assert arrivals([(100.0, 5.0)], 0.0, seed=7) != arrivals([(100.0, 5.0)], 0.0, seed=8)


def test_phase_is_void_when_the_schedule_was_not_kept_or_the_cpu_was_taken_away() -> None:
    def load(late_s: float) -> Load:
        return Load(array("f", [0.01] * 200), late_s, 0.0)

    assert why_void(load(0.0099 * LATE_RATIO), STOLEN_RATIO) == ""
    assert why_void(Load(array("f", [0.0002] * 200), LATE_S, 0.0), 0.0) == ""
    assert why_void(load(0.002), 0.0) == "the generator was 2.00 ms late, for a p99 of 10.00"
    assert why_void(load(0.0), 0.034) == "other virtual machines took 3.4 % of the CPU that was wanted"


@pytest.mark.parametrize(
    ("protocol", "answer"),
    [
        (Redis(), b"*10\r\n" + b"$2\r\n10\r\n" * 10),
        (Memcached(), b"VALUE k0 0 4\r\nxxxx\r\nEND\r\n"),
        (Nginx(), b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"),
    ],
    ids=["redis", "memcached", "nginx"],
)
def test_answers_are_counted_however_they_are_cut(protocol: Protocol, answer: bytes) -> None:
    data, counted, tail = answer * 3, 0, b""
    for at in range(0, len(data), 3):
        part = tail + data[at : at + 3]
        found, tail = protocol.count(part + protocol.mark, len(part))
        counted += found
    assert counted == 3


def test_generator_goes_on_beside_a_server_that_reads_no_more_before_its_answers_are_read(tmp_path: Path) -> None:
    path, protocol = str(tmp_path / "server.sock"), Memcached()
    protocol.request = b"q" * 65536 + b"\r\n"
    answer = b"a" * 65536 + protocol.mark

    def serve() -> None:
        server, data = listening.accept()[0], b""
        while got := server.recv(1 << 20):
            requests = (data + got).split(b"\r\n")
            data = requests.pop()
            server.sendall(answer * len(requests))

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        threading.Thread(target=serve, daemon=True).start()
        connection = Connection(path, protocol)
        latencies, _, unanswered = run([connection], [(20_000.0, 0.01)], seed=1)
        connection.socket.close()

    assert (len(latencies), unanswered) == (len(arrivals([(20_000.0, 0.01)], 0.0, seed=1)), 0)


def test_pod_pinned_by_hand_keeps_what_it_starts_on_one_cpu(tmp_path: Path) -> None:
    work = Work("count", 3)
    cpus = sorted(os.sched_getaffinity(0))
    for *taskset, script in work.commands(pinned=True):
        once = script.replace(WORKS["count"], f"nproc >>{tmp_path}/seen").replace("while :", "for once in 1")
        subprocess.run([*taskset, once.replace("/data/", f"{tmp_path}/")], check=True, timeout=30)
    assert (tmp_path / "seen").read_text().split() == ["1"] * 3
    assert work.done(tmp_path) == {"count": 3}
    assert [command[2] for command in work.commands(pinned=True)] == [str(cpus[n % len(cpus)]) for n in range(3)]


def test_each_pod_asks_for_one_cpu_and_a_mix_has_one_of_each_kind() -> None:
    asked = of_pod(asked_by(ASKED))
    assert (asked.cpu_shares, asked.cpu_limit_millicores) == (1024, 1000)
    commands = Work(MIX, 2).commands(pinned=False)
    assert [any(f"done.{kind}." in command[-1] for command in commands) for kind in WORKS] == [True] * len(WORKS)
    assert len(commands) == len(WORKS)


# --- what is told -----------------------------------------------------------------------------------------------------


def figures(latencies_s: list[float], *, work_per_s: float | None = None, void: str = "") -> Figures:
    return Figures(
        latencies_s=array("f", latencies_s),
        settled_s=8.0,
        online_cpu_s_per_request=0.001,
        online_wait_s_per_request=0.0,
        online_cores=0.4,
        offline_cores=0.8,
        agent_cores=0.1,
        generator_cores=0.5,
        idle_cores=0.1,
        stolen_cores=0.0,
        others_cores=0.0,
        work_per_s=None if work_per_s is None else {"sort": work_per_s},
        late_s=0.0,
        unanswered=0,
        bound="",
        void=void,
    )


def test_criproxys_own_cpu_is_no_use_of_the_node_and_the_generator_is_not_of_it() -> None:
    ((_, row),) = rows_of([(ARM, figures([0.001] * 10, work_per_s=1.0))], cores=2)
    assert row["left_ratio"] == pytest.approx(0.8 / 1.0)
    assert row["node_ratio"] == pytest.approx(1.2 / 1.5)


def test_arm_that_does_no_piece_has_a_rate_of_0_and_one_without_work_none() -> None:
    phases = [(OFFLINE, figures([], work_per_s=4.0)), (ARM, figures([], work_per_s=0.0)), (ALONE, figures([]))]
    rows = dict(rows_of(phases, cores=2))
    assert [rows[name]["work_ratio"] for name in (ARM, ALONE)] == [0.0, None]
    assert [rows[name]["left_ratio"] for name in (ARM, ALONE)] == [pytest.approx(0.8), None]


def test_offlines_rate_is_to_its_own_in_the_same_round_and_the_slow_are_counted_by_alone_s_tail() -> None:
    fast, slow = [0.001] * 990 + [0.01] * 10, [0.001] * 900 + [0.1] * 100
    phases = [
        (ALONE, figures(fast)),
        (OFFLINE, figures([], work_per_s=4.0)),
        (ARM, figures(slow, work_per_s=3.0)),
        (AGAIN, figures(fast)),
    ]
    rows = dict(rows_of(phases, cores=2))
    assert (rows[ARM]["work_ratio"], rows[OFFLINE]["work_ratio"]) == (0.75, 1.0)
    assert rows[ARM]["slow_ratio"] == pytest.approx(0.1)
    assert rows[OFFLINE]["p99"] is None
    unknown = dict(rows_of([*phases[:1], (OFFLINE, figures([], work_per_s=4.0, void="late")), *phases[2:]], cores=2))
    assert (unknown[ARM]["work_ratio"], unknown[OFFLINE]["void"]) == (None, "late")


def test_quantile_with_hardly_a_slower_request_is_not_told() -> None:
    ((_, row),) = rows_of([(ARM, figures([0.001] * 1000))], cores=2)
    assert (row["p99"], row["p999"]) == (pytest.approx(0.001), None)


def told_rows(server: str, number: int, **p99s: float) -> list[dict[str, object]]:
    """A round of an arm, of the default and of online alone. Underscores in the names stand for blanks."""
    measured = dict.fromkeys((*MEASURES, "node_ratio", "left_ratio", "work_ratio", "slow_ratio"), 1.0)
    zero = dict.fromkeys(("stolen_ratio", "others_ratio", "generator_cores", "agent_cores", "late_s"), 0.0)
    about = {"server": server, "load": "50", "work": "mix", "round": f"{server} {number}", "knee": 100.0}
    about["beyond_knee"] = "at 110 requests/s p99 is 21 ms"
    return [
        {
            **about,
            **measured,
            **zero,
            "unanswered": 0,
            "bound": "",
            "void": "",
            "arm": arm.replace("_", " "),
            "p99": p99,
        }
        for arm, p99 in p99s.items()
    ]


def test_losing_arms_the_noise_and_void_phases_are_told() -> None:
    rows = [row for n in range(3) for row in told_rows("redis", n, alone=1.0, alone_again=1.0 + n / 10, loser=7.0)]
    rows += [{**rows[-1], "void": "the generator was late", "p99": 1000.0}]
    rows += [{**rows[0], "round": "redis 9", "void": "stolen"}] * 2
    rows += [{**told_rows("redis", 0, x=1.0)[0], "arm": DEFAULT, "bound": "rises by strides"}]
    text = told(rows)
    assert "6.68 [" in text
    assert "could see" in text
    assert "void: redis at 50, mix, loser: the generator was late (it was measured again)" in text
    assert text.count("void: redis at 50, mix, alone: stolen (again, too)") == 2
    assert f'"{DEFAULT}" as ratio to "loser": work 1.00, p50 1.00, p95 1.00, p99 0.14' in text
    assert f"{DEFAULT}: 1 of 1 phases did not end by evidence: rises by strides" in text
    assert "its knee is 100 requests/s, as at 110 requests/s p99 is 21 ms" in text
    assert {(one.arm, one.voids) for one in results(rows)} == {(ALONE, 2), (AGAIN, 0), (DEFAULT, 0), ("loser", 1)}


def test_what_is_not_known_is_told_and_drawn_as_a_gap(tmp_path: Path) -> None:
    rows = told_rows("postgresql", 0, alone=1.0, alone_again=1.0, offline_alone=1.0)
    unknown = dict.fromkeys(("p50", "p95", "p99", "p999", "work_ratio", "slow_ratio", "others_ratio", "late_s"))
    text = told([{**row, **unknown} for row in rows])
    assert "the generator used 0.00 of its CPU at most and does not say how late it was" in text
    draw(tmp_path / "effect.svg", rows)
    assert "</svg>" in (tmp_path / "effect.svg").read_text()


def test_rounds_of_all_servers_and_loads_are_told_together_too() -> None:
    rows = [
        row
        for server, base in {"redis": 1.0, "memcached": 100.0}.items()
        for n in range(2)
        for row in told_rows(server, n, alone=base, alone_again=base, loser=2.0 * base)
    ]
    together = next(one for one in results(rows) if (one.server, one.arm) == (EVERY, "loser"))
    claim = together.claims["p99"]
    assert claim is not None
    assert (claim.rounds, claim.mean) == (4, pytest.approx(2.0))


def test_over_all_only_what_each_arm_was_measured_beside_counts() -> None:
    rows = [row for n in range(2) for row in told_rows("redis", n, alone=1.0, alone_again=1.0, loser=2.0, other=1.0)]
    rows += told_rows("memcached", 0, alone=1.0, alone_again=1.0, loser=9.0)
    together = {one.arm: one.claims["p99"] for one in results(rows) if one.server == EVERY and one.claims}
    assert together["loser"] is not None
    assert (together["loser"].rounds, together["loser"].mean) == (2, pytest.approx(2.0))


def test_servers_that_no_arm_was_measured_beside_alike_are_not_told_together(tmp_path: Path) -> None:
    rows = told_rows("redis", 0, alone=1.0, alone_again=1.0, loser=2.0)
    rows += told_rows("memcached", 0, alone=1.0, alone_again=1.0, other=3.0)
    assert EVERY not in {one.server for one in results(rows)}
    draw(tmp_path / "effect.svg", rows)
    assert "redis at 50 % of its knee: loser" in (tmp_path / "effect.svg").read_text()


@pytest.mark.parametrize(
    ("line", "commit", "why"),
    [
        ('{"cpus": 99, "commit": "abc"}', "abc", r"effect\.jsonl, line 1: cpus is 99 there, and 2 now\..*another file"),
        ('{"cpus": 2, "comm', "abc", r"effect\.jsonl, line 1: no row, but .*remove the line"),
        ('{"cpus": 2, "commit": "abc"}', "abc-dirty", "changes that are not committed"),
    ],
    ids=["measured-otherwise", "half-a-line", "changed-checkout"],
)
def test_rows_that_can_t_be_told_with_new_ones_are_refused(tmp_path: Path, line: str, commit: str, why: str) -> None:
    state = tmp_path / "effect.jsonl"
    state.write_text(f"{line}\n")
    with pytest.raises(SystemExit, match=why):
        list(kept(state, {"cpus": 2, "commit": commit}))


def test_rows_that_were_measured_alike_are_kept(tmp_path: Path) -> None:
    state = tmp_path / "effect.jsonl"
    assert list(kept(None, {"cpus": 2, "commit": "abc-dirty"})) == list(kept(state, {"cpus": 2, "commit": "abc"})) == []
    state.write_text('{"cpus": 2, "commit": "abc", "p99": 1.5}\n')
    assert list(kept(state, {"cpus": 2, "commit": "abc"})) == [{"cpus": 2, "commit": "abc", "p99": 1.5}]


# --- the arms ---------------------------------------------------------------------------------------------------------


def test_quick_run_has_known_arms_and_those_by_evidence_differ_in_pinning_alone() -> None:
    known = arms(2)
    assert set(QUICK) <= known.keys()
    by_evidence = [known[name] for name in QUICK if known[name].by_evidence]
    assert [one.config["cpuset"]["pin_pods"] for one in by_evidence] == [True, False]
    assert [dict(one.config["cpu"]) for one in by_evidence] == [{"bound": "evidence"}] * 2, "the watermark's default"
    assert Cpu(**by_evidence[0].config["cpu"]).bound == "evidence"


@pytest.mark.parametrize(
    ("seen_s", "share", "is_so"),
    [(1.0, None, True), (1.0, 1.0, True), (1.0, 0.0, True), (None, None, False)],
    ids=["open", "prediction", "floor", "not-seen"],
)
def test_phase_is_by_evidence_where_criproxy_says_so(seen_s: float | None, share: float | None, is_so: bool) -> None:
    law = DynamicSettings(floor=0.1)
    decided = ResourceDecision(1.0, "held at 1.00 cores: by the law", law.bounds, ResourcePrediction(0.5), 1.0)
    found = bound_by_evidence(decided, law, CpuEvidence(2.0, True, seen_s, share))
    assert is_by_evidence(found.reason) is is_so
