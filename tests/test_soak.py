"""What the soak would find: a wrong byte, a failed round, growth; and that its picture can be read."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from benchmarks.node import connect
from benchmarks.soak.jobs import JOBS, Way, WrongError, same
from benchmarks.soak.load import Load
from benchmarks.soak.plot import draw
from benchmarks.soak.runtime import DETAILS, Handler, seen, showing
from benchmarks.soak.watch import Sample, drift


def samples(rss_mib: list[float], files: list[int]) -> list[Sample]:
    return [
        Sample(5.0 * number, rss, count, 3.0, 50.0)
        for number, (rss, count) in enumerate(zip(rss_mib, files, strict=True), 1)
    ]


@pytest.mark.parametrize(
    ("rss_mib", "files", "flat"),
    [
        pytest.param([30.0, 40.0] + [50.0] * 8, [20] * 10, True, id="warm-up"),
        pytest.param([50.0 + number / 2 for number in range(10)], [20] * 10, False, id="RSS grows"),
        pytest.param([50.0] * 10, [20 + number for number in range(10)], False, id="files grow"),
        pytest.param([50.0] * 10, [20, 24] * 5, True, id="files come and go"),
    ],
)
def test_growth_after_the_warm_up_is_told_from_none(rss_mib: list[float], files: list[int], flat: bool) -> None:
    assert drift(samples(rss_mib, files)).flat is flat


def test_answer_that_differs_is_told_with_the_place() -> None:
    same("a list", b"abc", b"abc")
    with pytest.raises(WrongError, match="a list: 4 bytes, not 3; they differ from byte 2 on"):
        same("a list", b"abXd", b"abc")
    with pytest.raises(WrongError, match="2 bytes, not 3; they differ from byte 2 on"):
        same("a list", b"ab", b"abc")


@pytest.mark.parametrize("size", [0, 1, 127, 128, 300_000])
def test_request_is_seen_in_the_answer(size: int) -> None:
    assert seen(showing(b"answer", b"\xba\x3e" * size)) == b"\xba\x3e" * size


def test_failed_rounds_are_kept_and_the_others_go_on(tmp_path: Path) -> None:
    def good(_: Way) -> Iterator[None]:
        yield

    def bad(_: Way) -> Iterator[None]:
        yield
        raise WrongError("not what was sent")

    with Load(tmp_path / "nobody.sock", "", {"good": (good, 0.01), "bad": (bad, 0.01)}) as load:
        end_s = time.monotonic() + 20
        while (load.tally.calls["good"] < 5 or len(load.tally.failures) < 2) and time.monotonic() < end_s:
            time.sleep(0.01)
    assert load.tally.calls["good"] >= 5
    assert load.tally.failures[0].endswith("bad: not what was sent")
    assert len(load.tally.failures) in (load.tally.calls["bad"], load.tally.calls["bad"] - 1)


@contextmanager
def way_to(handler: Handler, socket: Path) -> Iterator[Way]:
    server = grpc.server(ThreadPoolExecutor(2), handlers=(handler,))
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    with connect(socket) as channel:
        yield Way(socket, channel, "")
    server.stop(None)


def test_kubelet_lists_each_second_and_asks_for_statistics_each_tenth(tmp_path: Path) -> None:
    job, pause_s = JOBS["kubelet"]
    with way_to(Handler(), tmp_path / "runtime.sock") as way:
        assert [len(list(job(way))) for _ in range(11)] == [3, *[2] * 9, 3]
    assert pause_s == 1


def test_long_error_that_arrives_whole_is_a_good_call(tmp_path: Path) -> None:
    assert len(DETAILS) == 28_000
    with way_to(Handler(), tmp_path / "runtime.sock") as way:
        assert len(list(JOBS["error of 28 KB"][0](way))) == 1


def cut_short(_request: bytes, context: grpc.ServicerContext) -> None:
    context.abort(grpc.StatusCode.UNKNOWN, DETAILS[:-1])


def of_another_code(_request: bytes, context: grpc.ServicerContext) -> None:
    context.abort(grpc.StatusCode.INTERNAL, DETAILS)


def not_one(request: bytes, _context: grpc.ServicerContext) -> bytes:
    return request


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        (cut_short, "an error's text: 29711 bytes, not 29712"),
        (of_another_code, "INTERNAL"),
        (not_one, "an answer, not an error"),
    ],
)
def test_long_error_that_does_not_is_a_failure(tmp_path: Path, answer: Callable[..., Any], wrong: str) -> None:
    handler = Handler()
    handler._PullImage = answer  # type: ignore[method-assign]
    with way_to(handler, tmp_path / "runtime.sock") as way, pytest.raises((WrongError, grpc.RpcError), match=wrong):
        list(JOBS["error of 28 KB"][0](way))


@pytest.mark.slow
def test_picture_is_a_png(tmp_path: Path) -> None:
    draw(samples([50.0, 51.0, 52.0], [20, 21, 20]), "calls", tmp_path / "soak.png")
    assert (tmp_path / "soak.png").read_bytes().startswith(b"\x89PNG")
