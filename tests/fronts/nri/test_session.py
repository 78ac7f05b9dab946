"""The wire of NRI: what is cut anywhere is put together, and what can't be followed is said so."""

import itertools
import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from criproxy.fronts.http2.codes import Code
from criproxy.fronts.nri import messages as nri
from criproxy.fronts.nri import mux, ttrpc
from criproxy.fronts.nri.mux import WireError
from criproxy.fronts.nri.session import Called, Registered, Session
from tests.fakes import nri as runtime
from tests.fakes.nri import PACKAGE, answers, call, chunk, frame, registered

MUTATED = int(os.environ.get("NRI_MUTATED", "2000"))
"""`NRI_MUTATED=1000000 pytest tests/fronts/nri/test_session.py` takes two minutes of CPU."""

OF_ONE_PLUGIN = 500

CONVERSATION = b"".join(
    (
        registered(),
        call(1, "Configure", nri.ConfigureRequest(runtime_name=b"containerd").SerializeToString()),
        call(3, "Synchronize", nri.SynchronizeRequest(pods=[runtime.sandbox()]).SerializeToString()),
        call(5, "RunPodSandbox", runtime.event(runtime.sandbox())),
        call(7, "CreateContainer", runtime.event(runtime.sandbox(), runtime.container())),
    )
)


def received(*pieces: bytes) -> list[Called | Registered]:
    session = Session()
    return [one for piece in pieces for one in session.receive(piece)]


def test_a_plugin_registers_with_the_runtimes_service() -> None:
    (asked,) = answers(Session().register("criproxy", "95"))
    request = runtime.read(nri.TtrpcRequest(), asked.data)
    said = runtime.read(nri.RegisterPluginRequest(), request.payload)
    assert (asked.connection, asked.stream, asked.kind) == (2, 1, 1)
    assert (request.service, request.method) == (PACKAGE + b".Runtime", b"RegisterPlugin")
    assert (said.plugin_name, said.plugin_idx) == (b"criproxy", b"95")


def test_calls_are_answered_on_their_streams() -> None:
    session = Session()
    one, other = session.receive(call(1, "Configure") + call(3, "Shutdown"))
    assert isinstance(one, Called)
    assert isinstance(other, Called)
    sent = list(answers(session.refuse(other, Code.FAILED_PRECONDITION, "no") + session.answer(one, b"yes")))
    assert [(found.connection, found.stream, found.kind) for found in sent] == [(1, 3, 2), (1, 1, 2)]
    assert (sent[0].response.status.code, sent[0].response.status.message) == (9, b"no")
    assert (sent[1].response.HasField("status"), sent[1].response.payload) == (False, b"yes")


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (registered(), [Registered()]),
        (registered(2, "no such index"), [Registered("code 2: no such index")]),
        (call(1, "RunPodSandbox", b"x", service=b"other"), [Called(1, "", b"x")]),
        (chunk(3, b"of a connection that nobody has opened"), []),
        (chunk(1, b""), []),
        (chunk(1, b"\0\0\0\1\0\0\0\1\3\0x"), []),
        (chunk(2, b"\0\0\0\0\0\0\0\3\2\0"), []),
    ],
    ids=["registered", "refused", "another service", "another connection", "empty", "of a stream", "another stream"],
)
def test_what_comes_is_a_call_an_answer_or_nothing(sent: bytes, says: list[Called | Registered]) -> None:
    assert received(sent) == says


@pytest.mark.parametrize(
    "sent",
    [
        b"\0\0\0\1" + (mux.MOST_BYTES + 1).to_bytes(4, "big"),
        chunk(1, (ttrpc.MOST_BYTES + 1).to_bytes(4, "big") + b"\0\0\0\1\1\0"),
        chunk(1, b"\0\0\0\1\0\0\0\1\1\0\x0a"),
        chunk(2, b"\0\0\0\1\0\0\0\1\2\0\x0a"),
    ],
    ids=["chunk", "frame", "request", "response"],
)
def test_what_can_not_be_followed_is_an_error(sent: bytes) -> None:
    with pytest.raises(WireError):
        received(sent)


def test_the_largest_frame_passes() -> None:
    payload = bytes(ttrpc.MOST_BYTES - 100)
    (found,) = received(call(1, "Synchronize", payload))
    assert isinstance(found, Called)
    assert len(found.payload) == len(payload)


@given(st.lists(st.integers(0, len(CONVERSATION)), max_size=30))
def test_bytes_may_be_cut_anywhere(cuts: list[int]) -> None:
    at = [0, *sorted(cuts), len(CONVERSATION)]
    pieces = [CONVERSATION[begin:end] for begin, end in itertools.pairwise(at)]
    assert received(*pieces) == received(CONVERSATION)


@given(st.lists(st.binary(max_size=40), min_size=1), st.integers(1, 60))
def test_a_chunk_ends_anywhere_in_a_frame(payloads: list[bytes], size: int) -> None:
    frames = b"".join(frame(2 * number + 1, "RemoveContainer", payload) for number, payload in enumerate(payloads))
    chunks = [chunk(1, frames[at : at + size]) for at in range(0, len(frames), size)]
    assert [found.payload for found in received(*chunks)] == payloads


def test_mutated_conversations_end_in_calls_or_in_an_error() -> None:
    """Whatever comes: no other exception, not even one that is logged and answered with a refusal, but for a cgroup
    that makes no sense.
    """
    from tests.fronts.nri.test_plugin import acting

    random_ = random.Random(7)
    for begin in range(0, MUTATED, OF_ONE_PLUGIN):
        with capture_logs() as logs:
            bench = acting()
            for _ in range(min(OF_ONE_PLUGIN, MUTATED - begin)):
                for one in mutated_calls(random_):
                    bench.call(one.method, one.payload)
        failed = [log for log in logs if "exc_info" in log and "can't be put below" not in str(log["exc_info"])]
        assert failed == []


def mutated_calls(random_: random.Random) -> list[Called]:
    data = bytearray(CONVERSATION)
    for _ in range(random_.randint(1, 4)):
        at = random_.randrange(len(data))
        match random_.randrange(4):
            case 0:
                data[at] = random_.randrange(256)
            case 1:
                del data[at : at + random_.randint(1, 20)]
            case 2:
                data[at:at] = random_.randbytes(random_.randint(1, 20))
            case _:
                data[at] ^= 1 << random_.randrange(8)
    cut = random_.randrange(len(data))
    try:
        return [one for one in received(bytes(data[:cut]), bytes(data[cut:])) if isinstance(one, Called)]
    except WireError:
        return []
