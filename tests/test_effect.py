"""The effect benchmark's arithmetic: ratios to alone, intervals, what could have been seen, and when to stop."""

import math
import os
import random
import socket
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.effect.arms import AGAIN, ALONE, QUICK, arms
from benchmarks.effect.claims import FEWEST_ROUNDS, MEASURES, enough, estimate, ratios
from benchmarks.effect.offline import ASKED, MIX, WORKS, Work
from benchmarks.effect.openloop import Connection, Memcached, Nginx, Protocol, Redis, arrivals, run
from benchmarks.effect.phase import LATE_S, STOLEN_RATIO, not_by_evidence, why_void
from benchmarks.effect.report import EVERY, Scale, next_round, results, told
from criproxy.config.settings import Cpu
from criproxy.control.evidence import CpuEvidence, bound_by_evidence
from criproxy.control.policy import DynamicSettings
from criproxy.hooks.batch import asked_by, of_pod
from criproxy.model import ResourceDecision, ResourcePrediction

ARM = "criproxy 0.9"


def round_of(alone: float, again: float, arm: float) -> Mapping[str, Mapping[str, float]]:
    return {ALONE: {"p99": alone}, AGAIN: {"p99": again}, ARM: {"p99": arm}}


def test_ratio_is_to_the_geometric_mean_of_both_phases_alone() -> None:
    assert ratios([round_of(1.0, 4.0, 3.0)], ARM, "p99") == [pytest.approx(1.5)]
    assert ratios([round_of(1.0, 4.0, 3.0)], AGAIN, "p99") == [pytest.approx(4.0)]


def test_round_without_alone_tells_nothing() -> None:
    assert ratios([{ARM: {"p99": 1.0}}], ARM, "p99") == []
    assert estimate([]) is None


def test_estimate_is_a_geometric_mean_within_its_interval() -> None:
    found = estimate([0.5, 2.0, 1.0, 1.0])
    assert found is not None
    assert found.mean == pytest.approx(1.0)
    assert 0.5 <= found.low < 1.0 < found.high <= 2.0


def test_smallest_ratio_that_could_be_seen_shrinks_with_the_rounds() -> None:
    dice = random.Random(3)
    many = [math.exp(dice.gauss(0.0, 0.29)) for _ in range(220)]
    few, all_of_them = estimate(many[:6]), estimate(many)
    assert few is not None and all_of_them is not None
    assert few.seen is not None and all_of_them.seen is not None
    assert all_of_them.seen == pytest.approx(1.05, abs=0.01)  # the noise and rounds for which 5 % can be shown
    assert few.seen > 1.2


def test_interval_holds_the_truth_about_19_times_of_20() -> None:
    dice = random.Random(5)
    held = 0
    for _ in range(100):
        found = estimate([math.exp(dice.gauss(math.log(1.2), 0.3)) for _ in range(20)])
        assert found is not None
        held += found.low <= 1.2 <= found.high
    assert 85 <= held <= 99


def test_rounds_are_enough_when_each_arm_is_known_well_enough() -> None:
    steady = [round_of(1.0, 1.0, 1.0)] * FEWEST_ROUNDS
    noisy = [round_of(1.0, 1.0, arm) for arm in (0.5, 1.0, 2.0) * FEWEST_ROUNDS]
    assert enough(steady, [ARM], 1.05)
    assert not enough(steady[:-1], [ARM], 1.05)
    assert not enough(noisy, [ARM], 1.05)
    assert not enough(steady, [ARM, "another"], 1.05)


def test_next_round_is_of_what_is_known_least_in_earlier_runs_too_until_all_is_known_well_enough() -> None:
    wanted = Scale(6.0, ("20", "80"), ("redis",), ("compress", "sort"), (ARM,), 600.0)
    rows: list[dict[str, object]] = []

    def measure(load: str, work: str) -> None:
        number = len(rows)
        about = {"round": str(number), "server": "redis", "load": load, "work": work}
        rows.extend({**about, "arm": arm, "p99": 1.0} for arm in (ALONE, AGAIN, ARM))

    measured: list[tuple[str, str]] = []
    while (combo := next_round(rows, "redis", wanted)) and len(measured) < 100:
        measured.append(combo)
        measure(*combo)

    assert sorted(measured[:4]) == [("20", "compress"), ("20", "sort"), ("80", "compress"), ("80", "sort")]
    assert len(measured) == 2 * FEWEST_ROUNDS  # of each load, over all works
    assert next_round(rows, "memcached", wanted) is not None


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
    assert why_void(LATE_S, STOLEN_RATIO) == ""
    assert why_void(2 * LATE_S, 0.0) == "the generator was 10.0 ms late"
    assert why_void(0.0, 0.034) == "other virtual machines took 3.4 % of the CPU"


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
        found, tail = protocol.count(tail + data[at : at + 3])
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


def test_losing_arms_and_the_noise_are_told() -> None:
    about = {"server": "redis", "load": "50", "work": "compress"}
    measured = dict.fromkeys(("cpu_per_request", "wait_per_request", "tail_share", "p50", "p95", "p999"), 1.0)
    shares = {"node_ratio": 0.99, "left_ratio": 0.9, "work_ratio": 0.8, "others_ratio": 0.3, "stolen_ratio": 0.002}
    rows = [
        {**about, **measured, **shares, "round": str(number), "arm": arm, "p99": p99}
        for number in range(3)
        for arm, p99 in ((ALONE, 1.0), (AGAIN, 1.0 + number / 10), (ARM, 7.0))
    ]
    text = told(rows)
    assert "6.6" in text or "6.7" in text
    assert "could have seen" in text
    assert {one.arm for one in results(rows)} == {ALONE, AGAIN, ARM}


def test_rounds_of_all_servers_and_loads_are_told_together_too() -> None:
    measured = dict.fromkeys((*MEASURES, "node_ratio", "left_ratio", "work_ratio", "stolen_ratio"), 1.0)
    alone_s = {"redis": 1.0, "memcached": 100.0}
    rows = [
        {
            **measured,
            "server": server,
            "load": "50",
            "work": "mix",
            "round": f"{server} {number}",
            "arm": arm,
            "p99": p99,
        }
        for server, base in alone_s.items()
        for number in range(2)
        for arm, p99 in ((ALONE, base), (AGAIN, base), (ARM, 2.0 * base))
    ]
    together = next(one for one in results(rows) if (one.server, one.arm) == (EVERY, ARM))
    claim = together.claims["p99"]
    assert claim is not None
    assert (claim.rounds, claim.mean) == (4, pytest.approx(2.0))


# --- the arms ---------------------------------------------------------------------------------------------------------


def test_quick_run_has_known_arms_and_those_by_evidence_differ_in_the_guard_or_in_pinning_alone() -> None:
    known = arms(2)
    assert set(QUICK) <= known.keys()
    by_evidence = [known[name] for name in QUICK if known[name].by_evidence]
    assert [(one.config["guard"]["enabled"], one.config["cpuset"]["pin_pods"]) for one in by_evidence] == [
        (True, True),
        (True, False),
        (False, True),
    ]
    assert [dict(one.config["cpu"]) for one in by_evidence] == [{"bound": "evidence"}] * 3, "the watermark's default"
    assert Cpu(**by_evidence[0].config["cpu"]).bound == "evidence"


@pytest.mark.parametrize(
    ("seen_s", "share", "counts"),
    [(1.0, None, True), (1.0, 1.0, True), (1.0, 0.0, True), (None, None, False)],
    ids=["open", "prediction", "floor", "not-seen"],
)
def test_phase_counts_as_by_evidence_where_criproxy_says_so(
    seen_s: float | None, share: float | None, counts: bool
) -> None:
    law = DynamicSettings(floor=0.1)
    decided = ResourceDecision(1.0, "held at 1.00 cores: by the law", law.bounds, ResourcePrediction(0.5), 1.0)
    found = bound_by_evidence(decided, law, CpuEvidence(2.0, True, seen_s, share))
    assert (not_by_evidence(found.reason) == "") is counts
