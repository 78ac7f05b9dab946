"""The webhook's certificate on a real API server: cert-manager's, and its own, renewed while pods are made."""

import base64
import json
import re
import ssl
import threading
import time

import pytest

from cluster.integration.objects import CPU, PODS, pod, until
from criproxy_cluster.certificates.keeper import AUTHORITY, SERVING
from integration.lab.cluster_side import MANIFESTS, SYSTEM, WEBHOOKS, Replica, account_config, own_address
from integration.lab.control_plane import ApiError

pytestmark = pytest.mark.timeout(1200)  # a control plane takes its time on a busy machine

SECRETS = f"/api/v1/namespaces/{SYSTEM}/secrets"
PODS_OF_SYSTEM = f"/api/v1/namespaces/{SYSTEM}/pods"
OVERLAY = MANIFESTS / "cert-manager"
OFTEN = "from criproxy_cluster.webhook import certificates; certificates.LOOK_S = 1.0\n"


# --- cert-manager's --------------------------------------------------------------------------------------------------


def crd(kind):
    """As little of cert-manager's own as the API server needs to take an object of this kind."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": kind, "plural": f"{kind.lower()}s", "singular": kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names['plural']}.cert-manager.io"},
        "spec": {"group": "cert-manager.io", "scope": "Namespaced", "names": names, "versions": [version]},
    }


def issue(plane, number):
    """As cert-manager does: the Secret that its Certificate names, and the bundle where the annotation asks for it."""
    wanted = plane.call("GET", f"/apis/cert-manager.io/v1/namespaces/{SYSTEM}/certificates/criproxy-cluster")["spec"]
    names = ",".join(f"DNS:{name}" for name in wanted["dnsNames"])
    both = plane.authority.sign(f"issued-{number}", "/O=cert-manager", f"subjectAltName={names}").read_bytes()
    certificate, key = re.findall(rb"-----BEGIN .*?-----END [^\n]*\n", both, re.DOTALL)
    entries = {"tls.crt": certificate, "tls.key": key, "ca.crt": plane.authority.ca.read_bytes()}
    data = {name: base64.b64encode(value).decode() for name, value in entries.items()}
    secret = {"metadata": {"name": wanted["secretName"]}, "type": "kubernetes.io/tls", "data": data}
    if plane.exists(where := f"{SECRETS}/{wanted['secretName']}"):
        plane.call("PUT", where, secret)
    else:
        plane.call("POST", SECRETS, secret)
    configuration = plane.call("GET", WEBHOOKS)
    assert configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"] == f"{SYSTEM}/criproxy-cluster"
    for webhook in configuration["webhooks"]:
        webhook["clientConfig"]["caBundle"] = data["ca.crt"]
    plane.call("PUT", WEBHOOKS, configuration)
    return certificate.decode()


def mounted(plane):
    """The files of /certificates, as kubelet would mount them, of a pod of the webhook's Deployment."""

    def spec_of_a_pod():
        pods = plane.call("GET", PODS_OF_SYSTEM)["items"]
        specs = [one["spec"] for one in pods if one["metadata"]["name"].startswith("criproxy-webhook-")]
        return next((one for one in specs if secret_of(one) == "criproxy-cert-manager-tls"), None)

    data = plane.call("GET", f"{SECRETS}/{secret_of(until(spec_of_a_pod))}")["data"]
    return {name: base64.b64decode(text) for name, text in data.items()}


def secret_of(spec):
    (container,) = spec["containers"]
    name = next(one["name"] for one in container["volumeMounts"] if one["mountPath"] == "/certificates")
    return next(one for one in spec["volumes"] if one["name"] == name)["secret"]["secretName"]


def test_replica_serves_with_cert_manager_s_certificate_from_the_secret_and_takes_up_a_new_one(plane, converted):
    for kind in ("Issuer", "Certificate"):
        plane.kubectl("apply", "-f", "-", stdin=json.dumps(crd(kind)))
        until(lambda kind=kind: plane.exists(f"/apis/cert-manager.io/v1/{kind.lower()}s"))
    plane.kubectl("delete", "-k", str(MANIFESTS / "base"), "--ignore-not-found")
    plane.kubectl("apply", "--warnings-as-errors", "-k", str(OVERLAY))
    replica = Replica(plane, "cert-manager")
    for number in range(2):
        issued = issue(plane, number)
        replica.mount(mounted(plane))
        if number == 0:
            replica.start(before=OFTEN)
            replica.serve()
        until(lambda issued=issued: served(replica) == issued)
        until(lambda: (converted() or {}).get(CPU) == "1500")
    try:
        assert not plane.exists(f"{SECRETS}/{AUTHORITY}") and not plane.exists(f"{SECRETS}/{SERVING}")
    finally:
        replica.process.stop()
    plane.kubectl("apply", "-k", str(MANIFESTS / "base"))


def served(replica):
    """The certificate that is shown to who asks; None: nobody listens yet."""
    try:
        return ssl.get_server_certificate((own_address(), replica.port))
    except OSError:
        return None


# --- its own ---------------------------------------------------------------------------------------------------------

ALWAYS_DUE = """
from datetime import timedelta
from criproxy_cluster.certificates import authority
authority.CERTIFICATE_LEFT = authority.CERTIFICATE_LIFE - timedelta(seconds=2)
authority.AUTHORITY_LEFT = authority.AUTHORITY_LIFE - timedelta(seconds=5)
"""
"""A certificate is renewed each 2 s, its authority each 5."""

LOADED_S = 20.0
CLIENTS = 4


def test_no_pod_fails_while_certificate_and_authority_are_renewed_all_the_time(plane, converted):
    replica = Replica(plane, "renews")
    replica.certify()
    replica.start(before=OFTEN)
    made, failed = [], []
    end_s = time.monotonic() + LOADED_S

    def make(client):
        while time.monotonic() < end_s:
            began_s = time.monotonic()
            try:
                plane.call("POST", f"{PODS}?dryRun=All", pod(f"made-{client}", {"cpu": "1"}))
            except ApiError as error:
                failed.append(str(error))
            made.append(time.monotonic() - began_s)

    try:
        replica.serve()
        until(converted)
        end_s = time.monotonic() + LOADED_S
        clients = [threading.Thread(target=make, args=(client,)) for client in range(CLIENTS)]
        for one in clients:
            one.start()
        while time.monotonic() < end_s - 2.0:
            replica.certify(before=ALWAYS_DUE)
            time.sleep(1.5)  # kubelet takes a minute
        for one in clients:
            one.join()
    finally:
        replica.process.stop()
    print(f"{len(made)} pods, the slowest after {max(made):.2f} s; {len(failed)} failed")
    assert replica.log.read_text().count("certificate_loaded") >= 4
    assert replica.log.read_text().count("a new authority") >= 2
    assert failed == []
    assert len(made) > 100


@pytest.mark.parametrize("account", ["criproxy-webhook", "criproxy-controller"])
def test_neither_webhook_nor_controller_may_read_the_authority_s_key_or_choose_the_webhook(plane, account, tmp_path):
    config = account_config(plane, account, tmp_path)
    for what in (f"secrets/{AUTHORITY}", "mutatingwebhookconfigurations/zz-criproxy-cluster"):
        for verb in ("get", "patch", "update", "delete"):
            with pytest.raises(Exception, match="no"):
                plane.kubectl("auth", "can-i", verb, what, "-n", SYSTEM, "--kubeconfig", str(config), "-q")
