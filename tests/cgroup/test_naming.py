"""Where the box lies beside what kubelet sends; hostile paths are refused, never repaired."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.cgroup.naming import Driver, parse_box, parse_kubelet_parent, parse_placement

UID = "5a5e6a2f-7d1c-4c7e-9a54-1f3f6a6f0b11"

PARENTS = [
    ("besteffort", f"/kubepods/besteffort/pod{UID}", f"/offline/pod{UID}"),
    ("burstable", f"/kubepods/burstable/pod{UID}", f"/offline/pod{UID}"),
    ("guaranteed", f"/kubepods/pod{UID}", f"/offline/pod{UID}"),
    ("nested", f"/kubelet/kubepods/besteffort/pod{UID}", f"/kubelet/offline/pod{UID}"),
    ("deeper", "/docker/0123abcd/kubelet/kubepods/poda", "/docker/0123abcd/kubelet/offline/poda"),
    ("hash_uid", "/kubepods/pod8f2c0e", "/offline/pod8f2c0e"),
    ("slice", "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-poda_b.slice", "offline-poda_b.slice"),
    ("slice_guaranteed", "/kubepods.slice/kubepods-poda_b.slice", "offline-poda_b.slice"),
    ("slice_alone", "kubepods-burstable-poda_b.slice", "offline-poda_b.slice"),
    ("slice_nested", "kubelet-kubepods-besteffort-poda_b.slice", "kubelet-offline-poda_b.slice"),
    ("slice_escaped", r"my\x2dnode-kubepods-poda_b.slice", r"my\x2dnode-offline-poda_b.slice"),
]


@pytest.mark.parametrize(("parent", "in_box"), [case[1:] for case in PARENTS], ids=[case[0] for case in PARENTS])
def test_kubelet_parent_of_a_node_gives_the_sibling_of_kubepods(parent: str, in_box: str) -> None:
    place = parse_kubelet_parent(parent)

    assert place.in_box == in_box
    assert parse_placement(in_box) == place
    assert parse_box(place.box.path) == place.box
    assert (place.box.driver is Driver.SYSTEMD) == in_box.endswith(".slice")
    assert place.box.online == place.box.path.replace("offline", "kubepods")


def test_box_name_never_contains_pod() -> None:
    assert "pod" not in parse_kubelet_parent("/kubepods/poda").box.path


HOSTILE_PARENTS = {
    "empty": "",
    "root": "/",
    "relative": "kubepods/besteffort/poda",
    "climbs": "/kubepods/../poda",
    "climbs_in_prefix": "/../kubepods/poda",
    "climbs_from_prefix": "/a/../b/kubepods/poda",
    "climbs_as_pod": "/kubepods/..",
    "dot": "/./kubepods/poda",
    "double_slash": "//kubepods/poda",
    "trailing_slash": "/kubepods/poda/",
    "no_kubepods": "/besteffort/poda",
    "kubepods_not_direct": "/kubepods/other/poda",
    "pod_in_pod": "/kubepods/poda/podb",
    "qos_twice": "/kubepods/besteffort/besteffort/poda",
    "no_pod": "/kubepods/besteffort",
    "bare_pod": "/kubepods/pod",
    "kubepods_alone": "/kubepods",
    "newline": "/kubepods/poda\n",
    "newline_in_prefix": "/a\nb/kubepods/poda",
    "nul": "/kubepods/poda\0b",
    "nul_in_prefix": "/a\0/kubepods/poda",
    "space": "/kubepods/pod a",
    "unicode": "/kubepods/podä",
    "unicode_digit": "/kubepods/pod\u0661",
    "unicode_in_prefix": "/büro/kubepods/poda",
    "fullwidth_dots": "/\uff0e\uff0e/kubepods/poda",
    "dotted_pod": "/kubepods/poda..b",
    "dash_pod": "/kubepods/pod-a",
    "long_pod": "/kubepods/pod" + "a" * 200,
    "long_prefix": "/" + "a" * 256 + "/kubepods/poda",
    "very_long": "/a" * 5000 + "/kubepods/poda",
    "slice_of_nothing": "/.slice",
    "slice_kubepods": "/kubepods.slice",
    "slice_qos": "/kubepods-besteffort.slice",
    "slice_no_kubepods": "user-poda.slice",
    "slice_empty_part": "kubepods--poda.slice",
    "slice_climbs": "a/..-kubepods-poda.slice/b",
    "slice_newline": "a\nb-kubepods-poda.slice",
    "slice_unicode": "ä-kubepods-poda.slice",
    "slice_long": "a" * 250 + "-kubepods-poda.slice",
    "slice_below_pod": "kubepods-poda-podb.slice",
}


@pytest.mark.parametrize("parent", HOSTILE_PARENTS.values(), ids=HOSTILE_PARENTS.keys())
def test_kubelet_parent_that_kubelet_never_sends_is_refused(parent: str) -> None:
    with pytest.raises(ValueError, match=r"cgroup|slice|pod"):
        parse_kubelet_parent(parent)


HOSTILE_PLACEMENTS = {
    "empty": "",
    "kubelets": "/kubepods/besteffort/poda",
    "box_itself": "/offline",
    "other_box": "/offline2/poda",
    "below_pod": "/offline/poda/c1",
    "climbs": "/offline/../poda",
    "climbs_out": "/x/../offline/poda",
    "climbs_as_pod": "/offline/..",
    "no_pod": "/offline/other",
    "relative": "offline/poda",
    "slice_with_path": "/offline.slice/offline-poda.slice",
    "slice_box": "offline.slice",
    "slice_prefix_without_dash": "xoffline-poda.slice",
    "slice_dash_in_pod": "offline-poda-b.slice",
    "slice_empty_prefix": "-offline-poda.slice",
    "slice_as_pod": "/offline/poda.slice",
}


@pytest.mark.parametrize("placement", HOSTILE_PLACEMENTS.values(), ids=HOSTILE_PLACEMENTS.keys())
def test_placement_that_is_no_pod_of_a_box_is_refused(placement: str) -> None:
    with pytest.raises(ValueError, match=r"cgroup|slice|pod|box"):
        parse_placement(placement)


DIRECTORY = st.from_regex(r"[a-z0-9_:@-]{1,12}", fullmatch=True)
PART = st.from_regex(r"[a-z0-9_]{1,12}", fullmatch=True).filter(lambda part: part not in ("besteffort", "burstable"))
QOS = st.sampled_from([[], ["besteffort"], ["burstable"]])
POD = st.from_regex(r"pod[0-9a-f][0-9a-f_]{0,40}", fullmatch=True)


@given(st.lists(DIRECTORY, max_size=4), QOS, POD)
def test_cgroupfs_parent_round_trips(prefix: list[str], qos: list[str], pod: str) -> None:
    place = parse_kubelet_parent("/".join(["", *prefix, "kubepods", *qos, pod]))

    assert place.in_box == "/".join(["", *prefix, "offline", pod])
    assert parse_placement(place.in_box) == place
    assert parse_box(place.box.path) == place.box


@given(st.lists(PART, max_size=4), QOS, POD)
def test_systemd_parent_round_trips(prefix: list[str], qos: list[str], pod: str) -> None:
    place = parse_kubelet_parent("/any.slice/" + "-".join([*prefix, "kubepods", *qos, pod]) + ".slice")

    assert place.in_box == "-".join([*prefix, "offline", pod]) + ".slice"
    assert parse_placement(place.in_box) == place


@given(
    st.lists(st.sampled_from(["/", "..", ".", "kubepods", "offline", "poda", "-", ".slice", "ä", "\n", "a"])).map(
        "".join
    )
)
def test_whatever_is_accepted_stays_a_plain_path_in_a_box(text: str) -> None:
    for parse in (parse_kubelet_parent, parse_placement):
        try:
            place = parse(text)
        except ValueError:
            continue
        parts = re.split("[/]", place.in_box)
        assert not {".", "..", "\n"} & set(parts)
        assert parse_placement(place.in_box) == place
        assert "offline" in place.in_box
