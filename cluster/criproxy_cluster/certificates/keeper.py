"""Keeps an authority and a webhook's certificate in their Secrets, and has the API server trust them."""

import base64
import binascii
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from lightkube.core.async_client import AsyncClient
from lightkube.models.admissionregistration_v1 import MutatingWebhook, ValidatingWebhook
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration, ValidatingWebhookConfiguration
from lightkube.resources.core_v1 import Secret
from lightkube.types import PatchType
from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from criproxy_cluster.certificates.authority import Step, Tls, next_step, with_authority, with_certificate
from criproxy_cluster.requests import trouble_of

AUTHORITY: Final = "criproxy-webhook-ca"
SERVING: Final = "criproxy-webhook-tls"
"""The Secrets. No pod of the webhook has the first one."""

CONFIGURATION: Final = "zz-criproxy-cluster"
SERVICE: Final = "criproxy-cluster"
MAX_STEPS: Final = 6


class Kept(Struct, frozen=True):
    """The names of what belongs together: two Secrets, a Service, and the configuration that asks it."""

    authority: str
    serving: str
    service: str
    configuration: str
    kind: type[MutatingWebhookConfiguration] | type[ValidatingWebhookConfiguration]


WEBHOOK: Final = Kept(AUTHORITY, SERVING, SERVICE, CONFIGURATION, MutatingWebhookConfiguration)
LEDGER: Final = Kept(
    "criproxy-ledger-ca", "criproxy-ledger-tls", "criproxy-ledger", "criproxy-ledger", ValidatingWebhookConfiguration
)


class CertificateKeeper:
    """Two at once do no harm: a Secret that somebody else has written since is not written."""

    def __init__(self, client: AsyncClient, namespace: str, log: FilteringBoundLogger, kept: Kept = WEBHOOK) -> None:
        self._client = client
        self._kept = kept
        self._namespace = namespace
        self._names = tuple(f"{kept.service}.{namespace}.svc{end}" for end in ("", ".cluster.local"))
        self._log = log

    async def keep(self, now: datetime) -> tuple[Step, ...]:
        """Do what is due. Returns what was. Raises Trouble."""
        done: list[Step] = []
        while len(done) < MAX_STEPS:
            authority, serving = await self._secret(self._kept.authority), await self._secret(self._kept.serving)
            configuration = await self._configuration()
            tls = Tls.of({**_entries(serving), **_entries(authority)})
            trusted = {_bundle(webhook) for webhook in configuration.webhooks or ()}
            step = next_step(tls, b"" if len(trusted) != 1 else next(iter(trusted)), now)
            if step is Step.NOTHING:
                break
            if step is Step.AUTHORITY:
                await self._replace(authority, with_authority(tls, now).of_authority)
            elif step is Step.CERTIFICATE:
                await self._replace(serving, with_certificate(tls, self._names, now).of_server)
            else:
                await self._trust(configuration, tls.authorities)
            self._log.info("certificate_kept", done=step.value)
            done.append(step)
        return tuple(done)

    async def _secret(self, name: str) -> Secret:
        with trouble_of(f"the Secret {self._namespace}/{name}"):
            return await self._client.get(Secret, name, namespace=self._namespace)

    async def _replace(self, old: Secret, entries: Mapping[str, bytes]) -> None:
        """Fails when somebody else has written since."""
        old.data = {name: base64.b64encode(value).decode() for name, value in entries.items()}
        with trouble_of(f"the Secret {self._namespace}/{old.metadata.name if old.metadata else ''}"):
            await self._client.replace(old)

    @property
    def _what(self) -> str:
        return f"the {self._kept.kind.__name__} {self._kept.configuration}"

    async def _configuration(self) -> MutatingWebhookConfiguration | ValidatingWebhookConfiguration:
        with trouble_of(self._what):
            return await self._client.get(self._kept.kind, self._kept.configuration)

    async def _trust(
        self, configuration: MutatingWebhookConfiguration | ValidatingWebhookConfiguration, bundle: bytes
    ) -> None:
        value = base64.b64encode(bundle).decode()
        patch: list[Mapping[str, str]] = []
        webhooks: Sequence[MutatingWebhook | ValidatingWebhook] = configuration.webhooks or ()
        for number, webhook in enumerate(webhooks):
            patch.append({"op": "test", "path": f"/webhooks/{number}/name", "value": webhook.name})
            patch.append({"op": "add", "path": f"/webhooks/{number}/clientConfig/caBundle", "value": value})
        with trouble_of(self._what):
            await self._client.patch(self._kept.kind, self._kept.configuration, patch, patch_type=PatchType.JSON)


def _entries(secret: Secret) -> dict[str, bytes]:
    """What can't be decoded counts as missing."""
    entries: dict[str, bytes] = {}
    for name, text in (secret.data or {}).items():
        try:
            entries[name] = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            continue
    return entries


def _bundle(webhook: MutatingWebhook | ValidatingWebhook) -> bytes:
    try:
        return base64.b64decode(webhook.clientConfig.caBundle or "", validate=True)
    except (binascii.Error, ValueError):
        return b""
