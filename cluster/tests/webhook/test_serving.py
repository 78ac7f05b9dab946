"""A replica serves over real TLS, by certificates from files, and takes up new ones without a failed call."""

import asyncio
import ssl
import sys
import time
import tracemalloc
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import httpx2
import pytest
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from structlog.testing import LogCapture

from cluster.integration.hostile import BUSY
from cluster.tests.webhook.test_webhook_review import offline, review
from criproxy_cluster.certificates.authority import Tls, with_authority, with_certificate
from criproxy_cluster.webhook.app import MAX_BODY_BYTES, WebhookAnswers
from criproxy_cluster.webhook.certificates import ServerCertificate
from criproxy_cluster.webhook.conversion import ConversionSettings
from criproxy_cluster.webhook.front import Front, FrontLimits, Reply, _Connection

NAME = "criproxy-cluster.criproxy-system.svc"
NOW = datetime.now(UTC)
PROMPT = FrontLimits(lame_duck_s=0.0)


def tls():
    return with_certificate(with_authority(Tls(), NOW), (NAME,), NOW)


def put(folder, pair):
    """As a Secret is mounted."""
    for name, content in pair.of_server.items():
        (folder / name).write_bytes(content)


@asynccontextmanager
async def serving(folder, log, limits=PROMPT, *, address="127.0.0.1", port=0):
    certificate = ServerCertificate(folder, log)
    certificate.look()
    answers = WebhookAnswers(ConversionSettings(), certificate, log)
    front = Front(answers, certificate, log, limits)
    running = asyncio.create_task(front.serve(address, port))
    while not front.port:  # noqa: ASYNC110
        await asyncio.sleep(0)
    try:
        yield front, certificate
    finally:
        front.end()
        await running


def trusting(authorities):
    context = ssl.create_default_context(cadata=authorities.decode())
    return httpx2.AsyncClient(verify=context, limits=httpx2.Limits(keepalive_expiry=None))


async def post(client, port, body, **headers):
    url = f"https://127.0.0.1:{port}/convert"
    extensions = {"sni_hostname": NAME}
    return await client.post(url, content=body, headers={"Host": NAME, **headers}, extensions=extensions)


def test_a_review_is_answered_over_tls(tmp_path, log):
    async def scenario():
        put(tmp_path, pair := tls())
        async with serving(tmp_path, log) as (server, _), trusting(pair.authorities) as client:
            found = await post(client, server.port, review(offline(requests={"cpu": "1"})))
            assert found.status_code == 200 and found.json()["response"]["patchType"] == "JSONPatch"
            refused = await post(client, server.port, b"{")
            assert refused.status_code == 400
            for path, status in (
                ("/healthz", 200),
                ("/readyz?verbose", 200),
                ("/metrics", 200),
                ("/other", 404),
                ("/convert", 405),
            ):
                url = f"https://127.0.0.1:{server.port}{path}"
                assert (await client.get(url, extensions={"sni_hostname": NAME})).status_code == status
                assert (await client.head(url, extensions={"sni_hostname": NAME})).status_code in (status, 405)

    asyncio.run(scenario())


def test_a_replica_is_reached_by_ipv4_and_by_ipv6(tmp_path, log):
    async def scenario():
        put(tmp_path, pair := tls())
        async with serving(tmp_path, log, address="") as (server, _), trusting(pair.authorities) as client:
            for host in ("127.0.0.1", "[::1]"):
                found = await client.get(f"https://{host}:{server.port}/healthz", extensions={"sni_hostname": NAME})
                assert found.status_code == 200

    asyncio.run(scenario())


def test_a_body_is_bounded_and_says_how_long_it_is(tmp_path, log):
    async def parts():
        for _ in range(MAX_BODY_BYTES // 65536 + 1):
            yield b"x" * 65536

    async def scenario():
        put(tmp_path, pair := tls())
        async with serving(tmp_path, log) as (server, _), trusting(pair.authorities) as client:
            assert (await post(client, server.port, b"x" * (MAX_BODY_BYTES + 1))).status_code == 413
            refused = await post(client, server.port, parts())
            assert refused.status_code == 411 and "Content-Length" in refused.text
            assert (await post(client, server.port, review({}))).status_code == 200
            assert (await post(client, server.port, b"{}", Expect="100-continue")).status_code == 400

    asyncio.run(scenario())


def test_a_connection_takes_little_memory(tmp_path, log):
    """The API server keeps dozens of them."""

    async def scenario():
        put(tmp_path, pair := tls())
        context = ssl.create_default_context(cadata=pair.authorities.decode())
        async with serving(tmp_path, log) as (server, _):
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


def test_a_new_certificate_serves_new_connections_and_old_ones_go_on(tmp_path, log):
    async def scenario():
        old, new = tls(), tls()
        put(tmp_path, old)
        async with serving(tmp_path, log) as (server, certificate), trusting(old.authorities) as before:
            assert (await post(before, server.port, review({}))).status_code == 200
            put(tmp_path, new)
            certificate.look()
            async with trusting(new.authorities) as after:
                assert (await post(after, server.port, review({}))).status_code == 200
            assert (await post(before, server.port, review({}))).status_code == 200, "its connection is kept"
            async with trusting(old.authorities) as stranger:
                with pytest.raises(httpx2.ConnectError):
                    await post(stranger, server.port, review({}))

    asyncio.run(scenario())


def test_a_new_certificate_with_a_key_of_another_kind_is_served(tmp_path, log):
    async def scenario():
        put(tmp_path, tls())
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, NAME)])
        made = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(NOW - timedelta(hours=1))
            .not_valid_after(NOW + timedelta(hours=1))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
            .sign(key, hashes.SHA256())
            .public_bytes(Encoding.PEM)
        )
        async with serving(tmp_path, log) as (server, certificate):
            pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            put(tmp_path, Tls(certificate=made, key=pem))
            certificate.look()
            async with trusting(made) as client:
                assert (await post(client, server.port, review({}))).status_code == 200

    asyncio.run(scenario())


WORSE = {"a damaged one": Tls(b"", b"", b"x", b"y"), "another's key": Tls(b"", b"", tls().certificate, tls().key)}


@pytest.mark.parametrize("worse", [*WORSE.values(), None], ids=[*WORSE, "none"])
def test_the_last_good_certificate_serves_on(worse, tmp_path, log):
    async def scenario():
        put(tmp_path, good := tls())
        async with serving(tmp_path, log) as (server, certificate), trusting(good.authorities) as client:
            if worse is None:
                (tmp_path / "tls.key").unlink()
            else:
                put(tmp_path, worse)
            certificate.look()
            assert certificate.ready
            assert (await post(client, server.port, review({}))).status_code == 200

    asyncio.run(scenario())


def test_a_replica_without_a_certificate_is_not_ready_and_takes_it_up(tmp_path, log):
    async def scenario():
        async with serving(tmp_path, log) as (server, certificate):
            assert not certificate.ready
            put(tmp_path, pair := tls())
            certificate.look()
            assert certificate.ready
            async with trusting(pair.authorities) as client:
                assert (await post(client, server.port, review({}))).status_code == 200

    asyncio.run(scenario())


# --- the front's limits -----------------------------------------------------------------------------------------------

QUICK = FrontLimits(head_s=0.3, request_s=0.6, idle_s=1.2, connections=8, held_bytes=1 << 20, lame_duck_s=0.0)
HEAD = b"POST /convert HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


async def connected(pair, port):
    context = ssl.create_default_context(cadata=pair.authorities.decode())
    return await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=NAME)


async def cut_after_s(reader):
    """When the other end closes it."""
    now_s = asyncio.get_running_loop().time
    began_s = now_s()
    async with asyncio.timeout(20.0):
        try:
            while await reader.read(1 << 16):
                pass
        except ConnectionError:
            pass
    return now_s() - began_s


async def drip(writer, data):
    """A byte now and then, for as long as it is taken."""
    try:
        for number in range(len(data)):
            writer.write(data[number : number + 1])
            await writer.drain()
            await asyncio.sleep(0.05)
    except ConnectionError:
        pass


@pytest.mark.parametrize(
    ("sent", "limit_s"),
    [
        pytest.param(b"", QUICK.head_s, id="silent"),
        pytest.param(HEAD[:20], QUICK.head_s, id="half a head"),
        pytest.param(HEAD % 1000 + b"{", QUICK.request_s, id="a body that lacks its end"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", QUICK.idle_s, id="idle after an answer"),
    ],
)
def test_a_connection_that_does_not_go_on_is_cut_in_its_time(sent, limit_s, tmp_path, log):
    async def scenario():
        put(tmp_path, pair := tls())
        async with serving(tmp_path, log, QUICK) as (server, _):
            reader, writer = await connected(pair, server.port)
            writer.write(sent)
            assert limit_s - 0.2 < await cut_after_s(reader) < limit_s + 3.0
            writer.close()

    asyncio.run(scenario())


def test_a_head_that_comes_byte_by_byte_and_tls_that_never_begins_are_cut_in_the_time_of_a_head(tmp_path, log):
    async def scenario():
        put(tmp_path, pair := tls())
        async with serving(tmp_path, log, QUICK) as (server, _):
            reader, writer = await connected(pair, server.port)
            dripping = asyncio.create_task(drip(writer, HEAD * 3))
            assert await cut_after_s(reader) < 3.0
            dripping.cancel()
            bare, other = await asyncio.open_connection("127.0.0.1", server.port)
            assert await cut_after_s(bare) < 3.0
            for one in (writer, other):
                one.close()

    asyncio.run(scenario())


def test_a_new_connection_is_always_let_in_and_one_that_has_asked_is_not_cut_by_silent_ones(tmp_path):
    patient = FrontLimits(head_s=30.0, request_s=30.0, connections=8, grace_s=0.02, lame_duck_s=0.0)
    logged = LogCapture()
    log = structlog.wrap_logger(None, processors=[logged])

    async def scenario():
        put(tmp_path, pair := tls())
        async with serving(tmp_path, log, patient) as (server, _), trusting(pair.authorities) as old:
            assert (await post(old, server.port, review({}))).status_code == 200
            kept = next(iter(old._transport._pool.connections))
            silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(30)]
            half = [await connected(pair, server.port) for _ in range(30)]
            for _, writer in half:
                writer.write(HEAD % 100)
            async with trusting(pair.authorities) as new:
                assert (await post(new, server.port, review({}))).status_code == 200
            assert (await post(old, server.port, review({}))).status_code == 200
            assert next(iter(old._transport._pool.connections)) is kept
            assert [entry["event"] for entry in logged.entries].count("connections_cut") == 1
            for _, writer in (*silent, *half):
                writer.close()  # or its end would be waited for

    asyncio.run(scenario())


def test_bodies_that_lack_their_end_hold_no_more_than_the_bound_and_short_ones_wait_for_none(tmp_path, log):
    patient = FrontLimits(head_s=30.0, request_s=30.0, held_bytes=1 << 20, lame_duck_s=0.0)
    more = 8 * (16 << 10)
    """What each has read when it finds that it is too much."""

    async def scenario():
        put(tmp_path, pair := tls())
        async with serving(tmp_path, log, patient) as (server, _), trusting(pair.authorities) as client:
            hostile = [await connected(pair, server.port) for _ in range(8)]
            for _, writer in hostile:
                writer.write(HEAD % (400 << 10) + b"x" * (399 << 10))
            now_s = asyncio.get_running_loop().time
            end_s, most = now_s() + 2.0, 0
            while now_s() < end_s:
                async with asyncio.timeout(5.0):
                    assert (await post(client, server.port, review({}))).status_code == 200
                most = max(most, server._held_bytes)
                await asyncio.sleep(0.01)
            assert most <= (1 << 20) + more
            assert (await post(client, server.port, review({"x": "y" * (300 << 10)}))).status_code == 200
            for _, writer in hostile:
                writer.close()
        assert server._held_bytes == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("way", BUSY)
def test_small_pieces_without_end_keep_nobody_from_an_answer(way, tmp_path, log):
    """In CPU time of the server, as the machine may have other work; its client's is in it, too."""
    enough_s = 1.0

    async def scenario():
        put(tmp_path, pair := tls())
        async with serving(tmp_path, log) as (server, _):
            asks = ("-m", "cluster.integration.hostile", str(server.port), "30", way)
            hostile = await asyncio.create_subprocess_exec(sys.executable, *asks, stdout=asyncio.subprocess.PIPE)
            try:
                await hostile.stdout.readline()
                await asyncio.sleep(1.0)
                for _ in range(3):
                    began_s = time.thread_time()
                    async with asyncio.timeout(30.0), trusting(pair.authorities) as client:
                        assert (await post(client, server.port, review({}))).status_code == 200
                    assert time.thread_time() - began_s < enough_s
            finally:
                hostile.kill()
                await hostile.wait()

    asyncio.run(scenario())


class Long:
    """Answers all with as many bytes."""

    most_bytes = 1 << 20

    def __init__(self, size):
        self.size = size

    def answer(self, method, path, body, *, ending):
        return Reply(200, b"x" * self.size)


def test_the_shortest_request_and_the_oldest_are_answered_by_turns(tmp_path, log):
    order = []

    async def turned(front, size):
        await front.turn(size)
        order.append(size)

    async def scenario():
        front = Front(Long(0), ServerCertificate(tmp_path, log), log)
        await asyncio.gather(*(turned(front, size) for size in (5, 900, 30, 1, 500)))

    asyncio.run(scenario())
    assert order == [1, 5, 30, 900, 500]


def test_a_client_that_does_not_take_its_answer_is_cut(tmp_path, log):
    async def scenario():
        put(tmp_path, pair := tls())
        certificate = ServerCertificate(tmp_path, log)
        certificate.look()
        front = Front(Long(32 << 20), certificate, log, FrontLimits(request_s=0.5, lame_duck_s=0.0))
        running = asyncio.create_task(front.serve("127.0.0.1", 0))
        while not front.port:  # noqa: ASYNC110
            await asyncio.sleep(0)
        _, writer = await connected(pair, front.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(5.0):
            while not front._held_bytes:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            while front._open:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert front._held_bytes == 0
        writer.close()
        front.end()
        await running

    asyncio.run(scenario())


def test_a_front_that_can_accept_no_more_ends_the_process(tmp_path, log, monkeypatch):
    async def broken(self, listener):
        raise ZeroDivisionError

    monkeypatch.setattr(Front, "_accept", broken)
    front = Front(Long(0), ServerCertificate(tmp_path, log), log)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(front.serve("127.0.0.1", 0))


# --- the end ----------------------------------------------------------------------------------------------------------


def test_until_it_ends_all_is_answered_on_old_connections_and_new_ones_which_are_let_go(tmp_path, log):
    limits = FrontLimits(lame_duck_s=1.0)

    async def scenario():
        put(tmp_path, pair := tls())
        async with serving(tmp_path, log, limits) as (server, _), trusting(pair.authorities) as old:
            assert (await post(old, server.port, review({}))).status_code == 200
            idle, idle_writer = await connected(pair, server.port)
            idle_writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200" in await idle.readuntil(b"ok\n")
            server.end()
            found = await post(old, server.port, review({}))
            assert (found.status_code, found.headers["connection"]) == (200, "close")
            assert (await post(old, server.port, review({}))).status_code == 200, "on a new one"
            url = f"https://127.0.0.1:{server.port}/readyz"
            assert (await old.get(url, extensions={"sni_hostname": NAME})).status_code == 503
            assert await cut_after_s(idle) < 4.0
            idle_writer.close()
            with pytest.raises(httpx2.ConnectError):
                await post(old, server.port, review({}))

    asyncio.run(scenario())


def test_a_request_that_is_under_way_at_the_end_is_answered(tmp_path, log):
    async def scenario():
        put(tmp_path, pair := tls())
        async with serving(tmp_path, log, FrontLimits(lame_duck_s=0.0)) as (server, _):
            reader, writer = await connected(pair, server.port)
            body = review({})
            body = body if isinstance(body, bytes) else body.encode()
            writer.write(HEAD % len(body) + body[:10])
            await asyncio.sleep(0.1)
            server.end()
            await asyncio.sleep(0.1)
            writer.write(body[10:])
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()

    asyncio.run(scenario())


class Slow:
    """Answers when it is let."""

    most_bytes = 1 << 20

    def __init__(self):
        self.asked, self.let = asyncio.Event(), asyncio.Event()

    async def answer(self, method, path, body, *, ending):
        self.asked.set()
        await self.let.wait()
        return Reply(200, b"ok")


@pytest.mark.parametrize("amid", ["its body", "its answer", "an answer that never comes"])
def test_a_part_that_fails_amid_a_request_ends_the_process_within_the_time_of_a_request(amid, tmp_path, log):
    """The failure of one part cancels the others. The client would ask again and again on its connection."""
    request_s = 2.0

    async def scenario():
        put(tmp_path, pair := tls())
        certificate, answers = ServerCertificate(tmp_path, log), Slow()
        certificate.look()
        front = Front(answers, certificate, log, FrontLimits(request_s=request_s))
        running = asyncio.create_task(front.serve("127.0.0.1", 0))
        while not front.port:  # noqa: ASYNC110
            await asyncio.sleep(0)
        reader, writer = await connected(pair, front.port)
        writer.write(HEAD % 2 + (b"{" if amid == "its body" else b"{}"))
        async with asyncio.timeout(5.0):
            if amid == "its body":
                while not any(one.asked for one in front._open.values()):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            else:
                await answers.asked.wait()
        running.cancel()
        await asyncio.sleep(0.1)
        if amid == "its body":
            writer.write(b"}")
        if amid != "an answer that never comes":
            answers.let.set()
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200") and b"\r\nConnection: close\r\n" in head
        done, _ = await asyncio.wait([running], timeout=request_s + 1.0)
        assert done and running.cancelled() and not front._open
        writer.close()

    asyncio.run(scenario())


def test_the_end_waits_for_no_connection_longer_than_for_a_request(tmp_path, log):
    async def scenario():
        front = Front(Long(0), ServerCertificate(tmp_path, log), log, FrontLimits(request_s=0.2))
        running = asyncio.create_task(front.serve("127.0.0.1", 0))
        while not front.port:  # noqa: ASYNC110
            await asyncio.sleep(0)
        connection = _Connection(1, 0.0)
        connection.begins(0.0)
        front._open[asyncio.create_task(asyncio.sleep(60.0))] = connection
        running.cancel()
        done, _ = await asyncio.wait([running], timeout=5.0)
        assert done and running.cancelled()

    asyncio.run(scenario())
