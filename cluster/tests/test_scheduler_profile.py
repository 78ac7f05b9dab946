"""The scheduler's configuration that is shipped names all that nodes may lend."""

from pathlib import Path

import pytest
import yaml

from criproxy_cluster.vocabulary.presets import NAMES

FOLDER = Path(__file__).parent.parent / "manifests" / "scheduler"
LENT = [name for preset in NAMES.values() for name, _, _ in preset.rows]


def profiles(file="kube-scheduler.yaml"):
    found = yaml.safe_load((FOLDER / file).read_text())
    return {one["schedulerName"]: one for one in found["profiles"]}


@pytest.mark.parametrize("profile", profiles())
def test_every_profile_scores_by_what_presets_call_what_is_lent(profile):
    (fit,) = profiles()[profile]["pluginConfig"]
    strategy = fit["args"]["scoringStrategy"]
    weights = {one["name"]: one["weight"] for one in strategy["resources"]}

    assert (fit["name"], strategy["type"]) == ("NodeResourcesFit", "LeastAllocated")
    assert weights.pop("cpu") == weights.pop("memory") == 1, "online pods are scored as ever"
    assert weights == dict.fromkeys(LENT, 10)


def test_older_form_leaves_the_default_profile_as_it_was():
    """Kubernetes 1.20 scores a node by these resources also for pods that do not ask for them."""
    default, offline = profiles("kube-scheduler-1.20.yaml").values()
    assert default == {"schedulerName": "default-scheduler"}
    (args,) = [one["args"] for one in offline["pluginConfig"]]
    assert {one["name"] for one in args["resources"]} == {name for name, _, _ in NAMES["batch"].rows}
