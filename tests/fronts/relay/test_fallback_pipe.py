"""What a fallback's pipe passes, and where its GOAWAY goes."""

import random

import pytest

from criproxy.fronts.http2 import frames
from criproxy.fronts.relay.actions import ToClient, ToRuntime
from criproxy.fronts.relay.fallback_pipe import FallbackPipe
from tests.fronts.relay.talk import SETTINGS

GOAWAY = frames.goaway(frames.MAX_STREAM)
HEADERS = frames.frame(frames.HEADERS, 0, 1, b"a") + frames.frame(frames.CONTINUATION, 0, 1, b"b")
BLOCK = HEADERS + frames.frame(frames.CONTINUATION, frames.END_HEADERS, 1, b"c")
DATA = frames.frame(frames.DATA, 0, 1, b"x" * 300)
TRAILERS = frames.frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, b"t")


def sent(pipe: FallbackPipe, *chunks: bytes) -> bytes:
    actions = [action for chunk in chunks for action in pipe.runtime_bytes(chunk)]
    return _bytes(actions)


def _bytes(actions: list) -> bytes:
    assert all(isinstance(action, ToClient) for action in actions)
    return b"".join(action.data for action in actions)


@pytest.mark.parametrize(
    ("before", "after", "gap"),
    [
        pytest.param(b"", SETTINGS, len(SETTINGS), id="before-settings"),
        pytest.param(SETTINGS[:5], SETTINGS[5:] + BLOCK, len(SETTINGS + BLOCK), id="amid-a-frame-s-header"),
        pytest.param(SETTINGS + DATA[:20], DATA[20:], len(SETTINGS + DATA), id="amid-a-payload"),
        pytest.param(SETTINGS + HEADERS, BLOCK[len(HEADERS) :], len(SETTINGS + BLOCK), id="amid-a-header-block"),
        pytest.param(SETTINGS + BLOCK, DATA, len(SETTINGS + BLOCK), id="between-two-frames"),
    ],
)
def test_goaway_goes_between_two_frames(before: bytes, after: bytes, gap: int) -> None:
    pipe = FallbackPipe()
    got = sent(pipe, before) + _bytes(pipe.drain()) + sent(pipe, after) + _bytes(pipe.drain())
    whole = before + after
    assert got == whole[:gap] + GOAWAY + whole[gap:]


def test_goaway_after_the_server_s_own_is_not_sent() -> None:
    pipe = FallbackPipe()
    own = frames.goaway(7)
    assert sent(pipe, SETTINGS + own) + _bytes(pipe.drain()) + sent(pipe, DATA) == SETTINGS + own + DATA


def test_bytes_in_whatever_pieces_pass_with_one_goaway_between_two_frames() -> None:
    chance = random.Random(14)
    whole = [SETTINGS, BLOCK, DATA, TRAILERS, DATA, BLOCK] * 3
    ends = {sum(map(len, whole[:count])) for count in range(1, len(whole) + 1)}
    data = b"".join(whole)
    for _ in range(300):
        cuts = sorted(chance.choices(range(len(data)), k=chance.randint(0, 30)))
        pieces = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        pipe, got, asks = FallbackPipe(), b"", chance.randrange(len(pieces))
        for number, piece in enumerate(pieces):
            if number == asks:
                got += _bytes(pipe.drain())
            got += sent(pipe, piece)
        at = got.index(GOAWAY)
        assert at in ends
        assert got[:at] + got[at + len(GOAWAY) :] == data


def test_client_s_bytes_pass_as_they_come() -> None:
    (action,) = FallbackPipe().client_bytes(memoryview(b"anything"))
    assert action == ToRuntime(b"anything")
