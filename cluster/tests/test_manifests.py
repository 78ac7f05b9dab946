"""The manifests fit together and fit the code; the rights that they give are all used, and no other is needed."""

import asyncio
import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from cluster.tests.certificates.test_keeper import REQUIRED
from cluster.tests.controller.test_controller import (
    CPU,
    annotation,
    controlling,
    install_lease,
    node,
    policy,
    status,
    until,
)
from cluster.tests.fake_kube import patched
from cluster.tests.manifests import load, rights_of
from cluster.tests.manifests import named as named_of
from cluster.tests.quota.test_quota_keeper import active, keeping, put_flavor, put_workload, quota
from cluster.tests.quota.test_quota_keeper import put_node as put_lending
from criproxy.hooks.offline import DEFAULT_RULE, PRESETS, OfflineRules
from criproxy.model import Pod, PodRef
from criproxy_cluster.certificates.keeper import AUTHORITY, CONFIGURATION, SERVICE, SERVING, CertificateKeeper
from criproxy_cluster.cli import main
from criproxy_cluster.commands.webhook import WebhookSettings
from criproxy_cluster.controller.leader import LEASE, Leader
from criproxy_cluster.controller.policies import parsed
from criproxy_cluster.quota.keeper import QuotaSettings
from criproxy_cluster.quota.surplus import OVER_S
from criproxy_cluster.requests import Trouble
from criproxy_cluster.resources import PolicyResource
from criproxy_cluster.vocabulary.names import ANNOTATION_MARKS, CLASS, IGNORE, OFFLINE, PRESSURE
from criproxy_cluster.vocabulary.presets import EVERY_MARK, OWN_MARK
from criproxy_cluster.vocabulary.times import rfc3339
from criproxy_cluster.webhook.app import CONVERT
from criproxy_cluster.webhook.conversion import ConversionSettings, is_offline

_BASE = Path(__file__).parent.parent / "manifests" / "base"


def of_kind(kind):
    return [one for one in load(_BASE) if one["kind"] == kind]


def named(kind, name):
    return named_of(load(_BASE), kind, name)


def test_every_manifest_is_in_its_kustomization():
    for folder in (_BASE, *(_BASE.parent / name for name in ("koordinator", "budget", "queue", "queue-suspend"))):
        listed = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
        assert {file.name for file in folder.glob("*.yaml")} == {*listed, "kustomization.yaml"}


def marks_of(condition):
    """The annotations by which an entry chooses: keys and values. The real API server reads the expression elsewhere,
    cluster/integration/test_marks.py."""
    listed, test = condition["expression"].split("].exists(one, ")
    assert test == 'object.?metadata.annotations[?one[0]].orValue("") == one[1])'
    return [tuple(one) for one in json.loads(f"{listed}]")]


def test_there_is_an_entry_for_each_mark_and_our_own_is_called_again():
    """It is for what other webhooks add later: the API server calls no entry again that it has not called before."""
    (configuration,) = of_kind("MutatingWebhookConfiguration")
    assert configuration["metadata"]["name"] == CONFIGURATION
    entries = [
        (
            parsed(one["name"], 1, {"selector": one["objectSelector"]}).selector,
            [marks_of(condition) for condition in one.get("matchConditions", ())],
        )
        for one in configuration["webhooks"]
    ]

    def chooses(entry, found):
        selector, conditions = entries[entry]
        marked = [any(found["annotation"].get(key) == value for key, value in one) for one in conditions]
        return selector.selects(found["label"]) and all(marked)

    for number in range(2 ** len(EVERY_MARK)):
        found: dict[str, dict[str, str]] = {"label": {}, "annotation": {}}
        for bit, mark in enumerate(EVERY_MARK):
            if number >> bit & 1:
                found[mark.of][mark.key] = mark.value
        called = []
        for entry in range(len(entries)):
            if chooses(entry, found):
                called.append(entry)
                found["label"][OWN_MARK.key] = OWN_MARK.value  # as the webhook does
        assert len(called) <= 2, found
        assert [entry for entry in range(len(entries)) if chooses(entry, found)] == called[-1:]
        assert bool(called) == bool(number)


def test_the_webhook_fails_for_marked_pods_only_and_is_found():
    (configuration,) = of_kind("MutatingWebhookConfiguration")
    (service,) = of_kind("Service")
    deployment = named("Deployment", "criproxy-webhook")
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    for one in configuration["webhooks"]:
        assert one["objectSelector"].get("matchLabels") or one["matchConditions"]
        assert one["failurePolicy"] == "Fail"
        assert one["rules"][0]["operations"] == ["CREATE"] and one["sideEffects"] == "None"
        found = one["clientConfig"]["service"]
        assert (found["name"], found["path"]) == (SERVICE, CONVERT) == (service["metadata"]["name"], CONVERT)
    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]
    assert container["ports"][0]["containerPort"] == WebhookSettings(Path("/")).port
    (policy,) = [one for one in of_kind("NetworkPolicy") if one["spec"].get("ingress")]
    assert policy["spec"]["podSelector"]["matchLabels"] == service["spec"]["selector"]
    assert policy["spec"]["ingress"] == [{"ports": [{"protocol": "TCP", "port": container["ports"][0]["name"]}]}]
    own = deployment["spec"]["template"]["metadata"]
    marks = {(mark.of, mark.key, mark.value) for mark in EVERY_MARK}
    has = {(of, *one) for of in ("label", "annotation") for one in own.get(f"{of}s", {}).items()}
    assert not marks & has, "it would wait for itself"


def test_webhook_has_the_last_word_among_those_that_add_requests_to_pods():
    """The API server calls them by their configurations' names, twice at most."""
    (configuration,) = of_kind("MutatingWebhookConfiguration")
    others = (
        "istio-sidecar-injector",
        "kyverno-resource-mutating-webhook-cfg",
        "vpa-webhook-config",
        "volcano-admission",
    )
    assert all(configuration["metadata"]["name"] > other for other in others)


def test_no_entry_can_hold_up_the_cluster_or_the_webhook_s_own_pods():
    """An API server before 1.30 may drop an entry's expression: without labels to choose by, it is of all pods then."""
    (configuration,) = of_kind("MutatingWebhookConfiguration")
    own = named("Deployment", "criproxy-webhook")["metadata"]["namespace"]
    open_to_all = [one for one in configuration["webhooks"] if "matchLabels" not in one["objectSelector"]]
    assert open_to_all
    for one in open_to_all:
        namespaces = parsed(one["name"], 1, {"selector": one["namespaceSelector"]}).selector
        assert not any(namespaces.selects({"kubernetes.io/metadata.name": name}) for name in ("kube-system", own))
        assert namespaces.selects({"kubernetes.io/metadata.name": "batch"})


@pytest.mark.parametrize("namespace", ["kube-system", "criproxy-system", "batch"])
@pytest.mark.parametrize("mark", EVERY_MARK, ids=lambda mark: f"{mark.of}-{mark.key}")
def test_nodes_and_the_cluster_take_the_same_for_a_mark(mark, namespace):
    given = {"labels": {}, "annotations": {}, f"{mark.of}s": {mark.key: mark.value}}
    of_pod = Pod(PodRef("uid", namespace, "pod"), given["labels"], given["annotations"])
    (configuration,) = of_kind("MutatingWebhookConfiguration")

    def sent(entry):
        selectors = (
            (entry["objectSelector"], given["labels"]),
            (
                entry.get("namespaceSelector", {}),
                {"kubernetes.io/metadata.name": namespace},
            ),
        )
        conditions = [marks_of(one) for one in entry.get("matchConditions", ())]
        return all(parsed("one", 1, {"selector": one}).selector.selects(labels) for one, labels in selectors) and all(
            any(given["annotations"].get(key) == value for key, value in one) for one in conditions
        )

    offline = OfflineRules((DEFAULT_RULE,), PRESETS).why(of_pod) is not None
    assert offline == (mark.of == "label" or namespace == "batch")
    assert any(map(sent, configuration["webhooks"])) == offline
    assert is_offline({"metadata": {"namespace": namespace, **given}}) == offline


def test_policies_of_all_marks_know_where_annotations_are_none():
    """The real API server reads the expressions, cluster/integration/test_marks.py."""
    policies = {one["metadata"]["name"].partition(".")[0]: one["spec"] for one in of_kind("ValidatingAdmissionPolicy")}
    (unmarked,) = [one for one in policies["unmarked"]["matchConditions"] if one["name"] == "no-mark"]
    (record,) = policies["record"]["validations"]
    there = 'one[0] == "labels" || !(request.namespace in ["kube-system", "criproxy-system"])'
    assert there in unmarked["expression"] and there in record["expression"]


def test_a_namespace_may_leave_the_annotations_to_another_system():
    """Of the webhook, and of what is said of pods that were not sent to it: all labels are marks there, too."""
    theirs = {"kubernetes.io/metadata.name": "katalyst", ANNOTATION_MARKS: IGNORE}
    (configuration,) = of_kind("MutatingWebhookConfiguration")
    selectors = {one["name"]: one.get("namespaceSelector", {}) for one in configuration["webhooks"]}
    said = set()
    for one in of_kind("ValidatingAdmissionPolicy"):
        name, spec = one["metadata"]["name"], one["spec"]
        if name.startswith("unconverted"):
            selectors[name] = spec["matchConstraints"].get("namespaceSelector", {})
            (expression,) = [one["expression"] for one in spec["matchConditions"] if one["name"] == "mark"]
            by_annotation = "annotations" in name
            marks = [mark for mark in EVERY_MARK if json.dumps([f"{mark.of}s", mark.key, mark.value]) in expression]
            assert {mark.of for mark in marks} == {"annotation" if by_annotation else "label"}
            said.update(marks)
    assert said == {*EVERY_MARK}
    for name, selector in selectors.items():
        namespaces = parsed(name, 1, {"selector": selector}).selector
        assert namespaces.selects(theirs) == (not name.startswith(("annotations.", "unconverted-annotations."))), name
        assert namespaces.selects({**theirs, ANNOTATION_MARKS: "another"})
    selected = [one for name, one in selectors.items() if name.startswith(("annotations.", "unconverted-annot"))]
    assert selected == [selected[0]] * 2, "who was not sent is not told, nor refused, that it was not converted"


def test_marked_only_refuses_all_that_is_warned_of():
    component = yaml.safe_load((_BASE.parent / "marked-only" / "kustomization.yaml").read_text())
    warn = [one for one in of_kind("ValidatingAdmissionPolicyBinding") if one["spec"]["validationActions"] == ["Warn"]]
    assert [one["target"]["name"] for one in component["patches"]] == [one["metadata"]["name"] for one in warn]


def test_a_record_is_let_in_with_any_mark_that_there_is_and_with_no_other_reason():
    policy = named("ValidatingAdmissionPolicy", "record.colocation.criproxy.io")["spec"]
    (rule,) = policy["matchConstraints"]["resourceRules"]
    assert (rule["operations"], rule["resources"], policy["failurePolicy"]) == (["CREATE"], ["pods"], "Fail")
    assert [one["name"] for one in policy["matchConditions"]] == ["record", "no-mirror"]
    (check,) = policy["validations"]
    for mark in EVERY_MARK:
        assert json.dumps([f"{mark.of}s", mark.key, mark.value]) in check["expression"]
    assert f"{CLASS}={OFFLINE}" in check["message"]
    binding = named("ValidatingAdmissionPolicyBinding", "record.colocation.criproxy.io")["spec"]
    assert binding == {"policyName": "record.colocation.criproxy.io", "validationActions": ["Deny"]}


def test_a_namespace_that_enforces_the_restricted_standard_takes_all_pods():
    """Source: Kubernetes, "Pod Security Standards", Restricted."""
    for spec in pod_specs().values():
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert all("emptyDir" in volume or "secret" in volume for volume in spec.get("volumes", ()))


def pod_specs():
    """Of each workload, by kind and name."""
    found = {}
    for one in load(_BASE):
        spec = one.get("spec") or {}
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        if "template" in spec:
            found[one["kind"], one["metadata"]["name"]] = spec["template"]["spec"]
    return found


def test_who_answers_requests_has_no_credential_and_no_key_but_its_own():
    spec = pod_specs()["Deployment", "criproxy-webhook"]
    assert spec["automountServiceAccountToken"] is False
    account = named("ServiceAccount", spec["serviceAccountName"])
    assert account["automountServiceAccountToken"] is False
    bound = {subject["name"] for one in load(_BASE) for subject in one.get("subjects", ())}
    assert account["metadata"]["name"] not in bound
    assert [volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume] == [SERVING]
    (policy,) = [one for one in of_kind("NetworkPolicy") if one["metadata"]["name"] == "criproxy-webhook"]
    assert "Egress" in policy["spec"]["policyTypes"] and "egress" not in policy["spec"], "it asks nobody"
    others = {one["serviceAccountName"] for (_, name), one in pod_specs().items() if name != "criproxy-webhook"}
    assert others == {CONTROLLER, CERTIFICATES}


@pytest.mark.parametrize("workload", pod_specs(), ids=" ".join)
def test_containers_run_verbs_that_there_are(workload, capsys):
    (container,) = pod_specs()[workload]["containers"]
    with pytest.raises(SystemExit) as ended:
        main([*container["args"], "--help"])
    assert ended.value.code == 0 and container["args"][0] in capsys.readouterr().out


def test_names_are_those_of_the_code():
    assert {one["metadata"]["name"] for one in of_kind("Secret")} == {AUTHORITY, SERVING}
    assert {one["metadata"]["name"] for one in of_kind("Lease")} == {LEASE}
    classes = {one["metadata"]["name"] for one in of_kind("PriorityClass")}
    assert classes == {ConversionSettings().priority_class, "colocation-offline"}
    (crd,) = of_kind("CustomResourceDefinition")
    info = PolicyResource._api_info
    assert crd["metadata"]["name"] == f"{info.plural}.{info.resource.group}"
    assert [one["name"] for one in crd["spec"]["versions"]] == [info.resource.version]


def test_pods_that_wait_for_what_is_lent_buy_no_nodes():
    """Below the cluster autoscaler's cutoff. Source: its FAQ, `expendable-pods-priority-cutoff`."""
    assert named("PriorityClass", ConversionSettings().priority_class)["value"] < -10


def test_the_class_of_older_versions_is_left_as_it_was():
    """Pods and templates name it, and an API server refuses to change a class's value."""
    assert named("PriorityClass", "colocation-offline")["value"] == -5


def test_no_offline_class_preempts():
    for folder in (_BASE, _BASE.parent / "koordinator"):
        classes = [one for one in load(folder) if one["kind"] == "PriorityClass"]
        assert classes and all(one["preemptionPolicy"] == "Never" for one in classes)


def test_the_schema_has_the_fields_that_are_read_and_written():
    (crd,) = of_kind("CustomResourceDefinition")
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    windows = [{"start": "22:00", "end": "06:00", "policy": "static", "days": "mon", "cores": 1, "bytes": 4 << 20}]
    schedule = {"timeZone": "UTC", "windows": windows, "outside": "off", "graceSeconds": 1, "onClose": "evict"}
    spec = {"selector": {}, "priority": 1, "enabled": True, "settings": {}, "schedule": schedule}
    overflow = {"pods": 1, "evictions": 1, "waitSeconds": 10, "deadlineMarginSeconds": 0}
    raises, slo = {"waitSeconds": 1, "pods": 1}, {"times": 2}
    owners = {"namespaces": ["batch"], "overflow": overflow, "raise": raises, "slo": slo}
    spec["owners"] = owners
    assert parsed("x", 1, spec).settings["schedule"]["windows"] == windows
    assert spec.keys() == schema["spec"]["properties"].keys()
    assert schedule.keys() == schema["spec"]["properties"]["schedule"]["properties"].keys()
    item = schema["spec"]["properties"]["schedule"]["properties"]["windows"]["items"]
    assert windows[0].keys() == item["properties"].keys()
    of_owners = schema["spec"]["properties"]["owners"]["properties"]
    assert owners.keys() == of_owners.keys()
    for name, table in (("overflow", overflow), ("raise", raises), ("slo", slo)):
        assert table.keys() == of_owners[name]["properties"].keys()


def test_a_column_s_name_is_a_text():
    (crd,) = of_kind("CustomResourceDefinition")  # YAML takes a bare Off for false
    names = [column["name"] for column in crd["spec"]["versions"][0]["additionalPrinterColumns"]]
    assert names and all(isinstance(name, str) for name in names)


_SCHEMA_FIELDS = """
    $ref $schema additionalItems additionalProperties allOf anyOf default definitions dependencies description enum
    example exclusiveMaximum exclusiveMinimum externalDocs format id items maxItems maxLength maxProperties maximum
    minItems minLength minProperties minimum multipleOf not nullable oneOf pattern patternProperties properties required
    title type uniqueItems x-kubernetes-embedded-resource x-kubernetes-int-or-string x-kubernetes-list-map-keys
    x-kubernetes-list-type x-kubernetes-map-type x-kubernetes-preserve-unknown-fields x-kubernetes-validations
"""
"""Source: apiextensions.k8s.io/v1 JSONSchemaProps."""


def schema_nodes(schema, where):
    """A schema and all below it, each with its place."""
    yield where, schema
    for name, below in schema.get("properties", {}).items():
        yield from schema_nodes(below, f"{where}.{name}")
    for field in ("items", "additionalProperties"):
        if isinstance(schema.get(field), dict):
            yield from schema_nodes(schema[field], f"{where}.{field}")


def test_the_schema_has_only_fields_that_an_api_server_knows():
    """In a flow map, what follows the comma of a bare text is a field of its own, and 1.25 and later refuse it."""
    (crd,) = of_kind("CustomResourceDefinition")
    schemas = list(schema_nodes(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"], ""))
    assert {where: fields for where, one in schemas if (fields := one.keys() - _SCHEMA_FIELDS.split())} == {}
    assert all(isinstance(one.get("description", ""), str) for _, one in schemas)


def test_the_budget_lets_one_go_where_there_is_one():
    """A drain would never end. The chart sets how many replicas there are."""
    (budget,) = load(_BASE.parent / "budget")
    assert budget["spec"]["maxUnavailable"] == 1 and "minAvailable" not in budget["spec"]


def without_a_value(value, where=""):
    """The places of keys that have none."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from [f"{where}.{key}"] if below is None else without_a_value(below, f"{where}.{key}")
    elif isinstance(value, list):
        for index, below in enumerate(value):
            yield from without_a_value(below, f"{where}[{index}]")


@pytest.mark.parametrize("file", sorted(_BASE.parent.rglob("*.yaml")), ids=lambda file: "/".join(file.parts[-2:]))
def test_no_key_is_left_without_a_value(file):
    """A bare text with a comma in a flow map makes one."""
    assert [place for one in yaml.safe_load_all(file.read_text()) for place in without_a_value(one)] == []


def critical_namespaces(objects):
    """Namespaces with workloads of the system's priority classes."""
    return {one["metadata"]["namespace"] for one in objects if "priorityClassName: system-" in yaml.safe_dump(one)}


@pytest.mark.parametrize(
    "folder",
    [_BASE, _BASE.parent / "node", _BASE.parents[2] / "monitoring" / "node-proxy"],
    ids=lambda folder: folder.name,
)
def test_critical_pods_are_let_in_where_that_takes_a_quota(folder):
    """As on GKE. Source: Kubernetes, "Limit Priority Class consumption by default"."""
    objects = load(folder)
    (quota,) = [one for one in objects if one["kind"] == "ResourceQuota"]
    assert {quota["metadata"]["namespace"]} == critical_namespaces(objects)
    (scope,) = quota["spec"]["scopeSelector"]["matchExpressions"]
    assert (scope["scopeName"], scope["operator"]) == ("PriorityClass", "In")
    assert set(scope["values"]) == {"system-node-critical", "system-cluster-critical"}
    assert quota["spec"]["hard"] == {"pods": "1G"}, "it is to bound nothing"


CONTROLLER, CERTIFICATES = "criproxy-controller", "criproxy-certificates"


def rights(account):
    return rights_of(load(_BASE), account)


def with_cert_manager():
    """The base as the overlay's patches make it, and what it has of its own."""
    folder = _BASE.parent / "cert-manager"
    overlay = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert overlay["resources"] == ["../base", "certificate.yaml"]
    objects = [*load(_BASE), *yaml.safe_load_all((folder / "certificate.yaml").read_text())]
    for patch in overlay["patches"]:
        change = yaml.safe_load(patch["patch"])
        kind, name = (
            (patch["target"]["kind"], patch["target"]["name"])
            if "target" in patch
            else (change["kind"], change["metadata"]["name"])
        )
        (target,) = [one for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name)]
        if "target" in patch:
            assert all(patched(target, one) for one in change)
        else:
            assert change["$patch"] == "delete"
            objects.remove(target)
    return objects


def test_with_cert_manager_nobody_has_the_rights_to_make_a_certificate():
    objects = with_cert_manager()
    resources = {
        resource for one in objects for rule in one.get("rules") or () for resource in rule.get("resources", ())
    }
    assert not {"secrets", "mutatingwebhookconfigurations"} & resources
    assert not [one for one in objects if CERTIFICATES in str(one) and one["kind"] != "NetworkPolicy"]
    (configuration,) = [one for one in objects if one["kind"] == "MutatingWebhookConfiguration"]
    assert "cert-manager.io/inject-ca-from" in configuration["metadata"]["annotations"]
    (deployment,) = [
        one for one in objects if one["metadata"]["name"] == "criproxy-webhook" and one["kind"] == "Deployment"
    ]
    certificate = named_of(objects, "Certificate", "criproxy-cluster")
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    assert certificate["spec"]["secretName"] in [one["secret"]["secretName"] for one in volumes if "secret" in one]


def test_with_cert_manager_a_renewed_certificate_is_of_the_authority_that_is_trusted_already():
    """The caBundle is the `ca.crt` beside the webhook's certificate. Replicas have a new one two minutes later."""
    objects = with_cert_manager()
    (configuration,) = [one for one in objects if one["kind"] == "MutatingWebhookConfiguration"]
    trusted = configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
    assert trusted == "criproxy-system/criproxy-cluster"
    serving = named_of(objects, "Certificate", "criproxy-cluster")["spec"]
    issuer = named_of(objects, "Issuer", serving["issuerRef"]["name"])["spec"]
    (authority,) = [one["spec"] for one in objects if one["kind"] == "Certificate" and one["spec"].get("isCA")]
    assert issuer == {"ca": {"secretName": authority["secretName"]}}
    assert named_of(objects, "Issuer", authority["issuerRef"]["name"])["spec"] == {"selfSigned": {}}
    assert authority["secretName"] != serving["secretName"], "no replica has the authority's key"
    assert authority["commonName"] and authority["duration"] == "87600h"
    assert authority["privateKey"]["rotationPolicy"] == "Never", "what it has signed is of its next certificate, too"


def install(kube):
    """A cluster in which there is something to do for every right."""
    webhooks = [{"name": "offline.colocation.criproxy.io", "clientConfig": {}, **REQUIRED}]
    kube.put("mutatingwebhookconfigurations", {"metadata": {"name": CONFIGURATION}, "webhooks": webhooks})
    for name in (AUTHORITY, SERVING):
        kube.put("secrets", {"metadata": {"name": name}}, "criproxy-system")
    kube.put("colocationpolicies", policy("all", settings={"cpu": {"reserve_cores": 1}}))
    held = {"type": "ColocationReady", "status": "True", "reason": "Held", "lastHeartbeatTime": rfc3339(time.time())}
    kube.put("nodes", node("n1", allocatable={CPU: "5"}, conditions=[held]))


async def certified(kube, log):
    async with kube.client() as client:
        await CertificateKeeper(client, "criproxy-system", log).keep(datetime.now(UTC))


async def all_done(kube, log):
    """A leader, until a change of each kind has come to pass."""
    async with kube.client() as client, controlling(kube, log):
        leader = Leader(client, "criproxy-system", "a", asyncio.Event().wait, log)  # type: ignore[arg-type]
        task = asyncio.create_task(leader.run())
        try:
            await until(lambda: leader.leads, 30.0)  # it is not there, and is made
            await until(lambda: annotation(kube, "n1"))
            await until(lambda: kube.get("nodes", "n1")["spec"]["taints"][0]["key"] == PRESSURE)
            await until(lambda: status(kube, "all").get("nodes") == 1)
            await until(lambda: kube.get("nodes", "n1")["status"]["allocatable"][CPU] == "0")
            kube.put("colocationpolicies", policy("all", 2, settings={"cpu": {"reserve_cores": 2}}))
            await until(lambda: annotation(kube, "n1")["settings"]["cpu"]["reserve_cores"] == 2)
            kube.put("nodes", {**kube.get("nodes", "n1"), "metadata": {"name": "n2", "annotations": {}, "labels": {}}})
            await until(lambda: annotation(kube, "n2"))
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def test_a_replica_that_is_told_to_stop_gives_its_lease_back(kube, tmp_path):
    install(kube)
    install_lease(kube)
    config = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{kube.port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "criproxy-system"}}],
        "current-context": "x",
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    root = Path(__file__).parent.parent
    environment = {**os.environ, "KUBECONFIG": str(tmp_path / "kubeconfig"), "PYTHONPATH": str(root)}
    command = [sys.executable, "-m", "criproxy_cluster", "controller"]
    replica = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)

    def holder():
        return kube.get("leases", LEASE, "criproxy-system")["spec"].get("holderIdentity")

    try:
        asyncio.run(until(holder, 30.0))
        asyncio.run(until(lambda: annotation(kube, "n1"), 30.0))
    finally:
        replica.terminate()
        assert replica.wait(30) == 0
    assert holder() == ""


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr("criproxy_cluster.controller.lease_law.DURATION_S", 1.0)
    monkeypatch.setattr("criproxy_cluster.controller.node_law.AWAY_S", 0.5)
    monkeypatch.setattr("criproxy_cluster.controller.node_law.TRUST_S", 0.4)


@pytest.mark.parametrize("job", ["base", "ledger"])
def test_argo_cd_takes_a_job_that_is_gone_when_it_is_done_for_done(job):
    """Source: Argo CD, "Resource Hooks": a hook is no part of what is compared."""
    (found,) = [one for one in load(_BASE.parent / job) if one["kind"] == "Job"]
    assert found["spec"]["ttlSecondsAfterFinished"] == 60
    assert found["metadata"]["annotations"] == {
        "argocd.argoproj.io/hook": "Sync",
        "argocd.argoproj.io/hook-delete-policy": "BeforeHookCreation",
    }


WORK = {CONTROLLER: all_done, CERTIFICATES: certified}


@pytest.mark.parametrize("account", WORK)
def test_all_rights_are_used_and_no_other(account, kube, log, soon):
    install(kube)
    kube.allowed = rights(account)

    asyncio.run(WORK[account](kube, log))

    assert all(kube.may(*request) for request in kube.requests)
    used = {*kube.requests, *((verb, what) for verb, what, _ in kube.requests)}
    assert rights(account) <= used


@pytest.mark.parametrize(
    ("account", "missing"),
    [(account, right) for account in WORK for right in sorted(rights(account))],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
@pytest.mark.usefixtures("soon")
def test_without_one_of_its_rights_something_is_not_done(account, missing, kube, stepped, *, log, monkeypatch):
    """In time: without a watch, lists tell of all, now and then."""
    monkeypatch.setattr("criproxy_cluster.requests.FIRST_PAUSE_S", 30.0)
    install(kube)
    kube.allowed = rights(account) - {missing}

    try:
        stepped(WORK[account](kube, log))
    except (AssertionError, Trouble) as error:
        assert "it did not come to pass" in str(error) or "403" in str(error)
    else:
        assert missing[0] == "watch", "lists, again and again, do its work"
        assert not all(kube.may(*request) for request in kube.requests)


# --- the queue's components ------------------------------------------------------------------------------------------

_QUEUE, _SUSPEND = _BASE.parent / "queue", _BASE.parent / "queue-suspend"


def component_rights(folder):
    """As `rights`, of what a component adds."""
    (role,) = [one for one in load(folder) if one["kind"] == "ClusterRole"]
    (binding,) = [one for one in load(folder) if one["kind"] == "ClusterRoleBinding"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert [one["name"] for one in binding["subjects"]] == [CONTROLLER]
    return {
        (verb, resource, name) if name else (verb, resource)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
    }


def with_components(*folders):
    """The controller's arguments by the components' patches."""
    objects = load(_BASE)
    (deployment,) = [one for one in objects if (one["kind"], one["metadata"]["name"]) == ("Deployment", CONTROLLER)]
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    for folder in folders:
        for patch in yaml.safe_load((folder / "kustomization.yaml").read_text())["patches"]:
            assert patch["target"] == {"kind": "Deployment", "name": CONTROLLER}
            for change in yaml.safe_load(patch["patch"]):
                assert (change["op"], change["path"]) == ("add", "/spec/template/spec/containers/0/args/-")
                arguments.append(change["value"])
    return arguments


@pytest.mark.parametrize(
    ("folders", "suspends"), [((_QUEUE,), None), ((_QUEUE, _SUSPEND), 20)], ids=["queue", "with-suspend"]
)
def test_components_switch_the_quota_on_with_the_names_of_their_rights(folders, suspends, monkeypatch):
    found = []
    monkeypatch.setattr("criproxy_cluster.commands.controller.main", lambda _, quota, owners: found.append(quota))
    with pytest.raises(SystemExit):
        main(with_components(*folders))
    assert found == [QuotaSettings("lent", ("lent",), suspends_per_hour=suspends)]
    assert ("patch", "cohorts", found[0].cohort) in component_rights(_QUEUE)


def test_nothing_of_kueue_is_allowed_without_the_components():
    assert "kueue" not in str(load(_BASE)) and with_components() == ["controller"]


QUOTA_RIGHTS = [(folder, right) for folder in (_QUEUE, _SUSPEND) for right in sorted(component_rights(folder))]


async def kept(kube, log):
    """Until a Cohort was made, and followed, and a Workload was suspended."""
    async with keeping(kube, log, suspends_per_hour=1):
        await until(lambda: quota(kube)[0] == "4000m")
        put_lending(kube, "a", "1000")
        await until(lambda: quota(kube)[0] == "1000m")
        await until(lambda: active(kube, "w1") is False, OVER_S + 30.0)


def install_queue(kube):
    put_flavor(kube)
    put_lending(kube, "a", "4000")
    for number in range(2):
        put_workload(kube, f"w{number}", number)


def test_all_rights_of_the_queue_are_used_and_no_other(kube, stepped, log):
    install_queue(kube)
    own = component_rights(_QUEUE) | component_rights(_SUSPEND)
    kube.allowed = rights(CONTROLLER) | own

    stepped(kept(kube, log))

    assert all(kube.may(*request) for request in kube.requests)
    used = {*kube.requests, *((verb, what) for verb, what, _ in kube.requests)}
    assert own <= used


@pytest.mark.parametrize(
    ("folder", "missing"), QUOTA_RIGHTS, ids=lambda value: value.name if isinstance(value, Path) else " ".join(value)
)
def test_without_one_of_the_queue_s_rights_something_is_not_done(folder, missing, kube, stepped, *, log, monkeypatch):
    monkeypatch.setattr("criproxy_cluster.requests.FIRST_PAUSE_S", 30.0)
    install_queue(kube)
    kube.allowed = (rights(CONTROLLER) | component_rights(_QUEUE) | component_rights(_SUSPEND)) - {missing}

    try:
        stepped(kept(kube, log))
    except AssertionError as error:
        assert "it did not come to pass" in str(error)
    else:
        assert missing[0] == "watch", "lists, again and again, do its work"
        assert not all(kube.may(*request) for request in kube.requests)
