"""Whose credential it is."""

import base64
import os

import pytest

from criproxy.kube.credential import Access, Credential, node_name


@pytest.mark.parametrize("subject", ["/O=system:nodes/CN=system:node:ip-10-0-0-1.ec2.internal", "/CN=system:node:n2"])
def test_node_is_the_one_of_its_certificate_not_of_its_issuer(authority, tmp_path, subject) -> None:
    signed = authority.sign(f"some-{len(subject)}", subject)
    kubeconfig = authority.kubeconfig(1, **{"client-certificate": str(signed), "client-key": str(signed)})
    assert Credential(kubeconfig).access().node == subject.rpartition(":")[2]


def test_certificate_of_nobody_s_node_says_none(authority) -> None:
    signed = authority.sign("admin", "/O=system:masters/CN=admin")
    data = base64.b64encode(signed.read_bytes()).decode()
    user = {"client-certificate-data": data, "client-key-data": data}
    kubeconfig = authority.kubeconfig(1, **user)
    access = Credential(kubeconfig).access()
    assert (access.node, node_name(access, "Given")) == ("", "given")
    assert node_name(access, "") == os.uname().nodename.lower()


def test_certificate_s_name_has_precedence() -> None:
    assert node_name(Access(None, None, "", "n1"), "other") == "n1"  # type: ignore[arg-type]


def test_authority_s_data_may_have_words_of_any_language_between_its_certificates(authority) -> None:
    file = authority.kubeconfig(1)
    words = "# Müller CA\n".encode() + (file.parent / "ca.pem").read_bytes()
    data = base64.b64encode(words).decode()
    file.write_text(file.read_text().replace("certificate-authority: ca.pem", f"certificate-authority-data: {data}"))
    assert Credential(file).access().config.ca.data == words
