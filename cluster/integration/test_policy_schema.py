"""What a real API server refuses of a policy by the manifests, and what it keeps of a policy from before them."""

import json
from typing import Any

import pytest
import yaml

from cluster.integration.objects import POLICIES, until
from cluster.tests.policy_table import BAD, GOOD
from integration.lab.cluster_side import MANIFESTS
from integration.lab.control_plane import ApiError

pytestmark = pytest.mark.timeout(1200)  # a control plane takes its time on a busy machine

_KIND = {"kind": "ColocationPolicy", "apiVersion": "colocation.criproxy.io/v1alpha1"}
_KEYS = MANIFESTS / "base" / "unknown-keys.yaml"
_CRD = yaml.safe_load((MANIFESTS / "base" / "crd.yaml").read_text())
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"


def made(spec, name="tried") -> dict[str, Any]:
    return {**_KIND, "metadata": {"name": name}, "spec": spec}


def said(plane, spec) -> str:
    """Why the API server does not take the policy; "": it takes it."""
    try:
        plane.call("POST", f"{POLICIES}?dryRun=All", made(spec))
    except ApiError as error:
        assert error.code == 422, error
        return str(error)
    return ""


@pytest.fixture(scope="module")
def refusing(plane):
    """The plane, once it refuses unknown keys: it takes up an admission policy some time after it was made."""
    until(lambda: said(plane, {"settings": {"none": {}}}))
    return plane


def test_api_server_takes_each_good_policy_and_names_the_field_of_each_bad_one(refusing):
    taken = {name: why for name, spec in GOOD.items() if (why := said(refusing, spec))}
    assert taken == {}
    answers = {name: (bad, said(refusing, bad.spec)) for name, bad in BAD.items()}
    assert {name: why for name, (bad, why) in answers.items() if bad.place not in why or bad.words not in why} == {}


def test_kubectl_says_what_to_write_instead(refusing, tmp_path):
    file = tmp_path / "policy.json"
    file.write_text(json.dumps(made({"settings": {"cpu": {"watermark": 0.5}}})))
    with pytest.raises(
        Exception, match=r"spec\.settings\.cpu\.watermark: there is no such key: write one of watermark_r"
    ):
        refusing.kubectl("apply", "-f", str(file))
    with pytest.raises(Exception, match=r"spec\.settings\.cpu\.watermark: there is no such key"):
        refusing.kubectl("apply", "--server-side", "-f", str(file))
    about = refusing.kubectl("explain", "colocationpolicy.spec.settings.cpu.watermark_ratio")
    assert "The share of the node's CPUs" in about


def test_kubernetes_finds_nothing_amiss_in_the_rules_on_keys(refusing):
    """The controller manager checks their types."""
    name = _CRD["metadata"]["name"]
    status = until(lambda: refusing.call("GET", f"{_ADMISSION}/{name}")["status"])
    assert status["typeChecking"] == {}


@pytest.fixture
def lenient(plane):
    """The CRD and no rule on keys, as an API server with an earlier version of the manifests has them."""
    own = json.loads(json.dumps(_CRD))
    schema = own["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    schema["spec"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    replace_crd(plane, own)
    plane.kubectl("delete", "-f", str(_KEYS))
    yield
    plane.kubectl("apply", "-k", str(MANIFESTS / "base"))


def replace_crd(plane, wanted):
    there = plane.call("GET", f"{_CRDS}/{wanted['metadata']['name']}")
    plane.call("PUT", f"{_CRDS}/{wanted['metadata']['name']}", {**there, "spec": wanted["spec"]})


def test_policy_from_before_stays_as_it_is_until_what_is_wrong_is_changed(lenient, plane):
    old = {
        "priority": 1,
        "settings": {"cpu": {"watermark": 0.5, "min_cores": -1, "reserve_cores": 1}},
        "schedule": {"timeZone": "Mars", "windows": [{"start": "6", "end": "7:00", "policy": "dynamic", "day": "mon"}]},
    }
    bounded = {"settings": {"cpu": {"min_cores": -1, "reserve_cores": 1}}}

    def store() -> bool:
        """Once the API server goes by the lenient CRD."""
        try:
            plane.call("POST", POLICIES, made(old, "old"))
            plane.call("POST", POLICIES, made(bounded, "bounded"))
        except ApiError as error:
            print(error)
            return False
        return True

    until(store)
    plane.kubectl("apply", "-k", str(MANIFESTS / "base"))
    until(lambda: said(plane, {"settings": {"none": {}}}) and said(plane, bounded))

    assert plane.call("GET", f"{POLICIES}/old")["spec"] == old, "it is read as it was written"
    plane.merge(f"{POLICIES}/old/status", {"status": {"nodes": 3}})
    assert plane.merge(f"{POLICIES}/old", {"metadata": {"labels": {"a": "b"}}})["spec"] == old

    with pytest.raises(ApiError, match=r"spec\.settings\.cpu\.watermark: there is no such key"):
        plane.merge(f"{POLICIES}/old", {"spec": {"priority": 2}})
    plane.merge(f"{POLICIES}/bounded", {"spec": {"priority": 2, "settings": {"cpu": {"reserve_cores": 2}}}})
    with pytest.raises(ApiError, match=r"spec\.settings\.cpu\.min_cores"):
        plane.merge(f"{POLICIES}/bounded", {"spec": {"settings": {"cpu": {"min_cores": -2}}}})
    plane.merge(f"{POLICIES}/bounded", {"spec": {"settings": {"cpu": {"min_cores": 1}}}})

    windows = [{"start": "06:00", "end": "07:00", "policy": "dynamic"}]
    cpu = {"watermark": None, "min_cores": 1}
    plane.merge(
        f"{POLICIES}/old", {"spec": {"settings": {"cpu": cpu}, "schedule": {"timeZone": "UTC", "windows": windows}}}
    )
    plane.call("DELETE", f"{POLICIES}/old")
