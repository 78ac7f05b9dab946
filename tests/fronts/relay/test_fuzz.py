"""Random connections between strict peers, for as long as a test may take; see `fuzz` for longer runs."""

import itertools
import time

import pytest

from tests.fronts.relay.fuzz import Fuzz

SECONDS = 45
AT_LEAST = 2000
"""Half a minute of one core; more, while the time is not over."""


@pytest.mark.timeout(1200)
def test_random_connections_come_out_right() -> None:
    end = time.monotonic() + SECONDS
    for seed in itertools.count():
        if seed >= AT_LEAST and time.monotonic() > end:
            break
        try:
            Fuzz(seed).run()
        except Exception as error:
            raise AssertionError(f"python -m tests.fronts.relay.fuzz --seed {seed}") from error
