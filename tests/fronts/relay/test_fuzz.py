"""Random connections between strict peers, the same 2,000 each time; see `fuzz` for longer runs and other seeds."""

import pytest

from tests.fronts.relay.fuzz import Fuzz

SEEDS = 2000
"""Half a minute of one core."""
PARTS = 8


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_random_connections_come_out_right(part: int) -> None:
    for seed in range(part, SEEDS, PARTS):
        try:
            Fuzz(seed).run()
        except Exception as error:
            raise AssertionError(f"python -m tests.fronts.relay.fuzz --seed {seed}") from error
