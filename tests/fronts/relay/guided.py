"""The relay's core under a coverage-guided fuzzer: whatever comes, from either side, it never raises.

`pip install -r tests/fronts/relay/requirements-fuzz.txt`, then
`python -m tests.fronts.relay.guided [-max_total_time=60] [CORPUS]`; the arguments are libFuzzer's.
"""

import sys

import atheris

with atheris.instrument_imports(include=["criproxy.fronts.http2", "criproxy.fronts.relay"]):
    from criproxy.fronts.relay.actions import Ask, Close
    from criproxy.fronts.relay.core import Relay
from criproxy.fronts.http2.frames import MAX_FRAME_SIZE, PREFACE
from tests.fronts.relay.talk import HOOKED, setting

_PIECE = 64
_LARGE = 1000
"""So many times a piece is more than a frame of the smallest bound."""


def once(data: bytes) -> None:
    """Each piece of the input is for the side, and in the frame or not, that its first byte says."""
    relay = Relay(lambda path: path == HOOKED or path.startswith("/h"))
    large_frames = setting(MAX_FRAME_SIZE, 1 << 20)
    actions = [*relay.client_bytes(PREFACE + large_frames), *relay.runtime_bytes(large_frames)]
    source = atheris.FuzzedDataProvider(data)
    while source.remaining_bytes() and not any(isinstance(action, Close) for action in actions):
        how = source.ConsumeInt(1) % 16
        piece = source.ConsumeBytes(source.ConsumeIntInRange(0, _PIECE)) * (_LARGE if how & 8 else 1)
        if how & 4:  # a whole frame, which chance alone would seldom make
            head = bytes((source.ConsumeInt(1) % 10, source.ConsumeInt(1) & 0x2D))
            piece = len(piece).to_bytes(3) + head + (source.ConsumeInt(1) % 8).to_bytes(4) + piece
        feed, half = relay.client_bytes if how & 1 else relay.runtime_bytes, len(piece) // 2
        actions = [*feed(piece[:half]), *feed(piece[half:])]
        for action in actions:
            match action:
                case Ask(stream, _, message) if how & 2:
                    actions += relay.forward(stream, message * 2, print)
                case Ask(stream):
                    actions += relay.refuse(stream, 9, "no")


def main() -> None:
    atheris.Setup(sys.argv, once)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
