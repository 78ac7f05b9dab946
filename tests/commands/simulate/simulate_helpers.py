"""Small traces, plans and groups to test with."""

from array import array

from criproxy.commands.simulate.replay import Plan
from criproxy.commands.simulate.score import Group, Score, Summary
from criproxy.commands.simulate.trace import Trace

HOUR = 3600.0
PLAN = Plan(resource="cpu", floor=0.1)


def trace(usages, times=None, *, step=HOUR, capacity=10.0, name="node-1", family="node"):
    times = [i * step for i in range(len(usages))] if times is None else times
    return Trace(name, family, capacity, array("d", times), array("d", usages))


def score(**changes):
    usual = {
        "violation_ratio": 0.01,
        "share_ratio": 0.7,
        "hard_ratio": 0.001,
        "severity_ratio": 0.05,
        "severity_p99_ratio": 0.1,
        "churn_ratio": 0.02,
        "limit_ratio": 0.3,
    }
    return Score(**{**usual, **changes})


def summary(**changes):
    group = Group(score(**changes), nodes=1, holding=1)
    return Summary(group, {"node": group})
