"""Kubeconfigs as kubeadm and others write them, and credentials from them."""

import base64
import sys

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from criproxy.kube import credential
from criproxy.kube.credential import Credential, CredentialError
from criproxy.kube.kubeconfig import KubeconfigError, Pem, parse

FILE = "/etc/kubernetes/kubelet.conf"


def config(cluster=None, user=None, **more):
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "preferences": {},
            "clusters": [{"name": "k", "cluster": {"server": "https://10.0.0.1:6443", **(cluster or {})}}],
            "users": [{"name": "n", "user": {"token": "t"} if user is None else user}],
            "contexts": [{"name": "n@k", "context": {"cluster": "k", "user": "n", "namespace": "x"}}],
            "current-context": "n@k",
            **more,
        }
    )


def test_kubeadms_has_its_authority_inline_and_the_rotating_certificate():
    current = "/var/lib/kubelet/pki/kubelet-client-current.pem"
    found = parse(
        config(
            {"certificate-authority-data": base64.b64encode(b"CA").decode()},
            {"client-certificate": current, "client-key": current},
        ),
        FILE,
    )
    assert (found.host, found.port, found.path, found.server_name) == ("10.0.0.1", 6443, "", "10.0.0.1")
    assert (found.ca, found.certificate, found.key) == (Pem(data=b"CA"), Pem(current), Pem(current))
    assert found.files == (current,)


def test_what_is_null_is_not_there_and_base64_may_be_in_lines_as_client_go_reads_it():
    lines = base64.encodebytes(b"the authority's certificate, longer than a line of base64 is by custom" * 2).decode()
    found = parse(config({"certificate-authority": None, "certificate-authority-data": lines, "proxy-url": None}), FILE)
    assert found.ca == Pem(data=base64.b64decode(lines))


def test_relative_names_are_beside_the_kubeconfig():
    found = parse(config({"certificate-authority": "pki/ca.crt"}, {"tokenFile": "token"}), FILE)
    assert found.files == ("/etc/kubernetes/pki/ca.crt", "/etc/kubernetes/token")


def test_certificate_without_a_key_has_it_in_the_same_file():
    assert parse(config(user={"client-certificate": "/c.pem"}), FILE).key == Pem("/c.pem")


@pytest.mark.parametrize(
    ("server", "host", "port", "path"),
    [
        ("https://api.example:6443", "api.example", 6443, ""),
        ("https://api.example", "api.example", 443, ""),
        ("https://[fd00::1]:6443/", "fd00::1", 6443, ""),
        ("https://rancher/k8s/clusters/c-1", "rancher", 443, "/k8s/clusters/c-1"),
    ],
)
def test_server(server, host, port, path):
    found = parse(config({"server": server, "tls-server-name": "name"}), FILE)
    assert (found.host, found.port, found.path, found.server_name) == (host, port, path, "name")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("a: [", r"is no YAML \(line 2\)", id="no YAML"),
        pytest.param("", "is it a kubeconfig", id="empty"),
        pytest.param("clusters: 1", "is it a kubeconfig", id="another file"),
        pytest.param(config(**{"current-context": "x"}), "has no context 'x'", id="no context"),
        pytest.param(config(users=[]), "has no user 'n'", id="no user"),
        pytest.param(config(user={}), "has no client-certificate and no token", id="anonymous"),
        pytest.param(config(user={"exec": {"command": "aws"}}), "from a plugin", id="plugin"),
        pytest.param(config({"server": "http://10.0.0.1"}), "without https", id="in the clear"),
        pytest.param(config({"server": "https://h:x"}), "no valid server", id="bad port"),
        pytest.param(config({"insecure-skip-tls-verify": True}), "insecure-skip-tls-verify", id="insecure"),
        pytest.param(config({"proxy-url": "http://p"}), "proxy-url", id="proxy"),
        pytest.param(config({"certificate-authority-data": "é"}), "not base64", id="no base64"),
    ],
)
def test_kubeconfig_that_cannot_be_used_is_named_with_a_remedy(text, words):
    with pytest.raises(KubeconfigError, match=words) as raised:
        parse(text, FILE)
    assert str(raised.value).startswith(FILE)


@given(st.text(max_size=100))
def test_any_text_is_a_kubeconfig_or_an_error(text):
    with pytest.raises(KubeconfigError):
        parse(text, FILE)


def test_error_shows_no_secret():
    with pytest.raises(KubeconfigError) as raised:
        parse(config(user={"client-key-data": "c2VjcmV0é"}), FILE)
    assert "c2VjcmV0" not in str(raised.value)


def test_credential_with_all_inline_needs_no_other_file(authority):
    def inline(file):
        return base64.b64encode(file.read_bytes()).decode()

    kubeconfig = authority.kubeconfig(
        1, **{"client-certificate-data": inline(authority.client), "client-key-data": inline(authority.client)}
    )
    assert Credential(kubeconfig).access().config.certificate.data == authority.client.read_bytes()


def test_credential_names_certificates_that_cannot_be_used(tmp_path, authority):
    (tmp_path / "ca.pem").write_text("none")
    (tmp_path / "kubelet.conf").write_text(authority.kubeconfig(1).read_text())
    with pytest.raises(CredentialError, match=r"kubelet\.conf names can't be used"):
        Credential(tmp_path / "kubelet.conf").access()


def test_credential_is_read_anew_when_the_certificate_is_another_one(authority):
    credential = Credential(authority.kubeconfig(1))
    first = credential.access()
    assert credential.access() is first
    authority.rotate("system:node:node1")
    assert credential.access() is not first


@pytest.mark.parametrize("token", ["a\nb", "a b", "é"])
def test_token_that_would_break_a_header_is_refused(authority, token):
    with pytest.raises(CredentialError, match="token"):
        Credential(authority.kubeconfig(1, token=token)).access()


def test_kubeconfig_that_is_as_it_was_is_not_parsed_again(tmp_path, monkeypatch):
    """Kubelet rotates its certificate, or here its token, and leaves the kubeconfig as it is."""
    parsed, file, token = [], tmp_path / "kubelet.conf", tmp_path / "token"

    def parse_and_count(text, name):
        parsed.append(name)
        return parse(text, name)

    monkeypatch.setattr(credential, "parse", parse_and_count)
    file.write_text(config(user={"tokenFile": "token"}))
    found = Credential(file)
    for text in ("one", "two-2"):
        token.write_text(text)
        assert found.access().token == text
    assert len(parsed) == 1
    file.write_text(config({"server": "https://other:6443"}, {"tokenFile": "token"}))
    assert found.access().config.host == "other"
    assert len(parsed) == 2


def test_kubeconfig_where_yaml_is_no_more_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(KubeconfigError, match="install PyYAML"):
        parse("a: b", FILE)
