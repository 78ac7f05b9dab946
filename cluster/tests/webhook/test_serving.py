"""A replica serves over real TLS, by certificates of its own or from files, and rotates them without a failed call."""

import asyncio
import base64
import socket
import ssl
import tracemalloc
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import httpx2
import pytest

from cluster.tests.webhook.test_webhook_review import offline, review
from criproxy_cluster.commands.run import RunSettings, WebhookServer
from criproxy_cluster.requests import Trouble
from criproxy_cluster.webhook.app import BODY_S, MAX_BODY_BYTES
from criproxy_cluster.webhook.authority import (
    AUTHORITY_LEFT,
    AUTHORITY_LIFE,
    Step,
    Tls,
    with_authority,
    with_certificate,
)
from criproxy_cluster.webhook.certificates import (
    CONFIGURATION,
    SECRET,
    CertificateKeeper,
    FilesSource,
    SecretSource,
    ServerCertificate,
)

NAME = "criproxy-cluster.criproxy-system.svc"
NOW = datetime.now(UTC)
SETTINGS = RunSettings(address="127.0.0.1", port=0)


def tls():
    return with_certificate(with_authority(Tls(), NOW), (NAME,), NOW)


class Holds:
    """A source that a test changes."""

    def __init__(self, found):
        self.found = found

    async def read(self):
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


@asynccontextmanager
async def serving(source, log, settings=SETTINGS):
    certificate = ServerCertificate(source, log)
    await certificate.look()
    server = WebhookServer(settings, certificate, log)
    running = asyncio.create_task(server.run())
    while not server.port:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    try:
        yield server, certificate
    finally:
        server.stop()
        await running


def trusting(authorities):
    context = ssl.create_default_context(cadata=authorities.decode())
    return httpx2.AsyncClient(verify=context)


async def post(client, port, body, **headers):
    url = f"https://127.0.0.1:{port}/convert"
    extensions = {"sni_hostname": NAME}
    return await client.post(url, content=body, headers={"Host": NAME, **headers}, extensions=extensions)


def test_a_review_is_answered_over_tls(log):
    async def scenario():
        pair = tls()
        async with serving(Holds(pair), log) as (server, _), trusting(pair.authorities) as client:
            found = await post(client, server.port, review(offline(requests={"cpu": "1"})))
            assert found.status_code == 200 and found.json()["response"]["patchType"] == "JSONPatch"
            refused = await post(client, server.port, b"{")
            assert refused.status_code == 400
            for path, status in (("/healthz", 200), ("/readyz", 200), ("/other", 404), ("/convert", 405)):
                url = f"https://127.0.0.1:{server.port}{path}"
                assert (await client.get(url, extensions={"sni_hostname": NAME})).status_code == status

    asyncio.run(scenario())


def test_a_replica_is_reached_by_ipv4_and_by_ipv6(log):
    with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as free:
        port = free.getsockname()[1]

    async def scenario():
        pair = tls()
        async with serving(Holds(pair), log, RunSettings(port=port)), trusting(pair.authorities) as client:
            for host in ("127.0.0.1", "[::1]"):
                found = await client.get(f"https://{host}:{port}/healthz", extensions={"sni_hostname": NAME})
                assert found.status_code == 200

    asyncio.run(scenario())


def test_a_body_is_bounded_said_or_not(log):
    async def parts():
        for _ in range(MAX_BODY_BYTES // 65536 + 1):
            yield b"x" * 65536

    async def scenario():
        pair = tls()
        async with serving(Holds(pair), log) as (server, _), trusting(pair.authorities) as client:
            assert (await post(client, server.port, b"x" * (MAX_BODY_BYTES + 1))).status_code == 413
            assert (await post(client, server.port, parts())).status_code == 413
            assert (await post(client, server.port, review({}))).status_code == 200

    asyncio.run(scenario())
    assert BODY_S <= 10, "the API server waits no longer"


def test_a_connection_takes_little_memory(log):
    """The API server keeps dozens of them."""

    async def scenario():
        pair = tls()
        context = ssl.create_default_context(cadata=pair.authorities.decode())
        async with serving(Holds(pair), log) as (server, _):
            before, _ = tracemalloc.get_traced_memory()
            writers = []
            for _ in range(10):
                made = await asyncio.open_connection("127.0.0.1", server.port, ssl=context, server_hostname=NAME)
                writers.append(made[1])
            taken = tracemalloc.get_traced_memory()[0] - before
            for writer in writers:
                writer.close()
        assert taken / 10 < 200_000, "both ends of a connection, and what the test itself takes"

    tracemalloc.start()
    try:
        asyncio.run(scenario())
    finally:
        tracemalloc.stop()


def test_a_new_certificate_serves_new_connections_and_old_ones_go_on(log):
    async def scenario():
        old, new = tls(), tls()
        source = Holds(old)
        async with serving(source, log) as (server, certificate), trusting(old.authorities) as before:
            assert (await post(before, server.port, review({}))).status_code == 200
            source.found = new
            await certificate.look()
            async with trusting(new.authorities) as after:
                assert (await post(after, server.port, review({}))).status_code == 200
            assert (await post(before, server.port, review({}))).status_code == 200, "its connection is kept"
            async with trusting(old.authorities) as stranger:
                with pytest.raises(httpx2.ConnectError):
                    await post(stranger, server.port, review({}))

    asyncio.run(scenario())


WORSE = {
    "a damaged one": Tls(b"", b"", b"x", b"y"),
    "another's key": Tls(b"", b"", tls().certificate, tls().key),
    "none": Tls(),
    "trouble": Trouble("the API server is away"),
}


@pytest.mark.parametrize("worse", WORSE.values(), ids=WORSE)
def test_the_last_good_certificate_serves_on(worse, log):
    async def scenario():
        good = tls()
        source = Holds(good)
        async with serving(source, log) as (server, certificate), trusting(good.authorities) as client:
            source.found = worse
            await certificate.look()
            assert certificate.ready
            assert (await post(client, server.port, review({}))).status_code == 200

    asyncio.run(scenario())


def test_a_replica_without_a_certificate_is_not_ready(log):
    async def scenario():
        source = Holds(Tls())
        certificate = ServerCertificate(source, log)
        await certificate.look()
        assert not certificate.ready
        source.found = tls()
        await certificate.look()
        assert certificate.ready

    asyncio.run(scenario())


def test_cert_manager_s_files_are_read_again_when_they_change(tmp_path, log):
    def write(pair):
        (tmp_path / "tls.crt").write_bytes(pair.certificate)
        (tmp_path / "tls.key").write_bytes(pair.key)

    async def scenario():
        certificate = ServerCertificate(FilesSource(tmp_path), log)
        await certificate.look()
        assert not certificate.ready
        first, second = tls(), tls()
        write(first)
        async with serving(FilesSource(tmp_path), log) as (server, certificate):
            write(second)
            await certificate.look()
            async with trusting(second.authorities) as client:
                assert (await post(client, server.port, review({}))).status_code == 200

    asyncio.run(scenario())


# --- kept by the leader ----------------------------------------------------------------------------------------------


REQUIRED: dict = {"admissionReviewVersions": ["v1"], "sideEffects": "None"}


def install(kube):
    kube.put("secrets", {"metadata": {"name": SECRET}, "data": {}}, "criproxy-system")
    webhooks = [{"name": f"{n}.colocation.criproxy.io", "clientConfig": {}, **REQUIRED} for n in "ab"]
    kube.put("mutatingwebhookconfigurations", {"metadata": {"name": CONFIGURATION}, "webhooks": webhooks})


def bundles(kube):
    found = kube.get("mutatingwebhookconfigurations", CONFIGURATION)["webhooks"]
    return [base64.b64decode(one["clientConfig"].get("caBundle", "")) for one in found]


def test_the_leader_makes_a_certificate_that_the_api_server_trusts_and_rotates_it(kube, log):
    """Ten years in a few steps, the last of them now."""
    months = timedelta(days=61)
    begun = NOW - AUTHORITY_LIFE + AUTHORITY_LEFT - timedelta(days=10)

    async def scenario():
        install(kube)
        async with kube.client() as client:
            keeper = CertificateKeeper(client, "criproxy-system", "criproxy-cluster", log)
            assert await keeper.keep(begun) == (Step.AUTHORITY, Step.BUNDLE, Step.CERTIFICATE)
            assert await keeper.keep(begun) == ()
            assert await keeper.keep(NOW - months) == (Step.CERTIFICATE,)
            first = bundles(kube)[0]
            async with serving(SecretSource(client, "criproxy-system"), log) as (server, certificate):
                async with trusting(first) as before:
                    assert (await post(before, server.port, review({}))).status_code == 200

                assert await keeper.keep(NOW) == (Step.AUTHORITY, Step.BUNDLE, Step.CERTIFICATE)
                assert bundles(kube)[0] == bundles(kube)[1] != first
                for _ in ("the replica has the old certificate still", "it has the new one"):
                    async with trusting(bundles(kube)[0]) as after:
                        assert (await post(after, server.port, review({}))).status_code == 200
                    await certificate.look()

    asyncio.run(scenario())


def test_two_leaders_that_keep_at_once_leave_one_pair_that_fits(kube, log):
    async def scenario():
        install(kube)
        async with kube.client() as client:
            keepers = [CertificateKeeper(client, "criproxy-system", "criproxy-cluster", log) for _ in range(4)]
            outcomes = await asyncio.gather(*(keeper.keep(NOW) for keeper in keepers), return_exceptions=True)
            assert all(isinstance(one, (tuple, Trouble)) for one in outcomes)
            await keepers[0].keep(NOW)
            assert await keepers[1].keep(NOW) == ()
            source = SecretSource(client, "criproxy-system")
            async with serving(source, log) as (server, _), trusting(bundles(kube)[0]) as caller:
                assert (await post(caller, server.port, review({}))).status_code == 200

    asyncio.run(scenario())


def test_a_secret_that_somebody_damaged_is_made_anew(kube, log):
    async def scenario():
        install(kube)
        async with kube.client() as client:
            keeper = CertificateKeeper(client, "criproxy-system", "criproxy-cluster", log)
            await keeper.keep(NOW)
            data = {"tls.crt": "!!", "ca.key": "eHg=", "other": "eA=="}
            kube.put("secrets", {"metadata": {"name": SECRET}, "data": data}, "criproxy-system")
            assert Step.CERTIFICATE in await keeper.keep(NOW)

    asyncio.run(scenario())


def test_a_secret_that_is_gone_is_said(kube, log):
    async def scenario():
        async with kube.client() as client:
            keeper = CertificateKeeper(client, "criproxy-system", "criproxy-cluster", log)
            with pytest.raises(Trouble, match=f"{SECRET}: 404"):
                await keeper.keep(NOW)
            assert kube.seen("create", "secrets") == [], "it needs no right to"

    asyncio.run(scenario())
