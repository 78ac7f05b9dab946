"""When a client's breaker opens, for how long, and whose."""

from collections.abc import Iterator

import pytest

from criproxy.fronts.http2.side import PeerIds
from criproxy.fronts.relay.server import Breakers

KUBELET, HOSTILE = (1, 0), (2, 0)


def clients(count: int) -> Iterator[PeerIds]:
    return ((pid, 0) for pid in range(10, 10 + count))


def opened(times_s: list[float], client: PeerIds = KUBELET, breakers: Breakers | None = None) -> list[float | None]:
    """What each break at these times opens."""
    breakers = breakers or Breakers()
    return [breakers.broke(client, t_s) for t_s in times_s]


@pytest.mark.parametrize(
    ("times_s", "expected"),
    [
        pytest.param([0, 1, 2, 3], [None] * 4, id="four"),
        pytest.param([0, 1, 2, 3, 4], [None] * 4 + [60], id="five"),
        pytest.param([0, 15, 30, 45, 60], [None] * 4 + [60], id="five-just-within"),
        pytest.param([0, 15, 30, 45, 60.1, 60.2], [None] * 5 + [60], id="the-first-is-too-old"),
        pytest.param([0, 0, 0, 0, 0, 1, 59.9], [None] * 4 + [60, None, None], id="older-connections-while-open"),
        pytest.param([0, 0, 0, 0, 0, 60], [None] * 4 + [60, 120], id="in-the-trial"),
        pytest.param([0, 0, 0, 0, 0, 119.9], [None] * 4 + [60, 120], id="late-in-the-trial"),
        pytest.param([0, 0, 0, 0, 0, 120], [None] * 4 + [60, None], id="after-a-good-trial"),
        pytest.param([0, 0, 0, 0, 0, 120, 120, 120, 120, 120], [None] * 4 + [60] + [None] * 4 + [60], id="and-anew"),
        pytest.param(
            [0, 0, 0, 0, 0, 60, 180, 420, 900, 1860, 3780, 7380],
            [None] * 4 + [60, 120, 240, 480, 960, 1920, 3600, 3600],
            id="up-to-an-hour",
        ),
    ],
)
def test_breaks_open_the_breaker_for_longer_and_longer(times_s: list[float], expected: list[float | None]) -> None:
    assert opened(times_s) == expected


def test_breaker_is_open_for_its_time_and_its_client_alone() -> None:
    breakers = Breakers()
    opened([0, 1, 2, 3, 4], HOSTILE, breakers)
    assert breakers.is_open(HOSTILE, 4)
    assert breakers.is_open(HOSTILE, 63.9)
    assert not breakers.is_open(HOSTILE, 64)
    assert not breakers.is_open(KUBELET, 4)
    assert (breakers.open(5), breakers.open(64)) == ((HOSTILE,), ())


def test_breaks_of_many_clients_open_none_and_are_remembered_in_bounds() -> None:
    breakers = Breakers()
    opened([0, 0, 0, 0], KUBELET, breakers)
    assert all(breakers.broke(client, 1) is None for client in clients(255))
    assert breakers.broke(KUBELET, 2) == 60
    for client in clients(100_000):
        breakers.broke(client, 3)
    assert len(breakers._breakers) == 256
