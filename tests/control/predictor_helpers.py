"""Predictors to test, and loads to feed them."""

import random

import msgspec
from msgspec.structs import replace

from criproxy.control.histogram import CPU_BUCKETS
from criproxy.control.predictor import make_predictor
from criproxy.control.series import PredictorSettings, PredictorState

T = 1_700_006_400.0  # midnight, UTC
CAPACITY = 32.0
KINDS = ("histogram", "calibrated")


def predictor(kind="calibrated", buckets=CPU_BUCKETS, **changes):
    return make_predictor(replace(PredictorSettings(kind=kind), **changes), buckets)


def feed(target, usages, start=T, step=1.0, capacity=CAPACITY):
    """Predictions for samples `step` apart; the wall clock is the monotonic one."""
    return [target.observe(start + i * step, start + i * step, u, capacity) for i, u in enumerate(usages)]


def level_of(target):
    """The level that a predictor of either kind has learned; None: none."""
    return getattr(target, "series", target).level.percentile()


def matured_probes(target):
    learned = target.checkpoint().learned
    return learned.matured if learned else 0


def noisy(count, mean=4.0, seed=7):
    source = random.Random(seed)
    return [max(0.0, source.gauss(mean, 0.3 * mean)) for _ in range(count)]


def through_json(state):
    return msgspec.json.decode(msgspec.json.encode(state), type=PredictorState)


def restored(target, state, now, shift=0.0):
    return target.restore(through_json(state), now, shift)
