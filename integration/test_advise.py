"""`criproxy advise` through a real Prometheus, backfilled by promtool: its numbers are those of `simulate`, and it says
what a scrape lacks.

Each `cluster` is a way of scraping: `plain` (node_exporter, and cAdvisor's pods), `thanos` (two replicas),
`cadvisor` (kubelet alone), `twice` (two jobs), `forgetful`
(node_exporter without memory).
"""

import json
import math
import random
import subprocess
import time
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec import Struct

from criproxy.cli import main
from criproxy.commands.advise.prometheus import Prometheus as Client
from criproxy.commands.advise.prometheus import PrometheusAddress
from criproxy.commands.advise.questions import RecordQuery, ask
from criproxy.commands.simulate import SimulateError
from integration.lab.prometheus import Prometheus, program

STEP_S = 120
DAYS = 2.5
SHORT_DAYS = 0.5
GIB = 1 << 30
CORES, BYTES = 2, 16 * GIB
END_S = int(time.time()) // 86400 * 86400 - 16 * 3600
"""At the same time of the day, as the numbers come of the day's shape."""
START_S = END_S - int(DAYS * 86400)
YOUNG_S = END_S - 86400
GAP_S = (END_S - 30 * 3600, END_S - 28 * 3600)
LARGEST = 3 * GIB


class Backfill:
    """Samples as OpenMetrics, family by family."""

    def __init__(self) -> None:
        self.families: defaultdict[str, list[str]] = defaultdict(list)

    def add(self, name: str, labels: str, t_s: int, value: float) -> None:
        self.families[name].append(f"{name}{{{labels}}} {value:.6f} {t_s}\n")

    def text(self) -> Iterator[str]:
        for name, lines in self.families.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            yield f"# TYPE {name.removesuffix('_total')} {kind}\n"
            yield from lines
        yield "# EOF\n"


def cores_at(number: int, t_s: int, rng: random.Random) -> float:
    """A day with its peak in the afternoon, as services have it."""
    wave = 1.3 - math.cos((t_s % 86400 / 86400 - 0.1) * math.tau + number)
    return max(0.05, 0.45 * wave + rng.gauss(0.0, 0.06))


def node(fill: Backfill, cluster: str, number: int, *, start_s: int = START_S, gap: bool = False) -> None:
    rng = random.Random(number)
    name, used = f"{cluster}-{number}", 0.0
    for t_s in range(start_s, END_S + 1, STEP_S):
        used += cores_at(number, t_s, rng) * STEP_S
        if gap and GAP_S[0] < t_s < GAP_S[1]:
            continue
        memory = (5.0 + math.sin(t_s / 86400 * math.tau) + rng.gauss(0.0, 0.05)) * GIB
        if cluster == "cadvisor":
            labels = f'cluster="cadvisor",instance="10.0.0.{number}:10250",node="{name}",id="/"'
            fill.add("container_cpu_usage_seconds_total", f'{labels},cpu="total"', t_s, used)
            fill.add("container_memory_working_set_bytes", labels, t_s, memory)
            if not t_s % 3600:
                fill.add("machine_cpu_cores", f'cluster="cadvisor",node="{name}"', t_s, CORES)
                fill.add("machine_memory_bytes", f'cluster="cadvisor",node="{name}"', t_s, BYTES)
            continue
        for more in scrapes(cluster):
            labels = f'cluster="{cluster}",instance="10.0.0.{number}:9100"{more}'
            for cpu in range(CORES):
                fill.add("node_cpu_seconds_total", f'{labels},cpu="{cpu}",mode="user"', t_s, used / CORES)
                fill.add(
                    "node_cpu_seconds_total", f'{labels},cpu="{cpu}",mode="idle"', t_s, t_s - start_s - used / CORES
                )
            if cluster == "forgetful":
                continue
            fill.add("node_memory_MemTotal_bytes", labels, t_s, BYTES)
            fill.add("node_memory_MemAvailable_bytes", labels, t_s, BYTES - memory)
            fill.add("node_uname_info", f'{labels},nodename="{name}"', t_s, 1)
        if cluster == "plain" and not t_s % 600:
            pod = f'cluster="plain",node="{name}",namespace="shop"'
            fill.add("container_memory_working_set_bytes", f'{pod},id="/"', t_s, memory)
            for which, size in (("db", LARGEST / number), ("web", GIB / 2)):
                fill.add("container_memory_working_set_bytes", f'{pod},pod="{which}",container="c"', t_s, size)


def scrapes(cluster: str) -> tuple[str, ...]:
    if cluster == "thanos":
        return ',prometheus_replica="a"', ',prometheus_replica="b"'
    if cluster == "twice":
        return ',job="node"', ',job="node-old"'
    return ("",)


class Answers(Struct):
    """Who is asked, and the same for tests that ask by themselves."""

    url: str
    client: Client


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    folder = tmp_path_factory.mktemp("prometheus")
    fill = Backfill()
    for number in (1, 2):
        node(fill, "plain", number, gap=number == 2)
    node(fill, "plain", 3, start_s=YOUNG_S)
    for cluster in ("thanos", "cadvisor", "twice", "forgetful"):
        for number in (1, 2):
            node(fill, cluster, number, start_s=END_S - int(SHORT_DAYS * 86400))
    file = folder / "fill.txt"
    with file.open("w") as out:
        out.writelines(fill.text())
    command = [str(program("promtool")), "tsdb", "create-blocks-from", "openmetrics", str(file), str(folder / "data")]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    server = Prometheus(folder, [], folder / "none.yml")
    try:
        url = f"http://127.0.0.1:{server.port}"
        yield Answers(url, Client(PrometheusAddress(url), None))
    finally:
        server.process.stop()


def asked(cluster: str, days: float = SHORT_DAYS, **more: object) -> RecordQuery:
    return RecordQuery(END_S - days * 86400, END_S, STEP_S, f'cluster="{cluster}"', **more)  # type: ignore[arg-type]


def range_query(url: str, query: str) -> str:
    end_s, answers = END_S, []
    for start_s in range(START_S, end_s, 86400):
        last = min(start_s + 86400 - STEP_S, end_s)
        options = {"query": query, "start": start_s, "end": last, "step": STEP_S}
        with urllib.request.urlopen(f"{url}/api/v1/query_range?{urllib.parse.urlencode(options)}") as answer:
            answers.append(answer.read().decode())
    return "\n".join(answers)


def quiet(_text: str) -> None:
    """No progress."""


# --- its numbers ------------------------------------------------------------------------------------------------------


def test_numbers_are_simulates_and_the_page_says_what_the_record_is(prometheus: Answers, tmp_path: Path) -> None:
    out, page, cache = tmp_path / "advice.json", tmp_path / "page.md", tmp_path / "cache"
    arguments = [
        "advise",
        "--prometheus",
        prometheus.url,
        "--selector",
        'cluster="plain"',
        "--days",
        str(DAYS),
        "--step",
        str(STEP_S),
    ]
    arguments += ["--until", str(END_S), "--cache", str(cache), "--json", str(out)]
    assert main([*arguments, "--output", str(page)]) == 0
    found = json.loads(out.read_text())
    (group,) = found["advice"]["groups"]
    assert (group["name"], group["nodes"], group["largest_pod_bytes"]) == ("2 cores, 16 GiB", 3, LARGEST)

    by, selector = "by (instance)", 'cluster="plain"'
    window = STEP_S + 60
    queries = {
        "cpu": f'sum {by} (rate(node_cpu_seconds_total{{mode!~"idle|iowait|steal",{selector}}}[{window}s]))',
        "memory": f"max {by} (node_memory_MemTotal_bytes{{{selector}}} - node_memory_MemAvailable_bytes{{{selector}}})",
    }
    for name, query in queries.items():
        (tmp_path / f"answer-{name}.json").write_text(range_query(prometheus.url, query))
    for resource, capacity in (("cpu", CORES), ("memory", BYTES)):
        simulated = tmp_path / f"{resource}.json"
        usage = str(tmp_path / f"answer-{resource}.json")
        command = ["simulate", usage, "--capacity", str(capacity), "--resource", resource, "--json", str(simulated)]
        assert main(command) == 0
        ours = found["advice"]["overall"][resource]
        theirs = [one["score"] for one in json.loads(simulated.read_text())["series"]]
        for key in ("limit_ratio", "violation_ratio", "hard_ratio"):
            assert ours[key] == pytest.approx(sum(one[key] for one in theirs) / 3)

    assert group["lives"][1]["ended"] > 100
    text = page.read_text()
    assert "Yes, begin with a dry run" in text
    assert "Younger than the time asked for: 1 nodes (plain-3)" in text
    assert "2 gaps of more than 3 steps" in text  # of CPU and of memory
    assert "the largest pod uses 3.0 GiB" in text
    assert list(cache.iterdir())


def test_who_asks_again_is_answered_alike(prometheus: Answers, tmp_path: Path) -> None:
    client = Client(PrometheusAddress(prometheus.url), tmp_path)
    first, again = (ask(client, asked("thanos"), quiet) for _ in range(2))
    assert first == again
    assert list(tmp_path.iterdir())


# --- what a scrape lacks ----------------------------------------------------------------------------------------------


def mean_cores(recording: object) -> list[float]:
    return [sum(one.cpu.usages) / len(one.cpu.usages) for one in recording.nodes]  # type: ignore[attr-defined]


def test_replicas_are_counted_once_and_usage_is_what_was_used(prometheus: Answers) -> None:
    found = ask(prometheus.client, asked("thanos"), quiet)
    assert [one.id for one in found.nodes] == ["thanos-1", "thanos-2"]
    rng, start_s = random.Random(7), END_S - int(SHORT_DAYS * 86400)
    real = [cores_at(1, t_s, rng) for t_s in range(start_s, END_S + 1, STEP_S)]
    assert mean_cores(found)[0] == pytest.approx(sum(real) / len(real), rel=0.03)
    assert any("told apart by prometheus_replica" in one for one in found.notes)
    assert found.pods is None
    assert any("The largest pod is not known" in one for one in found.notes)


def test_cadvisor_alone_is_enough(prometheus: Answers) -> None:
    found = ask(prometheus.client, asked("cadvisor"), quiet)
    assert [(one.id, one.cpu.capacity) for one in found.nodes] == [("cadvisor-1", CORES), ("cadvisor-2", CORES)]
    assert all(one.memory is not None and one.memory.capacity == BYTES for one in found.nodes)
    assert any("kubelet's cAdvisor" in one for one in found.notes)


def test_page_without_memory_is_of_cpu_alone_and_says_so(prometheus: Answers) -> None:
    found = ask(prometheus.client, asked("forgetful"), quiet)
    assert [(one.id, one.memory) for one in found.nodes] == [("10.0.0.1:9100", None), ("10.0.0.2:9100", None)]
    assert any("node_exporter says nothing of memory here" in one for one in found.notes)
    assert any("The largest pod is not known" in one for one in found.notes)


REFUSED: dict[str, tuple[Callable[[], RecordQuery], str]] = {
    "two jobs": (lambda: asked("twice"), "differ in job"),
    "nothing": (lambda: asked("none"), "has neither node_exporter"),
    "no promql": (lambda: RecordQuery(START_S, END_S, STEP_S, 'cluster="'), "answers 400"),
    "millicores": (
        lambda: asked(
            "cadvisor",
            queries={"cpu": 'sum by (node) (rate(container_cpu_usage_seconds_total{cluster="cadvisor"}[5m])) * 1000'},
        ),
        "nodes use all they have, or more: is the usage in millicores",
    ),
    "kibibytes": (
        lambda: asked(
            "thanos",
            queries={
                "memory": "max by (instance) (node_memory_MemTotal_bytes - node_memory_MemAvailable_bytes) / 1024"
            },
        ),
        "Both must be in bytes",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_gives_no_number_is_refused_in_words(prometheus: Answers, what: str) -> None:
    made, words = REFUSED[what]
    with pytest.raises(SimulateError, match=words):
        ask(prometheus.client, made(), quiet)
