"""Other systems' marks and names, as those systems have them."""

import pytest
from msgspec import Struct

from criproxy.vocabulary.presets import EVERY_MARK, MARKS, NAMES, OWN_MARK, PRESETS


class Row(Struct):
    """Of a preset: its labels and annotations; the names of what is lent, and how much a core or a byte is."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    lent: dict[str, int] = {}


ROWS = {
    "batch": Row(lent={"kubernetes.io/batch-cpu": 1000, "kubernetes.io/batch-memory": 1}),
    "mid": Row(lent={"kubernetes.io/mid-cpu": 1000, "kubernetes.io/mid-memory": 1}),
    "koordinator": Row({"koordinator.sh/qosClass": "BE"}),
    "crane": Row(lent={"gocrane.io/cpu": 1, "gocrane.io/memory": 1}),
    "volcano": Row({}, {"volcano.sh/qos-level": "BE"}),
    "katalyst": Row(
        {},
        {"katalyst.kubewharf.io/qos_level": "reclaimed_cores"},
        {
            "resource.katalyst.kubewharf.io/reclaimed_millicpu": 1000,
            "resource.katalyst.kubewharf.io/reclaimed_memory": 1,
        },
    ),
    "caelus": Row(
        {},
        {"mixer.kubernetes.io/app-class": "greedy"},
        {"mixer.kubernetes.io/ext-cpu": 1, "mixer.kubernetes.io/ext-memory": 1},
    ),
    "bilibili": Row(
        {"caster.io/resource-type": "colocation"},
        {"caster.io/resource-type": "colocation"},
        {"caster.io/colocation-cpu": 1, "caster.io/colocation-memory": 1},
    ),
}


def found(preset: str) -> Row:
    marks = {
        of: {one.key: one.value for one in MARKS.get(preset, ()) if one.of == of} for of in ("label", "annotation")
    }
    names = NAMES.get(preset)
    return Row(marks["label"], marks["annotation"], {name: unit for name, _, unit in names.rows} if names else {})


@pytest.mark.parametrize("preset", PRESETS)
def test_preset_is_as_its_system_has_it(preset: str) -> None:
    assert found(preset) == ROWS[preset], "write its row from the system's own code"


def test_no_mark_or_name_is_of_two_presets() -> None:
    marks = [mark for several in MARKS.values() for mark in several]
    names = [name for one in NAMES.values() for name, _, _ in one.rows]
    assert len(set(marks)) == len(marks) and len(set(names)) == len(names)


def test_every_mark_is_our_own_and_those_of_the_presets() -> None:
    assert (OWN_MARK, *(mark for several in MARKS.values() for mark in several)) == EVERY_MARK
