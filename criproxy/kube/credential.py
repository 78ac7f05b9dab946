"""Kubelet's credential, from its files, and read again whenever one of them has changed.

Kubelet rotates its client certificate: /var/lib/kubelet/pki/kubelet-client-current.pem is a link that it points at a
new file with the new certificate and key. Source: Kubernetes, "Configure Certificate Rotation for the Kubelet".
"""

import base64
import binascii
import os
import re
import ssl
from pathlib import Path
from typing import Final

from msgspec import Struct

from criproxy.kube.kubeconfig import MAX_BYTES, Kubeconfig, KubeconfigError, Pem, parse

KUBECONFIG: Final = Path("/etc/kubernetes/kubelet.conf")
"""Where kubeadm has kubelet's."""

_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)
_NODE: Final = re.compile(rb"\x06\x03\x55\x04\x03[\x0c\x13](.)(system:node:[ -~]+)", re.DOTALL)
"""A common name (OID 2.5.4.3), a UTF8String or PrintableString, its length in a byte. Source: X.520; X.690, 8.1.3.4."""

_Signature = tuple[tuple[int, int, int] | None, ...]


def node_name(access: "Access", given: str) -> str:
    """This node's name: as its certificate says, as kubelet was `given` it, or the machine's.

    Source: kubelet, pkg/util/node GetHostname (lower case); a cloud provider's name is in the certificate.
    """
    return (access.node or given or os.uname().nodename).strip().lower()


class CredentialError(Exception):
    """The credential can't be used; the message names the file and the remedy."""


class Access(Struct, frozen=True):
    """All that a connection needs. `token` "": the client's certificate says who it is.

    `node` is the node that it says; "": it is not a node's.
    """

    config: Kubeconfig
    context: ssl.SSLContext
    token: str
    node: str = ""


class Credential:
    """The credential that the kubeconfig `file` names. Its methods block on the disk: not for the event loop."""

    def __init__(self, file: Path = KUBECONFIG) -> None:
        self.file: Final = file
        self._access: Access | None = None
        self._text = ""
        """Of which the present one's config was made."""
        self._signature: _Signature = ()
        self.read_times = 0

    def access(self) -> Access:
        """The present one. While a changed one can't be read, as when its files are being replaced, the old one.

        Raises CredentialError when there never was one.
        """
        if self._access is not None and self._look(self._access.config) == self._signature:
            return self._access
        try:
            text = _text(self.file)
            known = self._access  # kubelet rotates its certificate, and leaves its kubeconfig as it is
            config = known.config if known and text == self._text else parse(text, str(self.file))
            signature = self._look(config)
            self._access = Access(config, _context(config), _token(config), _node(config.certificate))
        except (OSError, ValueError) as error:  # of which ssl.SSLError and KubeconfigError are two
            if self._access is None:
                raise CredentialError(_in_words(error, self.file)) from error
        else:
            self._text, self._signature = text, signature  # as it was before the files were read
            self.read_times += 1
        return self._access

    def forget(self) -> None:
        """Read all anew the next time: the server does not take what was read."""
        self._signature = ()

    def _look(self, config: Kubeconfig) -> _Signature:
        """Differs whenever the files differ, through links."""
        found: list[tuple[int, int, int] | None] = []
        for file in (str(self.file), *config.files):
            try:
                status = os.stat(file)
            except OSError:
                found.append(None)
            else:
                found.append((status.st_ino, status.st_mtime_ns, status.st_size))
        return tuple(found)


def _context(config: Kubeconfig) -> ssl.SSLContext:
    """TLS 1.2 or later, and only the authority that the kubeconfig names. Raises OSError or KubeconfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if config.ca.file:
        context.load_verify_locations(cafile=config.ca.file)
    elif config.ca.data:
        context.load_verify_locations(cadata=config.ca.data.decode("ascii", "ignore"))
    else:
        context.set_default_verify_paths()
    if config.certificate:
        certificate, key = _Openable(config.certificate), _Openable(config.key)
        with certificate, key:
            context.load_cert_chain(certificate.name, key.name, password=_no_password)
    return context


def _node(certificate: Pem) -> str:
    """Source: Kubernetes, "Using Node Authorization": a node's user is system:node:NAME. Raises OSError."""
    if not certificate:
        return ""
    found = _CERTIFICATE.search(certificate.data or Path(certificate.file).read_bytes())
    try:
        der = base64.b64decode(found[1]) if found else b""
    except binascii.Error:
        return ""
    name = _NODE.search(der)
    return name[2][: name[1][0]].decode("ascii").removeprefix("system:node:") if name else ""


def _no_password() -> str:
    """OpenSSL would ask at the terminal for the key's password."""
    raise KubeconfigError("the client's key has a password: criproxy needs one without")


class _Openable:
    """A file's name for what is in a file or in memory, as Python takes keys from files only: it never meets a disk."""

    def __init__(self, pem: Pem) -> None:
        self._fd = -1
        self.name = pem.file
        if pem.data:
            self._fd = os.memfd_create("criproxy-credential", os.MFD_CLOEXEC)
            os.write(self._fd, pem.data)
            self.name = f"/proc/self/fd/{self._fd}"

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def _token(config: Kubeconfig) -> str:
    """A file has precedence, as in client-go. Raises OSError or KubeconfigError."""
    token = _text(Path(config.token_file)).strip() if config.token_file else config.token
    if not token.isprintable() or " " in token or not token.isascii():
        raise KubeconfigError("its token holds what no token does: make it anew")
    return token


def _text(file: Path) -> str:
    with file.open("rb") as opened:
        data = opened.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise KubeconfigError(f"{file} has more than {MAX_BYTES} bytes: is it a kubeconfig?")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise KubeconfigError(f"{file} is not UTF-8: is it a kubeconfig?") from error


def _in_words(error: Exception, file: Path) -> str:
    if isinstance(error, ssl.SSLError):
        return f"the certificates that {file} names can't be used ({error.reason or error}): look at them"
    if isinstance(error, OSError):
        return f"{error.filename or file}: {error.strerror or error}: name kubelet's kubeconfig, and check its files"
    return str(error)
