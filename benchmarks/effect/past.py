"""A past for criproxy's predictors: offline work comes to a node whose daemon has seen its online load for hours."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import structlog

from criproxy.control.clock import Clock
from criproxy.control.predictor import make_predictor
from criproxy.control.resources import RESOURCES
from criproxy.control.series import PredictorSettings
from criproxy.daemon.checkpoint import CheckpointFile, Remembered
from criproxy.model import CPU

PAST_S = 4 * 3600
"""Beyond the cold start, and the slow fall from what is predicted in it."""


def write_past(checkpoint: Path, online_cores: Sequence[float], capacity_cores: float) -> None:
    """A checkpoint as if the node had run this load, a sample a second, over and over until now."""
    row, clock = RESOURCES[CPU], Clock()
    assert row.sampling is not None
    predictor = make_predictor(PredictorSettings(), row.sampling.buckets)
    now_s, wall_s = clock.boottime_s(), clock.wall_s()
    for ago_s, cores in zip(range(PAST_S, 0, -1), itertools.cycle(online_cores), strict=False):
        predictor.observe(now_s - ago_s, wall_s - ago_s, cores, capacity_cores)
    past = Remembered({CPU: predictor.checkpoint()})
    CheckpointFile(checkpoint, clock, structlog.get_logger()).write(past, durable=False)
