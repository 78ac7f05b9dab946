"""Other systems' marks and names, as those systems have them."""

from msgspec import Struct

from criproxy.vocabulary.presets import LABELS, MARKS, NAMES, PRESETS


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
    "katalyst": Row(
        lent={
            "resource.katalyst.kubewharf.io/reclaimed_millicpu": 1000,
            "resource.katalyst.kubewharf.io/reclaimed_memory": 1,
        }
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


def test_each_preset_is_as_its_system_has_it() -> None:
    assert {preset: found(preset) for preset in PRESETS} == ROWS


def test_no_mark_or_name_is_of_two_presets() -> None:
    marks = [mark for several in MARKS.values() for mark in several]
    names = [name for one in NAMES.values() for name, _, _ in one.rows]
    assert len(set(marks)) == len(marks) and len(set(names)) == len(names)


def test_labels_alone_can_choose_what_reaches_the_webhook() -> None:
    assert LABELS.keys() == {"offline"} | {preset for preset, row in ROWS.items() if row.labels}
    assert all(mark.of == "label" for marks in LABELS.values() for mark in marks)
