"""The chart, as Helm lints and renders it: what its values change, what it refuses, and that nodes read their config.

cluster/integration/test_chart.py installs it, and compares it with what kubectl makes of cluster/manifests.
"""

import itertools
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from cluster.image.oci import MACHINES
from criproxy import __version__
from criproxy.config.load import parse
from criproxy.config.schema import settings

CHECKOUT = Path(__file__).parents[2]
CHART = CHECKOUT / "packaging" / "chart"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
Values = Mapping[str, Any]

NODE: Values = {"node": {"enabled": True}}
ALL: Values = {
    "cluster": {
        "certManager": True,
        "koordinator": True,
        "budget": True,
        "metrics": True,
        "scheduler": True,
        "ledger": {"enabled": True},
        "queue": {"enabled": True, "suspend": True},
        "overflow": {"enabled": True, "remake": True},
    },
    "node": {"enabled": True},
    "installer": {"install": ["one"], "remove": ["two"]},
    "monitoring": {"operator": True, "nodeProxy": {"enabled": True, "image": "proxy:1"}},
}
FIRST = yaml.safe_load("""
image: {repository, tag, digest, pullPolicy, pullSecrets}
cluster: {enabled, certManager, markedOnly, koordinator, budget, metrics, queue, webhook, controller, ledger}
node: {enabled, config, credentials, maxUnavailable, priorityClassName, nodeSelector, tolerations, resources}
installer: {install, remove, config}
monitoring: {operator, nodeProxy}
""")
"""The keys that the first chart had."""
BOTH = {"install": ["one", "two"], "remove": ["two"]}


@pytest.fixture(scope="module")
def chart():
    with helm_python.Chart.load(CHART) as loaded:
        yield loaded


def render(chart: helm_python.Chart, values: Values, **options: Any) -> list[dict[str, Any]]:
    """All objects. Raises HelmError."""
    made = chart.render(dict(values), name="criproxy", **{"namespace": "default", "revision": 1, **options})
    texts = [text for name, text in made.items() if name.endswith(".yaml")]
    return [one for text in texts for one in yaml.safe_load_all(text) if one]


def find(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = [one for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def test_settings_that_the_page_gives_helm_render(chart: helm_python.Chart) -> None:
    """Each on its own, as Helm reads them, above all that may have been set before."""
    page = (CHECKOUT / "docs" / "chart.md").read_text(encoding="utf-8").replace("\\\n", "")
    commands = [shlex.split(line, comments=True) for line in page.splitlines() if line.startswith("helm ")]
    given = [two for words in commands for two in itertools.pairwise(words) if two[0].startswith("--set")]
    assert {flag for flag, _ in given} == {"--set", "--set-json"}
    for flag, text in given:
        values = helm_python.parse_set_json(text) if flag == "--set-json" else helm_python.parse_set_string(text)
        assert render(chart, values), text


@pytest.mark.parametrize("key", ["install", "remove"])
def test_list_of_nodes_that_is_taken_out_by_null_is_empty(chart: helm_python.Chart, key: str) -> None:
    other = {"install": "remove", "remove": "install"}[key]
    objects = render(chart, {**NODE, "installer": {key: None, other: ["one"]}})
    assert find(objects, "ClusterRole", "criproxy-installer")["rules"][0]["resourceNames"] == ["one"]


def pod_of(one: Mapping[str, Any]) -> dict[str, Any]:
    """The spec of a workload's pods."""
    spec: Any = one["spec"]
    return dict(spec.get("jobTemplate", {}).get("spec", spec)["template"]["spec"])


def term_of(one: Mapping[str, Any]) -> dict[str, Any]:
    """What a node must be for a workload's pods."""
    (term,) = pod_of(one)["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    return dict(term)


@pytest.mark.parametrize("values", [{}, NODE, ALL], ids=["default", "node", "all"])
def test_lint_finds_nothing(values):
    found = helm_python.lint(CHART, values, strict=True)
    assert [one["error"] for one in found["messages"]] == ["icon is recommended"] and found["errors"] == []


@pytest.mark.parametrize("given", [{}, {**NODE, "installer": {"install": ["one"]}}], ids=["default", "node"])
def test_values_reused_from_the_first_chart_leave_the_defaults_of_later_keys(chart, given):
    """`helm upgrade --reuse-values` puts the old release's values in the chart's place; null takes a default away."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert not [f"{section}.{key}" for section, keys in FIRST.items() for key in keys if key not in values[section]]
    later = {section: dict.fromkeys(keys.keys() - FIRST[section].keys()) for section, keys in values.items()}
    reused = {section: {**keys, **given.get(section, {})} for section, keys in later.items()}
    assert render(chart, reused) == render(chart, given)


def test_chart_has_each_folder_of_manifests():
    folders = {folder.name for folder in (CHECKOUT / "cluster/manifests").iterdir()}
    linked = {link.name for link in (CHART / "files").iterdir() if link.is_symlink()}
    by_values = {"marked-only", "yarn"}
    assert folders - linked == by_values
    assert all(link.resolve().is_dir() for link in (CHART / "files").iterdir())


def test_all_values_can_be_given_at_once(chart):
    names = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in render(chart, ALL)]
    assert len(names) == len(set(names))


def test_image_of_each_pod_is_the_one_that_the_values_name(chart):
    image = {"repository": "registry.example/criproxy", "pullPolicy": "Always", "pullSecrets": [{"name": "key"}]}
    workloads = [one for one in render(chart, {**ALL, "image": image}) if "containers" in str(one.get("spec"))]
    own = [one for one in workloads if one["metadata"]["name"] != "criproxy-node-proxy" and one["kind"] != "Service"]
    pods = [pod_of(one) for one in own if one["kind"] in ("Deployment", "DaemonSet", "Job", "CronJob")]
    assert len(pods) == 8
    for pod in pods:
        (container,) = pod["containers"]
        assert container["image"] == f"registry.example/criproxy:{__version__}"
        assert (container["imagePullPolicy"], pod["imagePullSecrets"]) == ("Always", [{"name": "key"}])
    digest = f"sha256:{'0' * 64}"
    pinned = render(chart, {"image": {"digest": digest}})
    (webhook,) = pod_of(find(pinned, "Deployment", "criproxy-webhook"))["containers"]
    assert webhook["image"] == f"criproxy@{digest}"


@pytest.mark.parametrize(
    "values", [{}, NODE, ALL, {"installer": {"install": ["one"]}}], ids=["default", "node", "all", "installer"]
)
def test_each_namespace_with_critical_pods_lets_them_in(chart, values):
    """Some API servers, as GKE's, do so only by a quota of these classes."""
    objects = render(chart, values)
    critical = {one["metadata"]["namespace"] for one in objects if "priorityClassName: system-" in yaml.safe_dump(one)}
    quotas = [one["metadata"]["namespace"] for one in objects if one["kind"] == "ResourceQuota"]
    assert critical and sorted(quotas) == sorted(critical)


def test_policies_stay_when_the_release_goes(chart):
    crd = find(render(chart, {}), "CustomResourceDefinition", "colocationpolicies.colocation.criproxy.io")
    assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert not chart.crds, "Helm would never upgrade them"


@pytest.mark.parametrize(("marked_only", "actions"), [(True, "Deny"), (False, "Warn")])
def test_pods_that_were_not_converted_are_refused_where_the_values_say_so(chart, marked_only, actions):
    made = render(chart, {"cluster": {"markedOnly": marked_only}})
    bindings = {one["metadata"]["name"]: one for one in made if one["kind"] == "ValidatingAdmissionPolicyBinding"}
    for name in ("unmarked", "unconverted", "unconverted-annotations"):
        assert bindings[f"{name}.colocation.criproxy.io"]["spec"]["validationActions"] == [actions]


def test_scheduler_s_configuration_is_there_where_the_values_say_so(chart):
    made = find(render(chart, {"cluster": {"scheduler": True}}), "ConfigMap", "kube-scheduler-lent")
    folder = CHECKOUT / "cluster/manifests/scheduler"
    files = {file.name: file.read_text() for file in folder.glob("kube-scheduler*.yaml")}
    assert len(files) == 2 and made["data"] == files
    assert made["metadata"]["namespace"] == "kube-system", "kube-scheduler's own"
    assert "kube-scheduler-lent" not in str(render(chart, {}))


def test_the_release_s_own_namespace_is_not_of_the_release(chart):
    def namespaces(namespace):
        objects = render(chart, NODE, namespace=namespace)
        return {one["metadata"]["name"] for one in objects if one["kind"] == "Namespace"}

    assert namespaces("default") == {"criproxy-system", "criproxy-node"}
    assert namespaces("criproxy-system") == {"criproxy-node"}
    assert namespaces("criproxy-node") == {"criproxy-system"}


def test_replicas_arguments_and_resources_are_the_values_own(chart):
    of_webhook = {
        "replicas": 3,
        "arguments": ["--preset=crane"],
        "resources": {"requests": {"cpu": "1"}},
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"operator": "Exists"}],
    }
    objects = render(chart, {"cluster": {"webhook": of_webhook}})
    webhook = find(objects, "Deployment", "criproxy-webhook")
    (container,) = pod_of(webhook)["containers"]
    assert webhook["spec"]["replicas"] == 3
    assert container["args"] == ["webhook", "--preset=crane"]
    assert container["resources"] == {"requests": {"cpu": "1"}}
    assert (pod_of(webhook)["nodeSelector"], pod_of(webhook)["tolerations"]) == (
        {"pool": "system"},
        [{"operator": "Exists"}],
    )
    assert find(objects, "Deployment", "criproxy-controller")["spec"]["replicas"] == 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"nodes": {}}, "'nodes' not allowed"),
        ({"node": {"config": {"cpu": {"min_core": 1}}}}, "'min_core' not allowed"),
        ({"node": {"config": {"memory": {"min_bytes": 1}}}}, "minimum: got 1"),
        ({"node": {"config": {"control": {"policy": "quick"}}}}, "value must be one of"),
        ({"node": {"config": {"observe": {"address": ""}}}}, "observe/address': '' does not match pattern"),
        ({"node": {"config": {"observe": {"address": "0.0.0.0:9464"}}}}, "0.0.0.0:9464' does not match pattern"),
        ({"installer": {"config": {"observe": {"address": "127.0.0.1"}}}}, "127.0.0.1' does not match pattern"),
        ({"installer": {"config": {"cpus": {}}}}, "'cpus' not allowed"),
        ({"image": {"digest": "1234"}}, "does not match pattern"),
        ({"image": {"architectures": []}}, "minItems: got 0"),
        ({"image": {"architectures": ["riscv64"]}}, "value must be one of"),
        ({"installer": BOTH}, "two is in installer.install and in installer.remove"),
        ({"monitoring": {"nodeProxy": {"enabled": True}}}, "name kube-rbac-proxy's image"),
        ({"cluster": {"overflow": {"remake": True}}}, "cluster.overflow.remake needs cluster.overflow.enabled"),
        ({"cluster": {"queue": {"suspend": True}}}, "cluster.queue.suspend needs cluster.queue.enabled"),
    ],
    ids=lambda one: "" if isinstance(one, dict) else one.replace(" ", "-"),
)
def test_mistakes_are_refused(chart, values, message):
    with pytest.raises(helm_python.HelmError, match=message):
        render(chart, values)


# --- the nodes ------------------------------------------------------------------------------------------------------

CONFIG: Mapping[str, Any] = {
    "colocation": {
        "enabled": True,
        "presets": ["koordinator"],
        "rules": [{"label": "team/\u00fc", "equals": 'a "b" \\ <c>\n#d'}, {"namespace": True, "prefix": "batch-"}],
    },
    "cpu": {"min_cores": 2, "reserve_cores": 0.25},
    "memory": {"min_bytes": 1 << 28, "max_bytes": 1 << 44},
    "schedule": {"windows": [{"days": "mon-fri", "start": "22:00", "end": "06:00", "policy": "dynamic"}]},
    "hardening": {},
}


def config_of(objects: list[dict[str, Any]], name: str) -> str:
    return str(find(objects, "ConfigMap", name)["data"]["config.toml"])


def test_a_node_reads_the_values_as_they_were_given(chart):
    for name, values in (
        ("criproxy-node", {"node": {"enabled": True, "config": CONFIG}}),
        ("criproxy-installer", {"installer": {"install": ["one"], "config": CONFIG}}),
    ):
        text = config_of(render(chart, values), name)
        given = {section: keys for section, keys in CONFIG.items() if keys}
        read = tomllib.loads(text)
        assert {section: read[section] for section in given} == given
        assert errors_of(text) == []


def errors_of(text: str) -> list[str]:
    return [f"{one.key}: {one.problem}" for one in parse(text.encode(), "config.toml").errors]


def test_each_section_and_key_of_the_nodes_config_is_a_value(chart):
    tables = chart.schema["$defs"]
    sections = tables["Config"]["properties"]
    known = {f"{section}.{key}" for section, one in sections.items() for key in tables[one["$ref"][8:]]["properties"]}
    assert known == {one.key for one in settings()}


def test_default_config_is_the_manifest_s_and_a_node_reads_it(chart):
    manifest = yaml.safe_load((CHECKOUT / "cluster/manifests/node/config.yaml").read_text())
    text = config_of(render(chart, NODE), "criproxy-node")
    assert text == manifest["data"]["config.toml"]
    assert errors_of(text) == []
    assert tomllib.loads(text)["proxy"]["front"] == "nri"


def test_paths_of_k3s_are_mounted_where_they_are(chart):
    config = {
        "proxy": {"runtime": "unix:///run/k3s/containerd/containerd.sock"},
        "kubelet": {"root_dir": "/data/kubelet"},
    }
    values = {"node": {"enabled": True, "config": config, "credentials": "/var/lib/rancher"}}
    pod = pod_of(find(render(chart, values), "DaemonSet", "criproxy-node"))
    (container,) = pod["containers"]
    paths = {one["name"]: one["hostPath"]["path"] for one in pod["volumes"] if "hostPath" in one}
    mounted = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert {name: mounted[name] for name in paths} == paths
    assert paths["runtime"] == "/run/k3s/containerd"
    assert (paths["kubelet"], paths["kubernetes"]) == ("/data/kubelet", "/var/lib/rancher")


@pytest.mark.parametrize(
    ("observe", "host", "port"),
    [
        ({}, "127.0.0.1", 9464),
        ({"log_level": "debug"}, "127.0.0.1", 9464),
        ({"address": "127.0.0.1:9999"}, "127.0.0.1", 9999),
        ({"address": "127.8.8.8:9464"}, "127.8.8.8", 9464),
        ({"address": "[::1]:9464"}, "::1", 9464),
        ({"address": "localhost:1"}, "127.0.0.1", 1),
    ],
    ids=["none", "another-key", "port", "all-of-127", "ipv6", "localhost"],
)
def test_probes_ask_where_criproxy_answers(chart, observe, host, port):
    objects = render(chart, {"node": {"enabled": True, "config": {"observe": observe}}})
    (container,) = pod_of(find(objects, "DaemonSet", "criproxy-node"))["containers"]
    asked = [container[probe]["httpGet"] for probe in ("readinessProbe", "livenessProbe")]
    assert [(one["host"], one["port"]) for one in asked] == [(host, port)] * 2
    assert parse(config_of(objects, "criproxy-node").encode(), "config.toml").config.observe.host_port == (host, port)


@pytest.mark.parametrize(
    ("observe", "upstream"),
    [
        ({}, "127.0.0.1:9464"),
        ({"address": "127.0.0.1:9999"}, "127.0.0.1:9999"),
        ({"address": "[::1]:9464"}, "[::1]:9464"),
        ({"address": "localhost:1"}, "127.0.0.1:1"),
    ],
    ids=["none", "port", "ipv6", "localhost"],
)
def test_proxy_of_the_metrics_asks_where_criproxy_answers(chart, observe, upstream):
    config = {"observe": observe}
    monitoring = {"nodeProxy": {"enabled": True, "image": "proxy:1"}}
    for values in (
        {"node": {"enabled": True, "config": config}},
        {"installer": {"install": ["one"], "config": config}},
    ):
        objects = render(chart, {**values, "monitoring": monitoring})
        (container,) = pod_of(find(objects, "DaemonSet", "criproxy-node-proxy"))["containers"]
        assert f"--upstream=http://{upstream}/" in container["args"]


def test_proxy_of_the_metrics_can_t_ask_at_two_addresses(chart):
    values = {
        "node": {"enabled": True},
        "installer": {"install": ["one"], "config": {"observe": {"address": "127.0.0.1:9999"}}},
        "monitoring": {"nodeProxy": {"enabled": True, "image": "proxy:1"}},
    }
    with pytest.raises(helm_python.HelmError, match=r"node\.config and installer\.config .* observe\.address"):
        render(chart, values)


WRITTEN = "may write: /run/containerd, /var/run/nri, /run/criproxy, /var/lib/criproxy"
READ = (
    "may read: /run/systemd, /run/dbus, /run/containerd, /var/run/nri, /run/criproxy, /var/lib/criproxy, "
    "/var/lib/kubelet, /etc/kubernetes, /var/log/pods"
)


@pytest.mark.parametrize(
    ("section", "key", "path", "directories"),
    [
        ("proxy", "listen", "/run/other/criproxy.sock", WRITTEN),
        ("proxy", "listen", "unix:///run/criproxy/../criproxy.sock", WRITTEN),
        ("control", "checkpoint", "/var/lib/criproxy-2/predictor.json", WRITTEN),
        ("control", "checkpoint", "/etc/kubernetes/predictor.json", WRITTEN),
        ("observe", "tls_certificate", "/etc/criproxy/tls.crt", READ),
        ("observe", "tls_key", "/etc/ssl/private/criproxy.key", READ),
        ("observe", "token_file", "/tmp/tokens", READ),
        ("observe", "client_ca", "/root/ca.crt", READ),
        ("kubernetes", "kubeconfig", "/var/lib/rancher/k3s/agent/kubelet.kubeconfig", READ),
    ],
)
def test_path_that_the_pod_does_not_have_is_refused(chart, section, key, path, directories):
    config = {section: {key: path}}
    with pytest.raises(helm_python.HelmError) as refused:
        render(chart, {"node": {"enabled": True, "config": config}})
    message = str(refused.value)
    assert (
        f"node.config.{section}.{key}: {path} is in none of the node's directories that the pod {directories}"
        in message
    )
    render(chart, {"installer": {"install": ["one"], "config": config}})


def test_paths_in_directories_that_the_pod_has_are_taken(chart):
    config = {
        "proxy": {"listen": "unix:///run/criproxy/other.sock"},
        "control": {"checkpoint": "/var/lib/criproxy/deeper/predictor.json"},
        "observe": {"tls_key": "/var/lib/criproxy/tls.key", "token_file": "/var/lib/rancher/tokens"},
        "kubernetes": {"kubeconfig": "/var/lib/rancher/k3s/agent/kubelet.kubeconfig"},
    }
    render(chart, {"node": {"enabled": True, "credentials": "/var/lib/rancher/", "config": config}})


def test_no_volume_is_without_its_mount(chart):
    for kind, name in (("DaemonSet", "criproxy-node"), ("Job", f"criproxy-install-{ONE}-1")):
        pod = pod_of(find(render(chart, ALL), kind, name))
        mounts = [one["name"] for one in pod["containers"][0]["volumeMounts"]]
        assert sorted(mounts) == sorted(one["name"] for one in pod["volumes"])


def test_the_node_s_pod_outlives_pressure_and_drains(chart):
    values = {"node": {"enabled": True, "maxUnavailable": 1}}
    daemonset = find(render(chart, values), "DaemonSet", "criproxy-node")
    pod = pod_of(daemonset)
    assert daemonset["spec"]["updateStrategy"] == {"rollingUpdate": {"maxUnavailable": 1}}
    assert (pod["priorityClassName"], pod["tolerations"]) == ("system-node-critical", [{"operator": "Exists"}])
    assert (pod["hostPID"], pod["hostNetwork"], pod["automountServiceAccountToken"]) == (True, True, False)


# --- the installer --------------------------------------------------------------------------------------------------

NODES = "criproxy-node"
ONE, TWO = "7692c3ad35", "3fc4ccfe74"
"""How the names of Jobs name the nodes one and two, whose own names may be too long for them."""


def test_each_node_has_a_job_of_its_own_at_each_revision(chart):
    for revision in (1, 2):
        objects = render(chart, {"installer": ALL["installer"]}, revision=revision)
        jobs = {
            one["metadata"]["name"]: pod_of(one)
            for one in objects
            if one["kind"] == "Job" and one["metadata"]["namespace"] == NODES
        }
        assert {name: (pod["nodeName"], pod["containers"][0]["command"][1]) for name, pod in jobs.items()} == {
            f"criproxy-install-{ONE}-{revision}": ("one", "install"),
            f"criproxy-remove-{TWO}-{revision}": ("two", "remove"),
        }
        find(objects, "Namespace", NODES)


def test_installer_may_read_its_nodes_alone(chart):
    (rule,) = find(render(chart, ALL), "ClusterRole", "criproxy-installer")["rules"]
    assert rule == {"apiGroups": [""], "resources": ["nodes"], "resourceNames": ["one", "two"], "verbs": ["get"]}


@pytest.mark.parametrize(
    ("installer", "names"),
    [
        ({"install": ["one"], "remove": ["two"]}, ["one", "two"]),
        ({"install": ["one"]}, ["one"]),
        ({"remove": ["two"]}, ["two"]),
    ],
    ids=["both", "installed", "being-removed"],
)
def test_a_node_with_the_package_has_no_pod_of_criproxy(chart, installer, names):
    term = term_of(find(render(chart, {**ALL, "installer": installer}), "DaemonSet", "criproxy-node"))
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "NotIn", "values": [one]} for one in names]


def test_a_node_without_the_package_may_have_the_pod(chart):
    assert "matchFields" not in term_of(find(render(chart, NODE), "DaemonSet", "criproxy-node"))


WORKLOADS = ("Deployment", "DaemonSet", "Job", "CronJob")


def test_no_pod_is_on_a_node_that_the_image_is_not_for(chart):
    objects = render(chart, {**NODE, "cluster": {"ledger": {"enabled": True}}})
    wanted = [{"key": "kubernetes.io/arch", "operator": "In", "values": list(MACHINES)}]
    assert [term_of(one)["matchExpressions"] for one in objects if one["kind"] in WORKLOADS] == [wanted] * 8


def test_every_pod_with_our_image_keeps_to_the_architectures_of_the_values(chart):
    with_jobs = {**ALL, "cluster": {**ALL["cluster"], "certManager": False}}
    objects = render(chart, {**with_jobs, "image": {"architectures": ["amd64"]}})
    ours = [one for one in objects if one["kind"] in WORKLOADS and "image: criproxy:" in yaml.safe_dump(pod_of(one))]
    wanted = [{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}]
    assert [term_of(one)["matchExpressions"] for one in ours] == [wanted] * 10
    node = find(objects, "DaemonSet", "criproxy-node")
    assert len(term_of(node)["matchFields"]) == 2, "nodes with the package are left out as before"


def test_a_daily_job_that_can_t_run_ends_before_the_next_is_due(chart):
    """`concurrencyPolicy: Forbid`: one that never ended would be the last."""
    objects = render(chart, {"cluster": {"ledger": {"enabled": True}}})
    daily = [one["spec"]["jobTemplate"]["spec"] for one in objects if one["kind"] == "CronJob"]
    assert [one["activeDeadlineSeconds"] for one in daily] == [3600] * 2
