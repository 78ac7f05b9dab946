"""`criproxy withdraw` at a fake API server."""

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from criproxy.cli import main
from criproxy.commands import withdraw as command
from criproxy.commands.withdraw import NotWithdrawnError
from criproxy.config import last_run
from criproxy.config.settings import Config, Control, Kubernetes, Proxy
from criproxy.daemon.bypass import Bypass
from criproxy.daemon.kubernetes import MARK_FILE, POLICY_FILE, PublishedMark, mark_file
from criproxy.kube.policy import InForce, PolicyFile
from criproxy.observe import client
from criproxy.vocabulary.names import PUBLISHES
from criproxy.vocabulary.policy import NodePolicy
from tests.fakes.apiserver import FakeApiServer
from tests.kube.conftest import authority

__all__ = ["authority"]

CPU, MEMORY, MID = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory", "kubernetes.io/mid-cpu"


@pytest.fixture
def api(authority):
    with FakeApiServer(authority).running() as server:
        lent = {CPU: "4000", MEMORY: "1073741824", "cpu": "8"}
        server.put_node(status={"capacity": lent, "allocatable": lent})
        yield server


def config(tmp_path, kubeconfig, **settings):
    proxy = Proxy(listen=f"{tmp_path}/criproxy.sock")
    return Config(proxy=proxy, kubernetes=Kubernetes(enabled=True, kubeconfig=str(kubeconfig), **settings))


def withdraw(config):
    return command.withdraw(config, mark_file(config))


def test_node_lends_nothing_and_its_condition_says_that_criproxy_is_away(tmp_path, authority, api):
    words = withdraw(config(tmp_path, authority.kubeconfig(api.port)))
    status = api.nodes["node1"]["status"]
    assert status["allocatable"] == status["capacity"] == {CPU: "0", MEMORY: "0", "cpu": "8"}
    assert [(one["type"], one["status"], one["reason"]) for one in status["conditions"]] == [
        ("ColocationReady", "False", "Away")
    ]
    assert words == f"node node1 lends nothing: {CPU}, {MEMORY} are 0"


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        pytest.param({}, {CPU: "0", MEMORY: "0", MID: "2000"}, id="none"),
        pytest.param({"names": "mid"}, {CPU: "4000", MEMORY: "1073741824", MID: "0"}, id="other names"),
        pytest.param({"publish": False}, {CPU: "4000", MEMORY: "1073741824", MID: "2000"}, id="not published"),
    ],
)
def test_policy_that_held_last_says_what_was_published(policy, left, tmp_path, authority, api):
    lent = {CPU: "4000", MEMORY: "1073741824", MID: "2000"}
    api.put_node(status={"capacity": lent, "allocatable": lent})
    file = tmp_path / "config.toml"
    file.write_text(
        f"""
        proxy.listen = "{tmp_path}/criproxy.sock"
        control.checkpoint = "{tmp_path}/state/checkpoint.json"
        kubernetes = {{ enabled = true, kubeconfig = "{authority.kubeconfig(api.port)}" }}
        """
    )
    PolicyFile(tmp_path / "state" / POLICY_FILE).write(InForce(NodePolicy("1", "night", {"kubernetes": policy})))

    assert main(["withdraw", "--config", str(file)]) == 0
    assert {name: api.nodes["node1"]["status"]["allocatable"][name] for name in left} == left


def test_names_that_were_published_by_an_earlier_config_go(tmp_path, authority, api):
    api.put_node(metadata={"annotations": {PUBLISHES: f"{CPU},{MEMORY}"}})
    withdraw(config(tmp_path, authority.kubeconfig(api.port), names="crane"))
    node = api.nodes["node1"]
    assert node["status"]["allocatable"] == {"cpu": "8", "gocrane.io/cpu": "0", "gocrane.io/memory": "0"}
    assert node["metadata"]["annotations"] == {PUBLISHES: "gocrane.io/cpu,gocrane.io/memory"}


def test_node_without_kubernetes_asks_nobody():
    assert "nothing to withdraw" in withdraw(Config())


def test_what_stands_since_publishing_was_switched_off_while_the_server_was_away_goes(tmp_path, authority, api):
    api.put_node(metadata={"annotations": {PUBLISHES: f"{CPU},{MID}"}})
    api.nodes["node1"]["status"] = {"allocatable": {CPU: "4000", MEMORY: "7", MID: "2000", "cpu": "8"}}
    words = withdraw(config(tmp_path, authority.kubeconfig(api.port), publish=False))
    node = api.nodes["node1"]
    assert node["status"]["allocatable"] == {CPU: "0", MEMORY: "7", "cpu": "8"}, "memory is another's"
    assert node["metadata"]["annotations"] == {}
    assert words == f"node node1 lends nothing: {CPU} are 0"


@pytest.mark.parametrize(("publish", "left"), [(True, True), (False, False)])
def test_mark_goes_with_the_annotation(publish, left, tmp_path, authority, api):
    api.put_node(metadata={"annotations": {PUBLISHES: CPU}})
    mark = tmp_path / MARK_FILE
    mark.write_bytes(b"{}")
    control = Control(checkpoint=f"{tmp_path}/checkpoint.json")
    for _ in range(2):
        withdraw(replace(config(tmp_path, authority.kubeconfig(api.port), publish=publish), control=control))
    assert (mark.exists(), PUBLISHES in api.nodes["node1"]["metadata"]["annotations"]) == (left, left)


def test_mark_that_can_not_be_removed_is_told(tmp_path, authority, api):
    (tmp_path / MARK_FILE).mkdir()
    control = Control(checkpoint=f"{tmp_path}/checkpoint.json")
    words = withdraw(replace(config(tmp_path, authority.kubeconfig(api.port), publish=False), control=control))
    assert words.startswith("nothing to withdraw") and MARK_FILE in words


def test_config_that_is_lost_leaves_it_to_the_mark(tmp_path, authority, api, capsys):
    api.put_node(metadata={"annotations": {PUBLISHES: f"{CPU},{MEMORY}"}})
    (tmp_path / "config.d").mkdir()
    where = f'proxy.listen = "{tmp_path}/criproxy.sock"\ncontrol.checkpoint = "{tmp_path}/checkpoint.json"'
    (tmp_path / "config.d" / "own.toml").write_text(where)
    arguments = ["withdraw", "--config", str(tmp_path / "config.toml")]
    assert main(arguments) == 0 and "nothing to withdraw" in capsys.readouterr().out
    assert api.requests == []

    lent = Kubernetes(enabled=True, kubeconfig=str(authority.kubeconfig(api.port)))
    (tmp_path / MARK_FILE).write_bytes(msgspec.json.encode(PublishedMark(lent, f"{tmp_path}/criproxy.sock")))
    assert main(arguments) == 0
    assert api.nodes["node1"]["status"]["allocatable"] == {CPU: "0", MEMORY: "0", "cpu": "8"}


def test_names_that_are_not_ours_are_left_to_others(tmp_path, authority, api):
    assert "nothing to withdraw" in withdraw(config(tmp_path, authority.kubeconfig(api.port), publish=False))
    assert [one.method for one in api.requests] == ["GET"]


def test_criproxy_that_runs_is_left_to_publish(tmp_path, authority, api, monkeypatch):
    monkeypatch.setattr(client, "fetch", lambda *_: (200, "ok"))
    with pytest.raises(NotWithdrawnError, match=r"kubernetes\.publish = false"):
        withdraw(config(tmp_path, authority.kubeconfig(api.port)))
    assert api.requests == []


def test_config_with_errors_has_the_criproxy_asked_that_runs_by_it(tmp_path, authority, api, monkeypatch, capsys):
    """At the socket of the last run: nobody answers at the default one."""
    file, listen = tmp_path / "config.toml", tmp_path / "own.sock"
    file.write_text(f"""
        proxy.listen = 3
        kubernetes = {{ enabled = true, kubeconfig = "{authority.kubeconfig(api.port)}" }}
        control.checkpoint = "{tmp_path}/checkpoint.json"
    """)
    assert Bypass((tmp_path,), listen, tmp_path / "runtime.sock", None).tell() == ""
    monkeypatch.setattr(last_run, "_CONFIG", file)
    monkeypatch.setattr(last_run, "_STATE", tmp_path)
    asked: list[Path] = []
    monkeypatch.setattr(client, "fetch", lambda socket, *_: asked.append(socket))
    assert main(["withdraw", "--config", str(file)]) == 1
    assert "criproxy runs" in capsys.readouterr().err
    assert (asked, api.requests) == ([tmp_path / "own-status.sock"], [])


def test_criproxy_that_runs_takes_back_by_itself_what_is_not_to_be_published(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "fetch", lambda *_: (200, "ok"))
    with pytest.raises(NotWithdrawnError, match="by itself; see `criproxy status`") as raised:
        withdraw(config(tmp_path, "/nowhere", publish=False))
    assert "would publish again" not in str(raised.value)


def test_kubeconfig_that_is_not_there_is_named(tmp_path):
    with pytest.raises(NotWithdrawnError, match="/nowhere: No such file"):
        withdraw(config(tmp_path, "/nowhere"))


def test_answer_that_refuses_is_told(tmp_path, authority, api):
    api.delete_node()
    with pytest.raises(NotWithdrawnError, match='404 nodes "node1" not found'):
        withdraw(config(tmp_path, authority.kubeconfig(api.port)))
