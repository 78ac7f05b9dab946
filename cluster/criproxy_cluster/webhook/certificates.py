"""The webhook's certificate on its way: from a Secret or from files into the server, and its rotation by the leader.

A server without a certificate accepts no call. A certificate that is replaced serves new connections from then on, and
old ones go on: nobody is cut off. What can't be loaded is logged, and the last good one serves on.
"""

import asyncio
import base64
import binascii
import ssl
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from lightkube.core.async_client import AsyncClient
from lightkube.models.admissionregistration_v1 import MutatingWebhook
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration
from lightkube.resources.core_v1 import Secret
from lightkube.types import PatchType
from structlog.typing import FilteringBoundLogger

from criproxy_cluster.requests import Trouble, trouble_of
from criproxy_cluster.webhook.authority import Step, Tls, next_step, with_authority, with_certificate

SECRET: Final = "criproxy-webhook-tls"
CONFIGURATION: Final = "criproxy-cluster"
LOOK_S: Final = 20.0
FIRST_S: Final = 1.0
"""From one look to the next, and while there is no certificate."""

MAX_STEPS: Final = 6


class TlsSource(Protocol):
    """Where a certificate and its key come from."""

    async def read(self) -> Tls:
        """Raises Trouble."""
        ...


class FilesSource:
    """tls.crt and tls.key in a folder, as cert-manager's Secret is mounted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def read(self) -> Tls:
        try:
            found = {name: (self._folder / name).read_bytes() for name in ("tls.crt", "tls.key")}
        except OSError as error:
            raise Trouble(f"{self._folder}: the certificate can't be read: {error.strerror}") from error
        return Tls.of(found)


class SecretSource:
    def __init__(self, client: AsyncClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def read(self) -> Tls:
        return tls_of(await self.secret())

    async def secret(self) -> Secret:
        with trouble_of(f"the Secret {self._namespace}/{SECRET}"):
            return await self._client.get(Secret, SECRET, namespace=self._namespace)

    async def replace(self, old: Secret, tls: Tls) -> Secret:
        """Fails when somebody else has written since. Raises Trouble."""
        old.data = {name: base64.b64encode(value).decode() for name, value in tls.entries.items()}
        with trouble_of(f"the Secret {self._namespace}/{SECRET}"):
            return await self._client.replace(old)


def tls_of(secret: Secret) -> Tls:
    """What can't be decoded counts as missing."""
    entries: dict[str, bytes] = {}
    for name, text in (secret.data or {}).items():
        try:
            entries[name] = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            continue
    return Tls.of(entries)


class ServerCertificate:
    """`context` is the server's, for its whole life."""

    def __init__(self, source: TlsSource, log: FilteringBoundLogger) -> None:
        self.context: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._source = source
        self._log = log
        self._loaded: tuple[bytes, bytes] | None = None
        self._trouble = ""

    @property
    def ready(self) -> bool:
        return self._loaded is not None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S if self.ready else FIRST_S)

    async def look(self) -> None:
        """Load what is there, if it is another one. Never raises."""
        try:
            tls = await self._source.read()
            if not tls.usable:
                raise Trouble("there is no certificate yet: the leader makes it")
            if (tls.certificate, tls.key) != self._loaded:
                self._load(tls)
                self._log.info("certificate_loaded")
        except (Trouble, OSError, ssl.SSLError) as error:
            if str(error) != self._trouble:
                consequence = "the last one serves on" if self.ready else "no call is answered yet"
                self._log.warning("certificate_not_loaded", error=str(error), consequence=consequence)
            self._trouble = str(error)
        else:
            self._trouble = ""

    def _load(self, tls: Tls) -> None:
        """The ssl module reads files only. A pair that does not fit is tried on another context first."""
        with tempfile.TemporaryDirectory(prefix="criproxy-") as folder:
            certificate, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
            certificate.write_bytes(tls.certificate)
            key.touch(mode=0o600)
            key.write_bytes(tls.key)
            for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.context):
                context.load_cert_chain(certificate, key)
        self._loaded = (tls.certificate, tls.key)


class CertificateKeeper:
    """The leader's part: makes the authority and the certificate, and tells the API server whom to trust."""

    def __init__(self, client: AsyncClient, namespace: str, service: str, log: FilteringBoundLogger) -> None:
        self._client = client
        self._secret = SecretSource(client, namespace)
        self._names = tuple(f"{service}.{namespace}.svc{end}" for end in ("", ".cluster.local"))
        self._log = log

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            pause_s = LOOK_S
            try:
                await self.keep(datetime.now(UTC))
            except Trouble as trouble:
                self._log.warning("certificate_not_kept", error=str(trouble), consequence="tried again")
                pause_s = FIRST_S * 5
            await asyncio.sleep(pause_s)

    async def keep(self, now: datetime) -> tuple[Step, ...]:
        """Do what is due. Returns what was. Raises Trouble."""
        done: list[Step] = []
        while len(done) < MAX_STEPS:
            secret, configuration = await self._secret.secret(), await self._configuration()
            tls, trusted = tls_of(secret), _bundles(configuration)
            step = next_step(tls, b"" if len(trusted) != 1 else next(iter(trusted)), now)
            if step is Step.NOTHING:
                break
            if step is Step.AUTHORITY:
                await self._secret.replace(secret, with_authority(tls, now))
            elif step is Step.CERTIFICATE:
                await self._secret.replace(secret, with_certificate(tls, self._names, now))
            else:
                await self._trust(configuration, tls.authorities)
            self._log.info("certificate_kept", done=step.value)
            done.append(step)
        return tuple(done)

    async def _configuration(self) -> MutatingWebhookConfiguration:
        with trouble_of(f"the MutatingWebhookConfiguration {CONFIGURATION}"):
            return await self._client.get(MutatingWebhookConfiguration, CONFIGURATION)

    async def _trust(self, configuration: MutatingWebhookConfiguration, bundle: bytes) -> None:
        value = base64.b64encode(bundle).decode()
        patch: list[Mapping[str, str]] = []
        for number, webhook in enumerate(configuration.webhooks or ()):
            patch.append({"op": "test", "path": f"/webhooks/{number}/name", "value": webhook.name})
            patch.append({"op": "add", "path": f"/webhooks/{number}/clientConfig/caBundle", "value": value})
        with trouble_of(f"the MutatingWebhookConfiguration {CONFIGURATION}"):
            await self._client.patch(MutatingWebhookConfiguration, CONFIGURATION, patch, patch_type=PatchType.JSON)


def _bundles(configuration: MutatingWebhookConfiguration) -> set[bytes]:
    return {_bundle(webhook) for webhook in configuration.webhooks or ()}


def _bundle(webhook: MutatingWebhook) -> bytes:
    try:
        return base64.b64decode(webhook.clientConfig.caBundle or "", validate=True)
    except (binascii.Error, ValueError):
        return b""
