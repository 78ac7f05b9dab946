import pytest
import yaml

from cluster.tests.commands.test_convert_command import run
from cluster.tests.controller.test_controller import node, policy, put_policy

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
        "  in all, kubernetes.io/batch-cpu 300 -> 0",
        *(f"  {name}: kubernetes.io/batch-cpu 100 -> 0" for name in ("n1", "n3", "n5")),
        'managed by people (label colocation.criproxy.io/managed: "false"), so not changed: n7',
        "3 of 8 nodes would change.",
    ]
    assert {verb for verb, _, _ in cluster.requests} == {"list"}


def test_a_policy_that_is_there_already_changes_nothing(cluster, tmp_path, capsys):
    spec = {"schedule": {"windows": [{"start": "22:00", "end": "06:00", "policy": "dynamic"}]}}
    put_policy(cluster, "night", 4, **spec)

    code, out, _ = run(["plan", planned(tmp_path, policy("night", **spec))], capsys)

    assert (code, out) == (0, "0 of 8 nodes would change.\n")


@pytest.mark.parametrize(
    ("settings", "amounts"),
    [
        pytest.param({"cpu": {"watermark_ratio": 0.8}}, [], id="what each node computes then is not foretold"),
        pytest.param(
            {"kubernetes": {"publish": False}},
            [
                "  in all, kubernetes.io/batch-cpu 8200 -> 0",
                "  in all, kubernetes.io/batch-memory 16.0Gi -> 0",
                "  n1: kubernetes.io/batch-cpu 4000 -> 0, kubernetes.io/batch-memory 8.0Gi -> 0",
                "  n3: kubernetes.io/batch-cpu 4000 -> 0, kubernetes.io/batch-memory 8.0Gi -> 0",
                "  n5: kubernetes.io/batch-cpu 100 -> 0",
                "  n7: kubernetes.io/batch-cpu 100 -> 0",
            ],
            id="no more is published",
        ),
    ],
)
def test_a_plan_says_what_nodes_would_not_lend_any_more(settings, amounts, cluster, tmp_path, capsys):
    lends = {CPU: "4k", "kubernetes.io/batch-memory": "8Gi", "example.com/cores": "4"}
    for name in ("n1", "n3"):
        cluster.put("nodes", node(name, {"pool": "p1"}, capacity={"cpu": "16", "memory": "64Gi"}, allocatable=lends))
    group = {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["p1"]}]}

    out = run(["plan", planned(tmp_path, policy("night", selector=group, settings=settings))], capsys)[1]

    assert out.splitlines()[2:-1] == amounts


def test_of_many_nodes_a_plan_shows_some_and_their_sum(cluster, tmp_path, capsys):
    for number in range(25):
        cluster.put("nodes", node(f"m{number:02}", {"pool": "m"}, allocatable={CPU: "10"}))
    off = policy("m", selector={"matchLabels": {"pool": "m"}}, enabled=False)

    out = run(["plan", planned(tmp_path, off)], capsys)[1].splitlines()

    assert "  in all, kubernetes.io/batch-cpu 250 -> 0" in out
    assert [line for line in out if line.startswith("  m")] == [
        f"  m{number:02}: kubernetes.io/batch-cpu 10 -> 0" for number in range(20)
    ]
    assert "  … and 5 more nodes" in out


def test_a_policy_that_would_be_deleted_is_planned_too(cluster, tmp_path, capsys):
    put_policy(cluster, "night", selector={"matchLabels": {"pool": "p1"}}, enabled=True)
    put_policy(cluster, "other", settings={"cpu": {"reserve_cores": 1}})

    code, out, _ = run(["plan", "--delete", "night"], capsys)

    assert code == 1
    assert out.splitlines()[:2] == [
        "4 nodes (n1, n3, n5, n7), 4 lending now:",
        "  colocation.enabled: true -> the node's file",
    ]
    assert out.splitlines()[-1] == "4 of 8 nodes would change."
    both = run(
        ["plan", planned(tmp_path, policy("new", settings={"cpu": {"reserve_cores": 1}})), "--delete", "other"], capsys
    )
    assert both[:2] == (0, "0 of 8 nodes would change.\n"), "one takes the other's place"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--delete", "nigth"], "there is no ColocationPolicy nigth"), ([], "nothing to plan")],
    ids=["no such policy", "nothing"],
)
def test_a_plan_of_nothing_is_refused(arguments, message, cluster, capsys):
    code, out, err = run(["plan", *arguments], capsys)

    assert (code, out) == (2, "")
    assert message in err


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
