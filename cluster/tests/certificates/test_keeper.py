"""The authority and the certificate are made, trusted and rotated, in two Secrets."""

import asyncio
import base64
from datetime import timedelta

import pytest

from cluster.tests.webhook.test_serving import NOW, post, put, serving, trusting
from cluster.tests.webhook.test_webhook_review import review
from criproxy_cluster.certificates.authority import AUTHORITY_LEFT, AUTHORITY_LIFE, Step, Tls
from criproxy_cluster.certificates.keeper import AUTHORITY, CONFIGURATION, SERVING, CertificateKeeper
from criproxy_cluster.requests import Trouble

REQUIRED: dict = {"admissionReviewVersions": ["v1"], "sideEffects": "None"}


def install(kube):
    for name in (AUTHORITY, SERVING):
        kube.put("secrets", {"metadata": {"name": name}}, "criproxy-system")
    webhooks = [{"name": f"{n}.colocation.criproxy.io", "clientConfig": {}, **REQUIRED} for n in "ab"]
    kube.put("mutatingwebhookconfigurations", {"metadata": {"name": CONFIGURATION}, "webhooks": webhooks})


def mount(kube, folder):
    """As kubelet does it, of the webhook's Secret alone."""
    data = kube.get("secrets", SERVING, "criproxy-system")["data"]
    assert data.keys() == {"tls.crt", "tls.key"}, "and of the authority nothing"
    put(folder, Tls.of({name: base64.b64decode(text) for name, text in data.items()}))


def bundles(kube):
    found = kube.get("mutatingwebhookconfigurations", CONFIGURATION)["webhooks"]
    return [base64.b64decode(one["clientConfig"].get("caBundle", "")) for one in found]


def test_the_keeper_makes_a_certificate_that_the_api_server_trusts_and_rotates_it(kube, log, tmp_path):
    """Ten years in a few steps, the last of them now."""
    months = timedelta(days=61)
    begun = NOW - AUTHORITY_LIFE + AUTHORITY_LEFT - timedelta(days=10)

    async def scenario():
        install(kube)
        async with kube.client() as client:
            keeper = CertificateKeeper(client, "criproxy-system", log)
            assert await keeper.keep(begun) == (Step.AUTHORITY, Step.BUNDLE, Step.CERTIFICATE)
            assert await keeper.keep(begun) == ()
            assert await keeper.keep(NOW - months) == (Step.CERTIFICATE,)
            first = bundles(kube)[0]
            mount(kube, tmp_path)
            async with serving(tmp_path, log) as (server, certificate):
                async with trusting(first) as before:
                    assert (await post(before, server.port, review({}))).status_code == 200

                assert await keeper.keep(NOW) == (Step.AUTHORITY, Step.BUNDLE, Step.CERTIFICATE)
                assert bundles(kube)[0] == bundles(kube)[1] != first
                for _ in ("the replica has the old certificate still", "it has the new one"):
                    async with trusting(bundles(kube)[0]) as after:
                        assert (await post(after, server.port, review({}))).status_code == 200
                    mount(kube, tmp_path)
                    certificate.look()

    asyncio.run(scenario())


def test_two_that_keep_at_once_leave_one_pair_that_fits(kube, log, tmp_path):
    async def scenario():
        install(kube)
        async with kube.client() as client:
            keepers = [CertificateKeeper(client, "criproxy-system", log) for _ in range(4)]
            outcomes = await asyncio.gather(*(keeper.keep(NOW) for keeper in keepers), return_exceptions=True)
            assert all(isinstance(one, (tuple, Trouble)) for one in outcomes)
            await keepers[0].keep(NOW)
            assert await keepers[1].keep(NOW) == ()
            mount(kube, tmp_path)
            async with serving(tmp_path, log) as (server, _), trusting(bundles(kube)[0]) as caller:
                assert (await post(caller, server.port, review({}))).status_code == 200

    asyncio.run(scenario())


def test_a_secret_that_somebody_damaged_is_made_anew(kube, log):
    async def scenario():
        install(kube)
        async with kube.client() as client:
            keeper = CertificateKeeper(client, "criproxy-system", log)
            await keeper.keep(NOW)
            for name, data in ((AUTHORITY, {"ca.key": "eHg=", "other": "eA=="}), (SERVING, {"tls.crt": "!!"})):
                kube.put("secrets", {"metadata": {"name": name}, "data": data}, "criproxy-system")
                assert Step.CERTIFICATE in await keeper.keep(NOW)

    asyncio.run(scenario())


def test_a_secret_that_is_gone_is_said(kube, log):
    async def scenario():
        async with kube.client() as client:
            keeper = CertificateKeeper(client, "criproxy-system", log)
            with pytest.raises(Trouble, match=f"{AUTHORITY}: 404"):
                await keeper.keep(NOW)
            assert kube.seen("create", "secrets") == [], "it needs no right to"

    asyncio.run(scenario())
