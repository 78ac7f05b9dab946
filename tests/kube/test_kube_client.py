"""The client, at a real HTTPS server that answers well, late, broken, or not at all."""

import asyncio
import json
import random
import socket
import ssl
import subprocess
import sys
from contextlib import aclosing

import pytest

from criproxy.kube import connection
from criproxy.kube.client import MERGE_PATCH, ApiClient, ApiRequest, RejectedError, Timeouts, UnreachableError
from criproxy.kube.credential import Credential, CredentialError
from tests.fakes.apiserver import Pki

NODE = "/api/v1/nodes/node1"
GET = ApiRequest("GET", NODE)


def ask(client, request=GET):
    return asyncio.run(client.ask(request))


def lines(client, path, count):
    async def read():
        async with aclosing(client.lines(path)) as stream:
            found = []
            assert await anext(stream) == b"", "it has begun"
            async for line in stream:
                found.append(line)
                if len(found) == count:
                    break
            return found

    return asyncio.run(read())


def test_get_answers_with_the_object_as_the_kubelets_certificate_says(client, api):
    answer = ask(client)
    assert answer.status == 200
    assert json.loads(answer.body)["metadata"]["name"] == "node1"
    assert api.requests[-1].who == "system:node:node1"


def test_patch_sends_its_body_and_content_type(client, api):
    body = json.dumps({"metadata": {"annotations": {"a": "b"}}}).encode()
    assert ask(client, ApiRequest("PATCH", NODE, body, MERGE_PATCH)).status == 200
    assert api.nodes["node1"]["metadata"]["annotations"] == {"a": "b"}
    assert api.requests[-1].headers["Content-Type"] == MERGE_PATCH


def test_a_rotated_certificate_is_used_by_the_next_request(client, api, authority):
    ask(client)
    authority.rotate("system:node:rotated")
    ask(client)
    authority.rotate("system:node:node1")
    assert [one.who for one in api.requests[-2:]] == ["system:node:node1", "system:node:rotated"]


def test_files_that_have_not_changed_are_read_once(client, credential):
    ask(client)
    ask(client)
    assert credential.read_times == 1


def test_while_a_changed_credential_is_unreadable_the_old_one_is_used(client, credential, api):
    ask(client)
    text = credential.file.read_text()
    credential.file.write_text("{")
    assert ask(client).status == 200
    credential.file.write_text(text)
    assert ask(client).status == 200
    assert credential.read_times == 2


def test_a_token_is_sent_where_there_is_no_certificate(api, authority, clock):
    credential = Credential(authority.kubeconfig(api.port, token="abc"))
    assert ask(ApiClient(credential, clock, random.Random(1))).status == 200
    assert api.requests[-1].headers["Authorization"] == "Bearer abc"


def test_a_server_of_another_authority_is_not_spoken_to(api, tmp_path, clock):
    other = Pki(tmp_path / "other")
    client = ApiClient(Credential(other.kubeconfig(api.port)), clock, random.Random(1))
    with pytest.raises(UnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
        ask(client)
    assert api.requests == []


def test_no_kubeconfig_is_unreachable_and_named(tmp_path, clock):
    credential = Credential(tmp_path / "none.conf")
    with pytest.raises(CredentialError, match=r"none\.conf: No such file"):
        credential.access()
    with pytest.raises(UnreachableError, match=r"none\.conf"):
        ask(ApiClient(credential, clock, random.Random(1)))


def test_a_server_that_is_away_is_unreachable_and_found_again(client, api):
    api.stop()
    with pytest.raises(UnreachableError):
        ask(client)
    api.start()
    assert ask(client).status == 200


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"raw": b""}, id="closed without a word"),
        pytest.param({"raw": b"SSH-2.0-OpenSSH\r\n"}, id="another protocol"),
        pytest.param({"raw": b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"}, id="cut in the body"),
        pytest.param({"raw": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"}, id="cut in a chunk"),
        pytest.param({"raw": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n"}, id="unknown encoding"),
        pytest.param({"raw": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"}, id="bad length"),
        pytest.param({"raw": b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000}, id="endless head"),
        pytest.param({"cut": 5}, id="cut short by the server"),
    ],
)
def test_a_broken_answer_is_unreachable_and_the_next_one_is_read(client, api, how):
    api.fail("GET .*node1", **how)
    with pytest.raises(UnreachableError):
        ask(client)
    assert ask(client).status == 200


def test_a_slow_answer_is_given_up(credential, clock, api):
    api.fail("GET .*node1", slow_s=1.0)
    client = ApiClient(credential, clock, random.Random(1), Timeouts(answer_s=0.2))
    with pytest.raises(UnreachableError, match=r"no answer within 0\.2 s"):
        ask(client)


def test_401_has_the_credential_read_anew(client, credential, api):
    api.fail("GET .*node1", 401)
    assert ask(client).status == 401
    assert ask(client).status == 200
    assert credential.read_times == 2


@pytest.mark.parametrize("status", [409, 429, 500, 503, 504])
def test_ask_again_passes_over_what_fails_for_now(client, api, clock, status):
    api.fail("GET .*node1", status, times=2)
    assert asyncio.run(client.ask_again(GET)).status == 200
    assert len(api.requests) == 3
    assert len(clock.slept) == 2
    assert clock.slept[0] <= 1.0 <= clock.slept[1] <= 2.0


def test_ask_again_waits_as_long_as_the_server_asks(client, api, clock):
    api.fail("GET .*node1", 429, headers={"Retry-After": "17"})
    asyncio.run(client.ask_again(GET))
    assert 17.0 <= clock.slept[0] <= 22.0


@pytest.mark.parametrize("status", [400, 403, 404, 410, 422, 301])
def test_ask_again_gives_up_at_once_what_would_be_refused_again(client, api, clock, status):
    api.fail("GET .*node1", status, times=9)
    assert asyncio.run(client.ask_again(GET)).status == status
    assert (len(api.requests), clock.slept) == (1, [])


def test_ask_again_ends_with_the_last_failure(client, api, clock):
    api.fail("GET .*node1", raw=b"", times=9)
    with pytest.raises(UnreachableError):
        asyncio.run(client.ask_again(GET, tries=3))
    assert len(api.requests) == 3


WATCH = "/api/v1/nodes?watch=1&fieldSelector=metadata.name%3Dnode1&timeoutSeconds=20&resourceVersion={}"


def test_lines_of_a_watch_come_whole_as_they_happen(client, api):
    start = api.version
    for number in range(3):
        api.put_node(metadata={"labels": {"n": str(number)}})
    found = lines(client, WATCH.format(start), 3)
    assert [json.loads(line)["object"]["metadata"]["labels"]["n"] for line in found] == ["0", "1", "2"]


def test_a_watch_that_is_refused_says_why(client, api):
    api.fail("watch", 429, headers={"Retry-After": "3"}, body=b"later")
    with pytest.raises(RejectedError) as refused:
        lines(client, WATCH.format(api.version), 1)
    assert (refused.value.answer.status, refused.value.answer.body) == (429, b"later")
    assert refused.value.answer.named_pause_s == 3.0


def test_a_silent_watch_is_given_up(credential, clock, api):
    client = ApiClient(credential, clock, random.Random(1), Timeouts(silence_s=0.2))
    with pytest.raises(UnreachableError, match="says nothing"):
        lines(client, WATCH.format(api.version), 1)


_WITHOUT_SSL = """
import asyncio, random, sys
from criproxy.daemon import footprint
with footprint.fewer_modules():
    import criproxy.daemon.daemon
from pathlib import Path
from criproxy.concurrency.clock import Clock
from criproxy.kube.client import ApiClient, ApiRequest
from criproxy.kube.credential import Credential
client = ApiClient(Credential(Path(sys.argv[1])), Clock(), random.Random())
print(asyncio.run(client.ask(ApiRequest("GET", "/api/v1/nodes/node1"))).status)
"""


def test_the_daemon_can_ask_though_it_has_imported_asyncio_without_ssl(credential):
    """In an interpreter of its own, as the first import of asyncio counts."""
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_SSL, credential.file],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("200\n", "")


def test_the_daemon_imports_of_this_room_only_what_it_asks_services_by():
    """The rest costs memory that a node without Kubernetes need not pay."""
    code = "import sys, criproxy.daemon.daemon; print([n for n in sys.modules if n.startswith('criproxy.kube.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "['criproxy.kube.http1']\n"


# --- what keeps it from the server -----------------------------------------------------------------------------------


REFUSED = "127.255.255.255"
"""No datagram is taken to a broadcast address (EACCES), as by IPAddressDeny= (EPERM)."""


def test_address_that_the_service_may_not_reach_is_told_with_the_command_that_lets_it(authority, clock):
    kubeconfig = authority.kubeconfig(6443)
    kubeconfig.write_text(kubeconfig.read_text().replace("https://127.0.0.1:6443", f"https://{REFUSED}:6443"))
    client = ApiClient(Credential(kubeconfig), clock, random.Random(7), Timeouts(connect_s=5.0))
    with pytest.raises(UnreachableError) as told:
        ask(client)
    assert f'systemctl set-property criproxy.service IPAddressAllow="{REFUSED}"' in str(told.value)
    assert f"{REFUSED} port 6443" in str(told.value)


def test_name_server_that_the_service_may_not_reach_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "RESOLVER", tmp_path / "resolv.conf")
    connection.RESOLVER.write_text(f"# x\nnameserver\nsearch a\nnameserver 127.0.0.53\nnameserver {REFUSED}\n")
    with pytest.raises(OSError, match=f"api.invalid is not resolved.*{REFUSED}"):
        connection.resolve("api.invalid", 6443)
    connection.RESOLVER.unlink()
    with pytest.raises(socket.gaierror):
        connection.resolve("api.invalid", 6443)


@pytest.mark.parametrize(("code", "asks"), [(9, True), (10, True), (20, False)])
def test_certificate_that_is_out_of_its_time_asks_after_the_clock(client, monkeypatch, code, asks):
    class _OutOfTime:
        async def __aenter__(self):
            error = ssl.SSLCertVerificationError(1, "certificate verify failed")
            error.verify_code, error.verify_message = code, "certificate is not yet valid"
            raise error

        async def __aexit__(self, *_):
            pass

    monkeypatch.setattr("criproxy.kube.client.connected", lambda *_: _OutOfTime())
    with pytest.raises(UnreachableError) as told:
        ask(client)
    assert ("is the clock right" in str(told.value)) is asks


def test_an_address_that_swallows_packets_leaves_time_for_the_others(monkeypatch):
    opens = asyncio.open_connection

    async def open_connection(address, *arguments, **more):
        if address == "192.0.2.1":
            await asyncio.Event().wait()
        return await opens(address, *arguments, **more)

    monkeypatch.setattr(asyncio, "open_connection", open_connection)

    async def go():
        async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with asyncio.timeout(1.0):
                _, writer = await connection._opened(("192.0.2.1", "127.0.0.1"), port, 0.4)
            writer.transport.abort()

    asyncio.run(go())
