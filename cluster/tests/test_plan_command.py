import pytest
import yaml

from cluster.tests.test_controller import node, policy, put_policy
from cluster.tests.test_convert_command import run

CPU = "kubernetes.io/batch-cpu"


@pytest.fixture
def cluster(kube, tmp_path, monkeypatch):
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{kube.port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(file))
    kube.page = 3
    for number in range(8):
        kube.put("nodes", node(f"n{number}", {"pool": f"p{number % 2}"}, allocatable={CPU: "100" if number else "0"}))
    return kube


def planned(tmp_path, *policies):
    file = tmp_path / "policy.yaml"
    file.write_text(yaml.safe_dump_all(policies))
    return str(file)


def test_a_plan_says_which_nodes_would_change_and_how_and_changes_nothing(cluster, tmp_path, capsys):
    put_policy(cluster, "all", settings={"cpu": {"reserve_cores": 1}})
    by_hand = {"pool": "p1", "colocation.criproxy.io/managed": "false"}
    cluster.put("nodes", node("n7", by_hand))
    night = policy(
        "night",
        priority=5,
        selector={"matchLabels": {"pool": "p1"}},
        settings={"cpu": {"reserve_cores": 2}},
        enabled=False,
    )

    code, out, err = run(["plan", planned(tmp_path, night)], capsys)

    assert (code, err) == (1, "")
    assert out.splitlines() == [
        "3 nodes (n1, n3, n5), 3 lending now:",
        "  colocation.enabled: the node's file -> false",
        '  colocation.on_disable: the node\'s file -> "evict"',
        "  cpu.reserve_cores: 1 -> 2",
        "  running offline pods leave, and nothing is published",
        'managed by people (label colocation.criproxy.io/managed: "false"), so not changed: n7',
        "3 of 8 nodes would change.",
    ]
    assert {verb for verb, _, _ in cluster.requests} == {"list"}


def test_a_policy_that_is_there_already_changes_nothing(cluster, tmp_path, capsys):
    spec = {"schedule": {"windows": [{"start": "22:00", "end": "06:00", "policy": "dynamic"}]}}
    put_policy(cluster, "night", 4, **spec)

    code, out, _ = run(["plan", planned(tmp_path, policy("night", **spec))], capsys)

    assert (code, out) == (0, "0 of 8 nodes would change.\n")


def test_one_that_is_replaced_shows_lists_too(cluster, tmp_path, capsys):
    put_policy(cluster, "night", schedule={"windows": []})
    windows = [{"start": "22:00", "end": "06:00", "policy": "off"}]

    out = run(["plan", planned(tmp_path, policy("night", schedule={"windows": windows}))], capsys)[1]

    assert '  schedule.windows: [] -> [{"end":"06:00","policy":"off","start":"22:00"}]\n' in out


WRONG = {
    "no policy": ({"kind": "Pod"}, "there is no ColocationPolicy in it"),
    "no name": ({"kind": "ColocationPolicy", "metadata": {}}, "no metadata.name"),
    "a bad one": (policy("x", setings={}), "ColocationPolicy x: spec"),
}


@pytest.mark.parametrize(("document", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_planned_is_said(document, message, cluster, tmp_path, capsys):
    code, out, err = run(["plan", planned(tmp_path, document)], capsys)

    assert (code, out) == (2, "")
    assert message in err


def test_a_cluster_that_does_not_answer_is_said(cluster, tmp_path, capsys):
    cluster.fail("GET .*/nodes", 503)

    code, _, err = run(["plan", planned(tmp_path, policy("x"))], capsys)

    assert code == 2 and "503" in err
