"""The clients of `./bench ledger`."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.ledger import run
from benchmarks.ledger.api import PlayedApi
from criproxy_cluster.ledger import messages


def singles(folder: Path, monkeypatch: pytest.MonkeyPatch, verdict: messages.Verdict) -> tuple[int, Counter[str], int]:
    """How many reservations counted, how often each pod was reserved, and how many were held at the end."""
    (folder / "pki").mkdir()
    (folder / "pki" / "ca.crt").write_text("none")
    asked: Counter[str] = Counter()
    held: set[str] = set()

    async def reserve(request: messages.ReserveRequest) -> messages.ReserveResponse:
        for wish in request.wishes:
            assert wish.uid not in held, "it was reserved already"
            asked[wish.uid] += 1
            held.add(wish.uid)
        return messages.ReserveResponse(verdicts=[verdict])

    async def release(request: messages.ReleaseRequest) -> messages.ReleaseResponse:
        held.difference_update(request.uids)
        return messages.ReleaseResponse()

    monkeypatch.setattr(run, "_reserve", lambda _channel: reserve)
    monkeypatch.setattr(run, "_release", lambda _channel: release)
    doors = run.Doors(folder, cast("PlayedApi", None), 1, 1)

    async def measured() -> Any:
        return await doors.singles(0.05, 4)

    _, took_s = asyncio.run(measured())
    return len(took_s), asked, len(held)


def test_reservations_one_by_one_are_of_pods_that_hold_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done, asked, held = singles(tmp_path, monkeypatch, messages.Verdict())
    assert done == sum(asked.values())
    assert len(asked) > 4
    assert held == 0


def test_reservation_that_is_refused_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="full"):
        singles(tmp_path, monkeypatch, messages.Verdict(why="full"))
