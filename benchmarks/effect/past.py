"""A past for criproxy's predictors: offline work comes to a node whose daemon has seen its online load for hours."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from criproxy.concurrency.clock import Clock
from criproxy.control.predictor import make_predictor
from criproxy.control.resources import RESOURCES
from criproxy.control.series import PredictorSettings
from criproxy.daemon.checkpoint import CheckpointFile, Remembered
from criproxy.model import Capacity

PAST_S = 4 * 3600
"""Beyond the cold start, and the slow fall from what is predicted in it."""


def write_past(checkpoint: Path, used: Mapping[str, Sequence[float]], capacity: Capacity) -> None:
    """A checkpoint as if the node had used this, by resource, a sample a second, over and over until now."""
    clock = Clock()
    now_s, wall_s = clock.boottime_s(), clock.wall_s()
    learned = {}
    for name, samples in used.items():
        sampling = RESOURCES[name].sampling
        assert sampling is not None
        predictor = make_predictor(PredictorSettings(), sampling.buckets)
        for ago_s, amount in zip(range(PAST_S, 0, -1), itertools.cycle(samples), strict=False):
            predictor.observe(now_s - ago_s, wall_s - ago_s, amount, sampling.capacity(capacity))
        learned[name] = predictor.checkpoint()
    CheckpointFile(checkpoint, clock, structlog.get_logger()).write(Remembered(learned), durable=False)
