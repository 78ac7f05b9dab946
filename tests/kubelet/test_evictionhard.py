"""kubelet's evictionHard for memory, wherever it is set, and an honest error where it can't be read."""

from pathlib import Path

import pytest

from criproxy.control.memory_pressure import EvictionHard
from criproxy.kubelet import evictionhard
from criproxy.kubelet.evictionhard import Thresholds, of_file, threshold
from criproxy.kubelet.process import KubeletSearch
from tests.fakes.proc import kubelet

MIB = 1 << 20
LISTEN = "/run/criproxy/criproxy.sock"
CONFIG = "/var/lib/kubelet/config.yaml"

YAML = """apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
evictionSoft:
  memory.available: "5Gi"
evictionHard:
  # what the node needs
  imagefs.available: 15%
  memory.available: "300Mi"  # of 8 GiB

  nodefs.inodesFree: 5%
evictionMinimumReclaim: {memory.available: 1Gi}
"""


def read(listen: str, root: Path) -> EvictionHard:
    """By a search that knows no kubelet yet."""
    return evictionhard.read(KubeletSearch(listen, root))


@pytest.mark.parametrize(
    ("quantity", "size", "ratio"),
    [
        ("100Mi", 100 * MIB, 0.0),
        ("1Gi", 1024 * MIB, 0.0),
        ("1.5Gi", 1536 * MIB, 0.0),
        ("500M", 500_000_000, 0.0),
        ("500k", 500_000, 0.0),
        ("104857600", 100 * MIB, 0.0),
        ("1e9", 10**9, 0.0),
        ("12E1", 120, 0.0),
        ("1500m", 2, 0.0),
        ("0", 0, 0.0),
        ("5%", 0, 0.05),
        ("7.5%", 0, 0.075),
        ("0%", 0, 0.0),
        ("100%", 0, 0.0),
    ],
)
def test_quantity_and_percentage(quantity: str, size: int, ratio: float) -> None:
    hard = threshold(quantity, "x")
    assert (hard.size_bytes, hard.ratio) == (size, pytest.approx(ratio))


@pytest.mark.parametrize(
    "quantity", ["", "-1", "1Xi", "100 Mi", "nan", "inf", "5%%", "-5%", "105%", "%", "1e99", "1e400", "9e999E", "Mi"]
)
def test_what_is_no_quantity_is_an_error(quantity: str) -> None:
    with pytest.raises(ValueError):
        threshold(quantity, "x")


@pytest.mark.parametrize(
    ("text", "hard"),
    [
        pytest.param(
            YAML,
            {"imagefs.available": "15%", "memory.available": "300Mi", "nodefs.inodesFree": "5%"},
            id="block",
        ),
        pytest.param(
            "evictionHard: {memory.available: 1Gi, nodefs.available: '5%'}\n",
            {"memory.available": "1Gi", "nodefs.available": "5%"},
            id="flow",
        ),
        pytest.param(
            "evictionHard: {\n  memory.available: 1Gi,\n}\nport: 1\n", {"memory.available": "1Gi"}, id="flow-lines"
        ),
        pytest.param('"evictionHard":\n    "memory.available": "1Gi"\n', {"memory.available": "1Gi"}, id="quoted"),
        pytest.param('{"evictionHard": {"memory.available": "0%"}}', {"memory.available": "0%"}, id="json"),
        pytest.param('{"a": {"evictionHard": {"memory.available": "1%"}}}', None, id="json-elsewhere"),
        pytest.param("evictionHard:\nport: 1\n", None, id="nothing-behind-it"),
        pytest.param("evictionHard: null\n", None, id="null"),
        pytest.param("evictionHard: {}\n", {}, id="empty"),
        pytest.param("a:\n  evictionHard:\n    memory.available: 1Gi\n", None, id="not-at-the-top"),
        pytest.param("# evictionHard: {memory.available: 1Gi}\n", None, id="commented-out"),
        pytest.param("", None, id="no-text"),
        pytest.param("# x\n", None, id="a-comment-alone"),
        pytest.param(
            '# by ansible\n{"kind": "KubeletConfiguration", "evictionHard": {"memory.available": "1Gi"}}\n',
            {"memory.available": "1Gi"},
            id="json-behind-a-comment",
        ),
        pytest.param('---\n\n# x\n {"evictionHard": {"a": "1%"}}', {"a": "1%"}, id="json-behind-a-document's-begin"),
        pytest.param('\ufeff{"evictionHard": {"a": "1%"}}', {"a": "1%"}, id="json-behind-a-byte-order-mark"),
        pytest.param("\ufeffevictionHard: {a: 1%}\n", {"a": "1%"}, id="byte-order-mark"),
        pytest.param("---\nevictionHard: {a: 1%}\n...\n", {"a": "1%"}, id="document"),
        pytest.param("evictionHard:\n  a: >-\n    1%\n", {"a": "1%"}, id="folded"),
        pytest.param("{kind: KubeletConfiguration,\n evictionHard: {a: 1%}}", {"a": "1%"}, id="flow-alone"),
        pytest.param('{"evictionHard": {"a": "1%"}}  # made\n', {"a": "1%"}, id="json-before-a-comment"),
        pytest.param("  evictionHard:\n    a: 1%\n", {"a": "1%"}, id="indented"),
        pytest.param('"eviction\\x48ard": {a: 1%}\n', {"a": "1%"}, id="escape-in-a-key"),
        pytest.param("--- {evictionHard: {a: 1%}}\n", {"a": "1%"}, id="behind-a-document's-begin"),
        pytest.param("--- # x\nevictionHard: {a: 1%}\n", {"a": "1%"}, id="a-comment-behind-it"),
        pytest.param("a: &x\n  b: 1%\nevictionHard: *x\n", {"b": "1%"}, id="alias"),
        pytest.param(
            "evictionSoft: &x {a: 1%}\nevictionHard:\n  <<: *x\n  b: 2%\n", {"a": "1%", "b": "2%"}, id="merge"
        ),
        pytest.param("evictionHard:\n  {\n  a:\n    1%,\n  }\n", {"a": "1%"}, id="flow-below-its-key"),
        pytest.param("evictionHard:\r\n  a: 1%\r\n", {"a": "1%"}, id="ends-of-windows"),
        pytest.param("evictionHard:\n  a: '1%' # x\n  b: \"2\\u0025\"\n", {"a": "1%", "b": "2%"}, id="quotes"),
        pytest.param("? evictionHard\n: {a: 1%}\n", {"a": "1%"}, id="question-mark"),
        pytest.param("!!str evictionHard: {a: 1%}\n", {"a": "1%"}, id="tagged-key"),
        pytest.param("note: |\n  evictionHard: {b: 1%}\n", None, id="in-a-text"),
        pytest.param("note: 'x\n\n  evictionHard: {b: 1%}'\n", None, id="in-quotes"),
        pytest.param("clusterDNS:\n- 10.96.0.10\nevictionHard: {a: 1%}\n", {"a": "1%"}, id="list-at-the-edge"),
    ],
)
def test_configuration_file(text: str, hard: dict[str, str] | None) -> None:
    assert (of_file(text.encode()).hard, of_file(text.encode()).merged) == (hard, False)


@pytest.mark.parametrize(
    ("text", "soft"),
    [
        pytest.param(YAML, {"memory.available": "5Gi"}, id="block"),
        pytest.param('{"evictionSoft": {"memory.available": "1Gi"}}', {"memory.available": "1Gi"}, id="json"),
        pytest.param("evictionSoftGracePeriod: {memory.available: 90s}\n", None, id="the-grace-period-is-none"),
    ],
)
def test_soft_thresholds_of_a_configuration_file(text: str, soft: dict[str, str] | None) -> None:
    assert of_file(text.encode()).soft == soft


def test_file_without_thresholds_says_nothing() -> None:
    assert of_file(b"port: 1\n") == Thresholds()


@pytest.mark.parametrize(
    "text",
    [
        "evictionHard: *hard\n",
        "evictionHard: [1]\n",
        "evictionHard:\n  memory.available:\n",
        "evictionHard:\n  memory.available: 1Gi\n   nodefs.available: 5%\n",
        "evictionHard: {memory.available: 1Gi\n",
        '{"evictionHard": 1}',
        "{",
        "port: 1\n<<: *hard\n",
        "e\x00v\x00i\x00",
        "- evictionHard: {memory.available: 1Gi}\n",
    ],
)
def test_what_is_written_otherwise_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        of_file(text.encode())


@pytest.mark.parametrize(
    ("soft", "why"),
    [
        pytest.param("evictionSoft: [3Gi]\n", "evictionSoft is no mapping of texts", id="list"),
        pytest.param("evictionSoft: {memory.available: much}\n", "'much' in evictionSoft", id="no-quantity"),
    ],
)
def test_soft_threshold_that_can_not_be_read_is_said_and_the_hard_one_holds(
    tmp_path: Path, soft: str, why: str
) -> None:
    kubelet(tmp_path, f"--config={CONFIG}", files={CONFIG: f"evictionHard: {{memory.available: 2Gi}}\n{soft}"})

    hard = read(LISTEN, tmp_path)

    assert hard.of(32 * 1024 * MIB) == 2048 * MIB
    assert why in hard.problem


def test_soft_threshold_of_a_json_file_that_can_not_be_read_costs_nobody_the_hard_one() -> None:
    found = of_file(b'{"evictionHard": {"memory.available": "2Gi"}, "evictionSoft": 1}')
    assert found == Thresholds({"memory.available": "2Gi"}, problem="evictionSoft is no mapping of texts")


def test_soft_threshold_of_a_flag_holds_whatever_the_file_says_of_it(tmp_path: Path) -> None:
    kubelet(
        tmp_path,
        f"--config={CONFIG}",
        "--eviction-soft=memory.available<3Gi",
        files={CONFIG: "evictionSoft: [3Gi]\n"},
    )

    hard = read(LISTEN, tmp_path)

    assert (hard.of(32 * 1024 * MIB), hard.problem) == (3072 * MIB, "")


def test_threshold_of_a_file_with_drop_ins(tmp_path: Path) -> None:
    files = {
        CONFIG: YAML,
        "/etc/kubelet.d/10-a.conf": "evictionHard: {memory.available: 5%}\n",
        "/etc/kubelet.d/20-b.conf": "evictionHard: {nodefs.available: 5%}\n",
        "/etc/kubelet.d/30-c.conf.bak": "evictionHard: {memory.available: 1%}\n",
    }
    kubelet(tmp_path, f"--config={CONFIG}", "--config-dir", "/etc/kubelet.d", files=files)

    hard = read(LISTEN, tmp_path)

    assert (hard.size_bytes, hard.ratio, hard.problem) == (0, pytest.approx(0.05), "")
    assert hard.source == f"evictionHard in /etc/kubelet.d/20-b.conf; evictionSoft in {CONFIG}"


def test_flag_wins_over_the_file(tmp_path: Path) -> None:
    flag = "--eviction-hard=nodefs.available<5%,memory.available<1Gi"
    kubelet(tmp_path, f"--config={CONFIG}", flag, files={CONFIG: YAML})

    hard = read(LISTEN, tmp_path)

    assert hard.of(32 * 1024 * MIB) == 5 * 1024 * MIB, "the soft threshold of the file is the larger"
    assert (hard.size_bytes, hard.source) == (1024 * MIB, f"--eviction-hard; evictionSoft in {CONFIG}")


@pytest.mark.parametrize(
    ("words", "of_32_gib", "source"),
    [
        pytest.param(["--eviction-soft=memory.available<1Gi"], 1024, "kubelet's default; --eviction-soft", id="flag"),
        pytest.param(
            ["--eviction-soft=memory.available<5%", "--eviction-hard=memory.available<2Gi"],
            2048,
            "--eviction-hard; --eviction-soft",
            id="the-hard-one-is-larger",
        ),
        pytest.param(["--eviction-soft=nodefs.available<5%"], 100, "kubelet's default", id="of-another-signal"),
    ],
)
def test_threshold_is_the_larger_of_hard_and_soft(
    tmp_path: Path, words: list[str], of_32_gib: int, source: str
) -> None:
    kubelet(tmp_path, *words)

    hard = read(LISTEN, tmp_path)

    assert (hard.of(32 * 1024 * MIB), hard.source) == (of_32_gib * MIB, source)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        pytest.param("port: 1\n", 100 * MIB, id="not-set"),
        pytest.param("evictionHard: {nodefs.available: 5%}\n", 0, id="others-set-unset-it"),
        pytest.param(
            "evictionHard: {nodefs.available: 5%}\nmergeDefaultEvictionSettings: true\n",
            100 * MIB,
            id="defaults-merged",
        ),
    ],
)
def test_kubelets_default_holds_where_nothing_else_is_set(tmp_path: Path, text: str, size: int) -> None:
    kubelet(tmp_path, f"--config={CONFIG}", files={CONFIG: text})

    hard = read(LISTEN, tmp_path)

    assert (hard.size_bytes, hard.problem) == (size, "")


def test_kubelet_that_uses_this_criproxy_is_preferred(tmp_path: Path) -> None:
    kubelet(tmp_path, "--eviction-hard=memory.available<1Gi", pid=5)
    kubelet(tmp_path, f"--container-runtime-endpoint=unix://{LISTEN}", "--eviction-hard=memory.available<2Gi", pid=9)

    assert read(LISTEN, tmp_path).size_bytes == 2048 * MIB


@pytest.mark.parametrize("text", [None, "evictionHard: *anchor\n", "evictionHard: {memory.available: much}\n"])
def test_what_can_not_be_read_is_said_and_kubelets_default_assumed(tmp_path: Path, text: str | None) -> None:
    kubelet(tmp_path, f"--config={CONFIG}", files={CONFIG: text} if text else {})

    hard = read(LISTEN, tmp_path)

    assert (hard.size_bytes, hard.ratio) == (100 * MIB, 0.0)
    assert hard.problem


def test_process_of_another_name_counts_only_if_it_uses_this_criproxy(tmp_path: Path) -> None:
    kubelet(tmp_path, "--eviction-hard=memory.available<1Gi", pid=5)
    (tmp_path / "proc/5/comm").write_text("kubelet-exporte\n")
    other = read(LISTEN, tmp_path)
    kubelet(tmp_path, f"--container-runtime-endpoint={LISTEN}", "--eviction-hard=memory.available<2Gi", pid=6)
    (tmp_path / "proc/6/comm").write_text("kubelet-v1.20.2\n")

    assert other.problem
    assert read(LISTEN, tmp_path).size_bytes == 2048 * MIB


def test_node_without_a_kubelet_is_said(tmp_path: Path) -> None:
    (tmp_path / "proc/1").mkdir(parents=True)
    (tmp_path / "proc/1/comm").write_text("systemd\n")

    assert read(LISTEN, tmp_path) == EvictionHard(problem="no kubelet runs here by that name")


@pytest.mark.parametrize(
    "status", ["Uid:\t0\t0\nNSpid:\t70\t1\n", "Uid:\t1000\t1000\nNSpid:\t70\n"], ids=["a-pods", "a-users"]
)
def test_who_only_calls_itself_kubelet_is_not_the_nodes(tmp_path: Path, status: str) -> None:
    kubelet(tmp_path, f"--container-runtime-endpoint=unix://{LISTEN}", "--eviction-hard=memory.available<90%")
    (tmp_path / "proc/7/status").write_text(status)
    assert read(LISTEN, tmp_path) == EvictionHard(problem="no kubelet runs here by that name")


@pytest.mark.parametrize("name", [b"kubelet\xff", b"kubelet\x1cUid:0", b"kubelet\rNSpid: 1"])
def test_name_of_a_pods_process_does_not_hide_kubelets_threshold(tmp_path: Path, name: bytes) -> None:
    kubelet(tmp_path, "--eviction-hard=memory.available<1Gi", pid=9)
    kubelet(tmp_path, "--eviction-hard=memory.available<9Gi", pid=7)
    (tmp_path / "proc/7/comm").write_bytes(name + b"\n")
    (tmp_path / "proc/7/status").write_bytes(b"Name:\t" + name + b"\nUid:\t1000\t1000\nNSpid:\t7\t1\n")

    hard = read(LISTEN, tmp_path)

    assert (hard.size_bytes, hard.problem) == (1024 * MIB, "")


def test_quantity_beyond_all_numbers_is_said(tmp_path: Path) -> None:
    kubelet(tmp_path, f"--container-runtime-endpoint=unix://{LISTEN}", "--eviction-hard=memory.available<1e400")
    assert "more than any node has" in read(LISTEN, tmp_path).problem
