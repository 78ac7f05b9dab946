"""An API server in memory that lets down whoever asks it: a seed decides what becomes of each request and each watch.

While it is `well`, it answers as `fake_kube` does. Otherwise a request is answered, refused with one of the server's
numbers, cut off before or after it was done, answered with what is no answer, or never; and a watch is cut, ends, is
silent for ever, or says what can't be read.
"""

import asyncio

import httpx2

from cluster.tests.fake_kube import ANSWERS_IN_S, FakeKube, InMemory, failure

NUMBERS = (400, 401, 403, 404, 409, 410, 422, 429, 500, 503, 504)
FATES = ("answers",) * 10 + ("number",) * 4 + ("refuses", "loses", "hangs", "odd") * 2
ODD = (
    b"",
    b"null",
    b"[]",
    b"{}",
    b'"text"',
    b"<html></html>",
    b"\xff",
    b'{"items":null}',
    b'{"items":[null,7]}',
    b'{"metadata":null}',
    b'{"metadata":[],"items":{}}',
    b'{"data":[],"metadata":{"name":7}}',
    b'{"data":{"book":7}}',
    b'{"spec":[],"metadata":{}}',
    b"[" * 5000,
)
ODD_LINES = (
    b"\n",
    b"null\n",
    b"[]\n",
    b"{}\n",
    b"\xff\n",
    b'{"type":"MODIFIED"}\n',
    b'{"type":"MODIFIED","object":null}\n',
    b'{"type":"MODIFIED","object":{"metadata":null}}\n',
    b'{"type":"MODIFIED","object":{"metadata":{"name":"x","uid":"x","resourceVersion":"1"},"spec":7,"status":[]}}\n',
    b'{"type":"ERROR","object":{"code":410}}\n',
    b'{"type":"ERROR","object":null}\n',
    b'{"type":"BOOKMARK","object":{}}\n',
    b'{"type":"WHAT","object":{}}\n',
    b'{"type":"DELETED","object":{"metadata":{"name":"nobody","uid":"nobody"}}}\n',
)


async def passes(number):
    """Of the event loop."""
    for _ in range(number):
        await asyncio.sleep(0)


async def never(request):
    """As the client's own limit ends it, if it has one."""
    limit_s = request.extensions.get("timeout", {}).get("read")
    if limit_s is None:
        await asyncio.Event().wait()
    await asyncio.sleep(limit_s)
    raise httpx2.ReadTimeout("no answer", request=request)


class FatefulKube(FakeKube):
    """`chance` decides."""

    def __init__(self, chance):
        super().__init__()
        self.chance, self.well = chance, True

    def transport(self):
        return _Fateful(self, InMemory(self))


class _Fateful(httpx2.AsyncBaseTransport):
    def __init__(self, world, inner):
        self._world, self._inner = world, inner

    async def handle_async_request(self, request):
        chance = self._world.chance
        await passes(chance.randrange(3))
        fate = "answers" if self._world.well else chance.choice(FATES)
        if fate == "refuses":
            raise httpx2.ConnectError("refused", request=request)
        if fate == "hangs":
            await never(request)
        if fate == "number":
            status, body = failure(chance.choice(NUMBERS), "as the test wants it")
            return httpx2.Response(status, json=body)
        if fate == "odd":
            if request.method != "GET":  # it is done: who writes need not read the answer
                await self._inner.handle_async_request(request)
            await asyncio.sleep(ANSWERS_IN_S)
            headers = {"Content-Type": "application/json"} if chance.random() < 0.9 else {}
            return httpx2.Response(200, headers=headers, content=chance.choice(ODD))
        answer = await self._inner.handle_async_request(request)
        if fate == "loses":
            await answer.aclose()
            raise httpx2.ReadError("cut", request=request)
        if "watch" in request.url.params and answer.status_code == 200 and not self._world.well:
            return httpx2.Response(200, headers=answer.headers, stream=_Fated(self._world, answer))
        return answer


class _Fated(httpx2.AsyncByteStream):
    """A watch, with the lines of a real one, and an end of its own."""

    def __init__(self, world, answer):
        self._world, self._answer = world, answer

    async def __aiter__(self):
        chance = self._world.chance
        left, lines = chance.randrange(8), aiter(self._answer.aiter_bytes())
        while self._world.well or left > 0:
            left -= 1
            await passes(chance.randrange(3))
            if not self._world.well and chance.random() < 0.2:
                yield chance.choice(ODD_LINES)
            try:
                yield await anext(lines)
            except StopAsyncIteration:
                return
        match chance.randrange(3):
            case 0:
                raise httpx2.ReadError("cut")
            case 1:
                await asyncio.Event().wait()

    async def aclose(self):
        await self._answer.aclose()
