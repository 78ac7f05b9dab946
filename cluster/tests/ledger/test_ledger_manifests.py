"""The ledger's manifests fit the code; the rights that they give are all used, and no other is needed."""

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from cluster.tests.controller.test_controller import until
from cluster.tests.manifests import load, rights_of
from cluster.tests.manifests import named as named_of
from criproxy_cluster.certificates.keeper import LEDGER, CertificateKeeper
from criproxy_cluster.cli import main
from criproxy_cluster.commands.ledger import LEASE, LedgerSettings
from criproxy_cluster.controller.leader import Leader
from criproxy_cluster.ledger.desk import Desk, Seen
from criproxy_cluster.ledger.http_door import BIND
from criproxy_cluster.ledger.law import Ledger
from criproxy_cluster.ledger.reviews import Asked
from criproxy_cluster.ledger.watching import PodReader, Watches
from criproxy_cluster.vocabulary.gives_back import MOST_CHARACTERS
from criproxy_cluster.vocabulary.names import GIVES_BACK
from criproxy_cluster.yarn.operator import YarnSettings

FOLDER = Path(__file__).parents[2] / "manifests" / "ledger"
BASE = FOLDER.parent / "base"
CPU = "kubernetes.io/batch-cpu"
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
OBJECTS = load(FOLDER)


def named(kind, name):
    return named_of(OBJECTS, kind, name)


def rights(account):
    return rights_of(OBJECTS, account)


def test_every_manifest_is_in_the_kustomization_which_has_the_image_of_base():
    assert {file.name for file in FOLDER.glob("*.yaml")} == {*KUSTOMIZATION["resources"], "kustomization.yaml"}
    assert KUSTOMIZATION["images"] == yaml.safe_load((BASE / "kustomization.yaml").read_text())["images"]


def test_nothing_of_base_is_changed():
    base = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    others = [one for file in base for one in yaml.safe_load_all((BASE / file).read_text())]
    names = {(one["kind"], one["metadata"]["name"]) for one in others}
    assert not names & {(one["kind"], one["metadata"]["name"]) for one in OBJECTS}


def test_a_bind_never_waits_for_long_and_never_fails_for_want_of_an_answer():
    (webhook,) = named("ValidatingWebhookConfiguration", LEDGER.configuration)["webhooks"]
    assert (webhook["failurePolicy"], webhook["timeoutSeconds"]) == ("Ignore", 1)
    (rule,) = webhook["rules"]
    assert rule["resources"] == ["pods/binding", "bindings"] and rule["operations"] == ["CREATE"]
    (expression,) = webhook["namespaceSelector"]["matchExpressions"]
    assert expression["operator"] == "NotIn" and {"kube-system", "criproxy-system"} <= set(expression["values"])
    assert "objectSelector" not in webhook, "a Binding has no labels"


def test_the_ledger_is_found():
    (webhook,) = named("ValidatingWebhookConfiguration", LEDGER.configuration)["webhooks"]
    service = named("Service", LEDGER.service)
    template = named("Deployment", "criproxy-ledger")["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert webhook["clientConfig"]["service"]["path"] == BIND
    assert webhook["clientConfig"]["service"]["name"] == LEDGER.service
    assert service["spec"]["selector"] == template["metadata"]["labels"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    settings = LedgerSettings(Path("/"))
    assert ports == {"bind": settings.port, "reserve": settings.grpc_port}
    assert {one["targetPort"] for one in service["spec"]["ports"]} == ports.keys()
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert [one["secret"]["secretName"] for one in template["spec"]["volumes"] if "secret" in one] == [LEDGER.serving]


def test_a_new_version_can_take_the_place_of_an_old_leader_that_alone_is_ready():
    """Kubernetes takes no ready pod away while fewer than replicas - maxUnavailable would be left, and no new pod gets
    ready before that one is gone. It rounds the share down.
    """
    spec = named("Deployment", "criproxy-ledger")["spec"]
    share = spec["strategy"]["rollingUpdate"]["maxUnavailable"]
    for replicas in (spec["replicas"], 1, 3):
        assert replicas - int(share.rstrip("%")) * replicas // 100 == 0


def test_only_pods_with_the_label_may_reserve():
    policy = named("NetworkPolicy", "criproxy-ledger")
    anybody, labelled = policy["spec"]["ingress"]
    assert [one["port"] for one in anybody["ports"]] == ["bind"] and "from" not in anybody
    assert [one["port"] for one in labelled["ports"]] == ["reserve"] and labelled["from"][0]["podSelector"]


def test_the_ledger_may_ask_for_the_name_of_its_resource_manager():
    (egress,) = named("NetworkPolicy", "criproxy-ledger")["spec"]["egress"]
    assert "to" not in egress and {"protocol": "UDP", "port": 53} in egress["ports"]
    assert {"protocol": "TCP", "port": 1, "endPort": 65535} in egress["ports"]


def test_names_are_those_of_the_code():
    assert {one["metadata"]["name"] for one in OBJECTS if one["kind"] == "Secret"} == {LEDGER.authority, LEDGER.serving}
    assert {one["metadata"]["name"] for one in OBJECTS if one["kind"] == "Lease"} == {LEASE}


def templates():
    for one in OBJECTS:
        spec = one.get("spec") or {}
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        if "template" in spec:
            yield one["kind"], spec["template"]["spec"]


@pytest.mark.parametrize("spec", [spec for _, spec in templates()], ids=[kind for kind, _ in templates()])
def test_containers_run_verbs_that_there_are_and_may_do_nothing_else(spec, capsys):
    (container,) = spec["containers"]
    with pytest.raises(SystemExit) as ended:
        main([*container["args"], "--help"])
    assert ended.value.code == 0 and container["args"][0] in capsys.readouterr().out
    assert spec["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["readOnlyRootFilesystem"]


def install(kube):
    webhooks = [{
        "name": "ledger.colocation.criproxy.io", "clientConfig": {}, "admissionReviewVersions": ["v1"],
        "sideEffects": "NoneOnDryRun",
    }]  # fmt: skip
    kube.put("validatingwebhookconfigurations", {"metadata": {"name": LEDGER.configuration}, "webhooks": webhooks})
    for name in (LEDGER.authority, LEDGER.serving):
        kube.put("secrets", {"metadata": {"name": name}}, "criproxy-system")
    kube.put("nodes", node("1"))
    kube.put("pods", waiting("a"), "default")


def node(cpu):
    return {"metadata": {"name": "n"}, "spec": {}, "status": {"allocatable": {CPU: cpu}}}


def waiting(name):
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    spec = {"containers": [{"resources": {"requests": {CPU: "1"}}}]}
    return {"metadata": {**meta, "labels": {"colocation.criproxy.io/class": "offline"}}, "spec": spec, "status": {}}


async def certified(kube, log):
    async with kube.client() as client:
        await CertificateKeeper(client, "criproxy-system", log, LEDGER).keep(datetime.now(UTC))


async def all_done(kube, log):
    """A leader that lists, hears of what is new, and reads what it has not heard of."""
    ledger, seen = Ledger(), Seen()
    async with kube.client() as client:
        reader = PodReader(client)
        desk = Desk(ledger, seen, reader, leads=lambda: leader.leads, now_s=time.monotonic, log=log)
        leader = Leader(client, "criproxy-system", "a", desk.lead, log, lease=LEASE)
        tasks = [asyncio.create_task(one) for one in (leader.run(), Watches(client, ledger, seen, log).run())]
        try:
            await until(lambda: leader.leads and not seen.missing, 30.0)  # it is not there, and is made
            await until(lambda: ledger.pod("uid-a") and ledger.free("n") == {CPU: 1})
            kube.put("nodes", {**kube.get("nodes", "n"), **node("2")})
            await until(lambda: ledger.free("n") == {CPU: 2})
            kube.put("pods", waiting("b"), "default")
            await until(lambda: ledger.pod("uid-b"))
            found = await desk._read(Asked("r", "default", "a", "uid-a", "n", dry_run=False))
            assert found is not None, "it did not come to pass"
        finally:
            for one in tasks:
                one.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


WORK = {"criproxy-ledger": all_done, "criproxy-ledger-certificates": certified}


@pytest.mark.parametrize("account", WORK)
def test_all_rights_are_used_and_no_other(account, kube, log, monkeypatch):
    monkeypatch.setattr("criproxy_cluster.controller.lease_law.DURATION_S", 1.0)
    install(kube)
    kube.allowed = rights(account)

    asyncio.run(WORK[account](kube, log))

    assert all(kube.may(*request) for request in kube.requests)
    used = {*kube.requests, *((verb, what) for verb, what, _ in kube.requests)}
    assert rights(account) <= used


def test_the_ledger_s_certificate_is_of_its_own_authority_and_for_its_own_service(kube, log):
    install(kube)
    asyncio.run(certified(kube, log))
    assert kube.get("secrets", LEDGER.serving, "criproxy-system")["data"].keys() == {"tls.crt", "tls.key"}
    (webhook,) = kube.get("validatingwebhookconfigurations", LEDGER.configuration)["webhooks"]
    assert (
        webhook["clientConfig"]["caBundle"]
        == kube.get("secrets", LEDGER.authority, "criproxy-system")["data"]["ca.crt"]
    )


# --- the component of YARN -------------------------------------------------------------------------------------------


def test_yarn_s_component_has_arguments_that_the_ledger_takes(monkeypatch):
    component = yaml.safe_load((FOLDER.parent / "yarn" / "kustomization.yaml").read_text())
    (patch,) = component["patches"]
    assert patch["target"] == {"kind": "Deployment", "name": "criproxy-ledger"}
    assert rights_of(load(FOLDER.parent / "yarn"), "criproxy-ledger") == {("patch", "nodes")}
    added = [one["value"] for one in yaml.safe_load(patch["patch"])]
    found = []
    monkeypatch.setattr("criproxy_cluster.commands.ledger.main", lambda settings: found.append(settings.yarn))
    with pytest.raises(SystemExit):
        main(["ledger", *added, "--resource-manager=http://rm:8088"])
    assert found == [YarnSettings(("http://rm:8088",))], "what it names are the defaults"


def test_yarn_s_policy_is_about_the_account_that_may_patch_nodes_and_the_annotation_that_nodes_read():
    objects = load(FOLDER.parent / "yarn")
    policy = named_of(objects, "ValidatingAdmissionPolicy", "notes.colocation.criproxy.io")["spec"]
    binding = named_of(objects, "ValidatingAdmissionPolicyBinding", "notes.colocation.criproxy.io")["spec"]
    (subject,) = named_of(objects, "ClusterRoleBinding", "criproxy-ledger-yarn")["subjects"]
    user = f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
    (condition,) = policy["matchConditions"]
    assert condition["expression"] == f'request.userInfo.username == "{user}"'
    assert (policy["failurePolicy"], binding["validationActions"]) == ("Fail", ["Deny"])
    assert binding["policyName"] == "notes.colocation.criproxy.io"
    notes, longest = policy["validations"][1:]
    assert f'"{GIVES_BACK}"' in notes["expression"]
    assert longest["expression"] == f'variables.annotations[1][?"{GIVES_BACK}"].orValue("").size() <= {MOST_CHARACTERS}'
