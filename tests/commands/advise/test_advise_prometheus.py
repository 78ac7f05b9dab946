"""The client of Prometheus: pieces, cache, bounds, who may see a token; and which node a series is of."""

import gzip
import json
import ssl
import threading
import time
import urllib.parse
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from criproxy.commands.advise import prometheus
from criproxy.commands.advise.prometheus import Prometheus, PrometheusAddress
from criproxy.commands.advise.questions import RecordQuery, ask, check_units, identify
from criproxy.commands.simulate import SimulateError
from tests.commands.simulate.simulate_helpers import trace
from tests.fakes.authority import Authority

HOUR = 3600


class FakePrometheus(HTTPServer):
    """Answers a range query with one series of its times and `warnings`, another with a 1, or with what `status` and
    `body` say; `asked` are they."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), AnswersRanges)
        self.asked, self.headers = [], []
        self.status, self.body, self.warnings = 200, None, []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class AnswersRanges(BaseHTTPRequestHandler):
    server: FakePrometheus

    def do_GET(self):
        asked = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
        self.server.asked.append(asked)
        self.server.headers.append(self.headers)
        body = self.server.body
        if body is None and "start" not in asked:
            data = {"resultType": "vector", "result": [{"metric": {"node": "a"}, "value": [0, "1"]}]}
            body = json.dumps({"status": "success", "data": data}).encode()
        if body is None:
            times = range(int(asked["start"]), int(asked["end"]) + 1, int(asked["step"]))
            series = {"metric": {"node": "a"}, "values": [[t, str(t)] for t in times]}
            data = {"resultType": "matrix", "result": [series]}
            body = json.dumps({"status": "success", "data": data, "warnings": self.server.warnings}).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Location", "https://sso.example/login")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with serving(FakePrometheus()) as served:
        yield served


@contextmanager
def serving(server):
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def times_of(client, start_s, end_s, step_s=60, series=1):
    return [
        t for piece in client.pieces("q", start_s, end_s, step_s, series) for one in piece for t, _ in one["values"]
    ]


# --- pieces and cache -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("series, pieces", [(1, 3), (500, 9), (5000, 50)])
def test_pieces_have_each_moment_once_however_many_nodes(server, series, pieces):
    client = Prometheus(PrometheusAddress(server.url), None)
    start_s = 86400 * 100 + 1234
    assert times_of(client, start_s, start_s + 2 * 86400, 60, series) == [
        *range(start_s // 60 * 60 + 60, start_s + 2 * 86400, 60)
    ]
    assert len(server.asked) == pytest.approx(pieces, abs=1)
    assert all((int(one["end"]) - int(one["start"])) / 60 <= prometheus.MOST_POINTS for one in server.asked)


def test_record_that_ends_where_a_piece_begins_has_its_last_moment(server):
    end_s = 86400 * 100
    assert times_of(Prometheus(PrometheusAddress(server.url), None), end_s - 120, end_s) == [
        end_s - 120,
        end_s - 60,
        end_s,
    ]


def test_who_asks_again_asks_only_for_what_may_have_changed(server, tmp_path):
    cache = tmp_path / "cache"
    at_s = 86400 * 100
    first = times_of(Prometheus(PrometheusAddress(server.url), cache), at_s, at_s + 3 * 86400)
    asked = len(server.asked)
    assert times_of(Prometheus(PrometheusAddress(server.url), cache), at_s, at_s + 3 * 86400) == first
    assert len(server.asked) == asked
    assert {file.stat().st_mode & 0o777 for file in cache.iterdir()} == {0o600}
    for spoilt in (
        lambda whole: whole[:30],
        lambda whole: whole[:12] + bytes([whole[12] ^ 0xFF]) * 20 + whole[32:],
        lambda _: gzip.compress(b"[" * 100_000),
    ):
        before = len(server.asked)
        for file in cache.iterdir():
            file.write_bytes(spoilt(file.read_bytes()))
        assert times_of(Prometheus(PrometheusAddress(server.url), cache), at_s, at_s + 3 * 86400) == first
        assert len(server.asked) == before + asked


def test_what_may_still_change_is_not_kept(server, tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 86400.0 * 100)
    times_of(Prometheus(PrometheusAddress(server.url), tmp_path / "c"), 86400 * 99, 86400 * 100)
    assert len(list((tmp_path / "c").iterdir())) == 0


def test_what_remote_write_may_still_send_after_an_outage_is_not_kept(server, tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 86400.0 * 100)
    end_s = 86400 * 100 - 3600
    times_of(Prometheus(PrometheusAddress(server.url), tmp_path / "c"), end_s - 7200, end_s, 15, 800)
    first = {json.loads(gzip.decompress(file.read_bytes()))["data"]["result"][0]["values"][0][0]
             for file in (tmp_path / "c").iterdir()}  # fmt: skip
    assert first == {end_s - 7200}  # of three hours the one that ended two hours ago


def test_answer_that_may_lack_a_part_is_refused_or_warned_of_and_not_kept(server, tmp_path):
    cache, at_s = tmp_path / "c", 86400 * 100
    server.warnings = ["no store   matches", "x" * 1000]
    client = Prometheus(PrometheusAddress(server.url), cache)
    assert times_of(client, at_s, at_s + 3 * 86400)
    assert {one["partial_response"] for one in server.asked} == {"false"}
    assert client.warnings == ["no store matches", "x" * 300]
    assert not list(cache.iterdir())
    server.warnings = []
    client = Prometheus(PrometheusAddress(server.url), cache)
    assert times_of(client, at_s, at_s + 3 * 86400)
    assert client.warnings == [] and list(cache.iterdir())


def test_answer_with_a_warning_that_was_kept_before_is_asked_for_again(server, tmp_path):
    cache, at_s = tmp_path / "c", 86400 * 100
    assert times_of(Prometheus(PrometheusAddress(server.url), cache), at_s, at_s + 3600)
    (file,) = cache.iterdir()
    kept = json.loads(gzip.decompress(file.read_bytes()))
    file.write_bytes(gzip.compress(json.dumps({**kept, "warnings": ["no store matches"]}).encode()))
    before = len(server.asked)
    assert times_of(Prometheus(PrometheusAddress(server.url), cache), at_s, at_s + 3600)
    assert len(server.asked) == before + 1


def test_warnings_without_end_are_not_all_told(server):
    server.warnings = [str(number) for number in range(100)]
    client = Prometheus(PrometheusAddress(server.url), None)
    assert times_of(client, 0, HOUR)
    assert client.warnings == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("warnings", [["no store matches"], []], ids=["warned", "whole"])
def test_warning_stands_in_the_notes_of_the_page(server, warnings):
    server.warnings = warnings
    asked = RecordQuery(86400 * 100, 86400 * 101, 60)
    told = ask(Prometheus(PrometheusAddress(server.url), None), asked, lambda _: None).notes
    assert any("no store matches" in one for one in told) == bool(warnings)


def test_cache_that_can_not_be_made_hinders_nobody(server, tmp_path):
    (tmp_path / "file").write_text("")
    assert times_of(Prometheus(PrometheusAddress(server.url), tmp_path / "file" / "cache"), 0, HOUR)


# --- who is let in, and what comes back -------------------------------------------------------------------------------


def test_token_goes_with_the_question(server, tmp_path):
    (tmp_path / "token").write_text("s3cret\n")
    times_of(Prometheus(PrometheusAddress(server.url, str(tmp_path / "token")), None), 0, HOUR)
    assert server.headers[0]["Authorization"] == "Bearer s3cret"


def test_token_is_not_sent_over_a_network_without_tls(tmp_path):
    (tmp_path / "token").write_text("s3cret\n")
    with pytest.raises(SimulateError, match="not sent without TLS"):
        Prometheus(PrometheusAddress("http://prometheus.example", str(tmp_path / "token")), None)


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("pki"))


def test_tls_trusts_whom_it_is_told_to_and_shows_our_own_certificate(pki, tmp_path):
    (tmp_path / "token").write_text("s3cret\n")
    certificate, key = pki.issue("localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(pki.certificate))
    context.load_cert_chain(certificate, key)
    context.verify_mode = ssl.CERT_REQUIRED
    made = FakePrometheus()
    made.socket = context.wrap_socket(made.socket, server_side=True)
    with serving(made) as served:
        url = f"https://localhost:{served.server_port}"
        address = PrometheusAddress(url, str(tmp_path / "token"), str(pki.certificate), str(certificate), str(key))
        assert times_of(Prometheus(address, None), 0, HOUR)
        assert served.headers[0]["Authorization"] == "Bearer s3cret"
        with pytest.raises(SimulateError, match="give --ca-file"):
            times_of(Prometheus(PrometheusAddress(url), None), 0, HOUR)
    with pytest.raises(SimulateError, match="can't be used"):
        Prometheus(PrometheusAddress(url, ca_file=str(tmp_path / "token")), None)


@pytest.mark.parametrize(
    "status, body, says",
    [
        (200, b"<html>log in", "does not answer as Prometheus does"),
        (200, b'{"data": []}', "does not answer as Prometheus does"),
        (302, b"", "leads on to https://sso.example/login"),
        (401, b"", "--token-file"),
        (422, b'{"error": "too many samples"}', "answers 422 to q: too many samples"),
        (503, b"upstream", "answers 503 to q: upstream"),
    ],
    ids=["page", "list", "login", "refused", "error", "proxy"],
)
def test_answer_that_is_none_says_what_to_do(server, status, body, says):
    server.status, server.body = status, body
    with pytest.raises(SimulateError, match=says):
        times_of(Prometheus(PrometheusAddress(server.url), None), 0, HOUR)


def test_answer_without_end_is_not_read_to_its_end(server, monkeypatch):
    monkeypatch.setattr(prometheus, "MOST_ANSWER", 1000)
    server.body = b" " * 2000
    with pytest.raises(SimulateError, match="narrow it with --selector"):
        times_of(Prometheus(PrometheusAddress(server.url), None), 0, HOUR)


def test_nobody_there_names_the_address(tmp_path):
    with pytest.raises(SimulateError, match=r"127\.0\.0\.1:1: does not answer"):
        times_of(Prometheus(PrometheusAddress("http://127.0.0.1:1"), None), 0, HOUR)


# --- which node a series is of ----------------------------------------------------------------------------------------


def test_node_is_preferred_to_the_instance_where_all_have_it():
    assert identify([{"node": "a", "instance": "1"}, {"node": "b", "instance": "2"}]).label == "node"
    assert identify([{"node": "a", "instance": "1"}, {"instance": "2"}]).label == "instance"


def test_replicas_are_one_node_and_others_are_refused():
    found = identify(
        [{"node": "a", "prometheus": "x", "replica": "0"}, {"node": "a", "prometheus": "y", "replica": "1"}]
    )
    assert found.replicas == ("prometheus", "replica")
    own = [{"node": "a", "dc": "1"}, {"node": "a", "dc": "2"}]
    with pytest.raises(SimulateError, match=r"a: has 2 series, that differ in dc .*--selector 'dc=\"1\"'"):
        identify(own)
    assert identify(own, ("dc",)).replicas == ("dc",)
    with pytest.raises(SimulateError, match="no label node or instance"):
        identify([{"host": "a"}])


class ScrapedNodes:
    """A Prometheus that scrapes node_exporter on two nodes, of which one has the label nodepool."""

    url = "http://prometheus.example"
    warnings = ()

    def __init__(self, labels=({"nodepool": "web"}, {})):
        self.labels = [
            {"instance": f"10.0.0.{i}:9100", "nodename": f"node-{i}", **more} for i, more in enumerate(labels)
        ]
        self.asked = []

    def instant(self, query, at_s):
        there = query.startswith(("node_cpu_seconds_total", "node_uname_info"))
        return [{"metric": metric, "value": [at_s, "1"]} for metric in self.labels] if there else []

    def pieces(self, query, start_s, end_s, step_s, series):
        self.asked.append(query)
        if "kube_" in query:
            return
        value = str(8 * 2**30) if "MemTotal" in query else "4"
        if "rate" in query or "MemAvailable" in query:
            value = str(float(value) / 4)
        values = [[t, value] for t in range(int(start_s), int(end_s), step_s)]
        yield [{"metric": {"instance": metric["instance"]}, "values": values} for metric in self.labels]


def asked_of(prometheus, **more):
    return ask(prometheus, RecordQuery(86400.0 * 100, 86400.0 * 101, 60, **more), lambda _: None)


def test_label_groups_nodes_that_have_names_of_their_own():
    found = asked_of(ScrapedNodes(), family="nodepool")
    assert [(node.id, node.cpu.family) for node in found.nodes] == [
        ("node-0", "web"),
        ("node-1", "4 cores, 8 GiB"),
    ]
    assert "1 nodes (node-1) have no label nodepool: they are grouped by what they have." in found.notes


def test_label_that_no_node_has_is_refused():
    with pytest.raises(SimulateError, match="no series has the label nodepol that is to group nodes"):
        asked_of(ScrapedNodes(), family="nodepol")


def test_values_are_means_of_the_step_and_a_minute_but_for_a_query_of_ones_own():
    scraped = ScrapedNodes()
    assert asked_of(scraped).mean_s == 120.0
    assert any("[120s]" in query for query in scraped.asked)
    assert asked_of(ScrapedNodes(), queries={"cpu": "node_cpu_seconds_total:rate5m"}).mean_s == 0.0


def test_page_says_that_all_hosts_count_and_that_the_selector_may_hide_pods():
    notes = asked_of(ScrapedNodes(), selector='job="node"').notes
    assert any("control plane" in note and "--selector" in note for note in notes)
    (pods,) = (note for note in notes if note.startswith("The largest pod is not known"))
    assert 'with {job="node"}' in pods and "a selector that names a job" in pods


@pytest.mark.parametrize("unit, words", [("cores", "millicores"), ("bytes", "KiB")])
def test_unit_that_can_not_be_is_refused_on_both_sides(unit, words):
    check_units([trace([0.1, 0.2, 9.0])], "x", unit)
    for usages in ([10.0] * 20, [1e-4] * 20):
        with pytest.raises(SimulateError, match=words):
            check_units([trace(usages)], "x", unit)
