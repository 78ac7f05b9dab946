"""A kubeconfig: where the API server is, and by what a client shows who it is. Pure, but for naming files.

Source: client-go, tools/clientcmd/api/v1 Config; Kubernetes, "Organizing Cluster Access Using kubeconfig Files".
"""

import base64
import binascii
import posixpath
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, field

from criproxy.concurrency.pyyaml import pyyaml

MAX_BYTES: Final = 1 << 20

Inline = Annotated[str, msgspec.Meta(max_length=MAX_BYTES)]


class KubeconfigError(ValueError):
    """What is wrong with a kubeconfig, with the remedy."""


class Pem(Struct, frozen=True):
    """Certificates or a key: in `file`, or here as `data`. Both "" and b"": there are none."""

    file: str = ""
    data: bytes = b""

    def __bool__(self) -> bool:
        return bool(self.file or self.data)


class Kubeconfig(Struct, frozen=True):
    """The current context. `path` is what the server's URL has before /api; `token_file` and `token` may be ""."""

    host: str
    port: int
    path: str
    server_name: str
    ca: Pem
    certificate: Pem
    key: Pem
    token: str
    token_file: str

    @property
    def files(self) -> tuple[str, ...]:
        """The files beside it that it needs."""
        named = (self.ca.file, self.certificate.file, self.key.file, self.token_file)
        return tuple(dict.fromkeys(name for name in named if name))


class _Cluster(Struct, rename="kebab"):
    server: str
    certificate_authority: str = ""
    certificate_authority_data: Inline = ""
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    proxy_url: str = ""


class _User(Struct, rename="kebab"):
    client_certificate: str = ""
    client_certificate_data: Inline = ""
    client_key: str = ""
    client_key_data: Inline = ""
    token: str = ""
    token_file: str = field(name="tokenFile", default="")
    exec: Any = None
    auth_provider: Any = None


class _Context(Struct):
    cluster: str
    user: str


class _NamedCluster(Struct):
    name: str
    cluster: _Cluster


class _NamedUser(Struct):
    name: str
    user: _User


class _NamedContext(Struct):
    name: str
    context: _Context


class _KubeconfigFile(Struct, rename="kebab"):
    clusters: list[_NamedCluster]
    users: list[_NamedUser]
    contexts: list[_NamedContext]
    current_context: str


def parse(text: str, file: str) -> Kubeconfig:
    """The current context of the kubeconfig in `file`, whose relative names are looked for beside it.

    Raises KubeconfigError, which never shows a value: some are secrets.
    """
    try:
        found = msgspec.convert(_without_nulls(_loaded(text, file)), _KubeconfigFile)
    except KubeconfigError:
        raise
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise KubeconfigError(f"{file}: {str(error)[:200]}: is it a kubeconfig?") from error
    context = _named(found.contexts, found.current_context, "context", file).context
    cluster = _named(found.clusters, context.cluster, "cluster", file).cluster
    user = _named(found.users, context.user, "user", file).user
    _check(cluster, user, file)
    host, port, path = _server(cluster.server, file)
    beside = posixpath.dirname(file)
    certificate = _pem(user.client_certificate, user.client_certificate_data, beside, file)
    return Kubeconfig(
        host=host,
        port=port,
        path=path,
        server_name=cluster.tls_server_name or host,
        ca=_pem(cluster.certificate_authority, cluster.certificate_authority_data, beside, file),
        certificate=certificate,
        key=_pem(user.client_key, user.client_key_data, beside, file) or certificate,
        token=user.token,
        token_file=posixpath.join(beside, user.token_file) if user.token_file else "",
    )


def _without_nulls(value: Any) -> Any:
    """As client-go reads it, to which null is not there."""
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def _loaded(text: str, file: str) -> Any:
    try:
        with pyyaml() as yaml:
            try:
                return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
            except yaml.YAMLError as error:
                mark = getattr(error, "problem_mark", None)
                line = f" (line {mark.line + 1})" if mark else ""
                raise KubeconfigError(f"{file} is no YAML{line}: correct it") from error
    except ImportError as error:
        raise KubeconfigError(f"{file} can't be read, as {error}: install PyYAML, and restart criproxy") from error


def _named(found: list[Any], name: str, kind: str, file: str) -> Any:
    for one in found:
        if one.name == name:
            return one
    raise KubeconfigError(f"{file} has no {kind} {name!r}: is its current-context right?")


def _check(cluster: _Cluster, user: _User, file: str) -> None:
    if cluster.insecure_skip_tls_verify:
        raise KubeconfigError(f"{file} has insecure-skip-tls-verify: give it the certificate-authority instead")
    if cluster.proxy_url:
        raise KubeconfigError(
            f"{file} has a proxy-url, which criproxy does not use: give criproxy a kubeconfig without"
        )
    if user.exec is not None or user.auth_provider is not None:
        raise KubeconfigError(
            f"{file} gets its credential from a plugin, which criproxy does not run: give criproxy a kubeconfig with a "
            "client-certificate or a tokenFile"
        )
    if not (user.client_certificate or user.client_certificate_data or user.token or user.token_file):
        raise KubeconfigError(f"{file} has no client-certificate and no token: is it kubelet's?")


def _server(server: str, file: str) -> tuple[str, int, str]:
    try:
        parts = urlsplit(server)
        host, port = parts.hostname, parts.port or 443
    except ValueError as error:
        raise KubeconfigError(f"{file} has no valid server ({error}): write https://host:port") from error
    if parts.scheme != "https" or not host:
        raise KubeconfigError(f"{file} names a server without https: criproxy sends no credential in the clear")
    return host, port, parts.path.rstrip("/")


def _pem(name: str, data: str, beside: str, file: str) -> Pem:
    """Inline data has precedence, as in client-go, which also passes over line breaks in it."""
    if not data:
        return Pem(file=posixpath.join(beside, name)) if name else Pem()
    try:
        return Pem(data=base64.b64decode("".join(data.split()), validate=True))
    except (binascii.Error, ValueError) as error:
        raise KubeconfigError(f"{file} has data that is not base64: make the kubeconfig anew") from error
