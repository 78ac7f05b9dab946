"""Settings that come from elsewhere than the files, and hold above them."""

from pathlib import Path

import pytest

from criproxy.config import Override, OwnFiles, load

ORIGIN = "policy night (7)"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text("[cpu]\nwatermark_ratio = 0.8\nmin_cores = 1.0\n")
    return path


def loaded(file: Path, tables):
    return load(file, [Override(ORIGIN, tables)])


def test_override_holds_above_the_files_key_by_key(file):
    (file.parent / "config.d").mkdir()
    (file.parent / "config.d" / "site.toml").write_text("[cpu]\nwatermark_ratio = 0.85\n")
    found = loaded(file, {"cpu": {"watermark_ratio": 0.5}, "colocation": {"enabled": True}})
    assert found.errors == ()
    assert (found.config.cpu.watermark_ratio, found.config.cpu.min_cores) == (0.5, 1.0)
    assert found.config.colocation.enabled


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        pytest.param({"cpu": {"watermark_ratio": 7}}, "expected a number from 0.1 to 1", id="bound"),
        pytest.param({"cpu": {"watermark_ratio": None}}, "expected a number from 0.1 to 1", id="null"),
        pytest.param({"cpu": {"watermark": 0.5}}, "did you mean watermark_ratio?", id="unknown key"),
        pytest.param({"cpus": {}}, "did you mean cpu?", id="unknown section"),
        pytest.param({"cpu": 1}, "is a section, not a key", id="no section"),
        pytest.param({"cpu": {"max_cores": 0.5}}, "is above cpu.max_cores", id="conflict with the file"),
        pytest.param({"colocation": {"rules": [{"label": "a"}]}}, "needs exactly one of", id="item of a list"),
        pytest.param({"proxy": {"runtime": "/x"}}, "only this node's own file may set it", id="of the node"),
        pytest.param({"control": {"checkpoint": "/x"}}, "only this node's own file may set it", id="a file of ours"),
    ],
)
def test_override_is_checked_as_a_file_is_and_named(file, tables, words):
    errors = loaded(file, tables).errors
    assert len(errors) == 1
    assert words in str(errors[0])
    assert errors[0].file in (ORIGIN, str(file)) if words.startswith("is above") else errors[0].file == ORIGIN


def test_override_of_what_is_the_nodes_leaves_the_file_s_value(file):
    file.write_text('[proxy]\nruntime = "/run/other.sock"\n')
    assert loaded(file, {"proxy": {"runtime": "/x"}}).config.proxy.runtime == "/run/other.sock"


def test_override_has_no_influence_on_a_file_s_own_errors(file):
    file.write_text("[cpu]\nmin_cores = -1\n")
    assert [error.file for error in loaded(file, {"cpu": {"watermark_ratio": 0.5}}).errors] == [str(file)]


# --- above files that an operator has made a mistake in ---------------------------------------------------------------


def override(**cpu):
    return Override(ORIGIN, {"cpu": cpu})


def test_override_holds_above_what_the_files_were_before_they_had_an_error(file):
    own = OwnFiles(file)
    assert own.load().instead is None
    file.write_text("[cpu]\nwatermark_ratio = 0.7\nmin_core = 1\n")
    found = own.load([override(min_cores=2.0)])
    assert [error.file for error in found.errors] == [str(file)]
    assert (found.instead.cpu.watermark_ratio, found.instead.cpu.min_cores) == (0.8, 2.0)
    assert own.load().instead.cpu.min_cores == 1.0, "without it, what the files were"
    assert (own.errors, own.refused([override(min_cores=2.0)])) == ((), ())
    assert [one.override.origin for one in own.refused([override(watermark_ratio=7)])] == [ORIGIN]
    file.write_text("[cpu]\nwatermark_ratio = 0.7\n")
    found = own.load([override(min_cores=2.0)])
    assert (found.errors, found.instead, found.config.cpu.watermark_ratio) == ((), None, 0.7)


def test_files_that_were_never_in_order_have_nothing_to_lay_an_override_above(file):
    file.write_text("[cpu]\nmin_cores = -1\n")
    own = OwnFiles(file)
    assert own.load([override(watermark_ratio=0.5)]).instead is None
    assert [error.file for error in own.errors] == [str(file)]


def test_override_with_an_error_leaves_what_the_files_were_alone(file):
    own = OwnFiles(file)
    own.load()
    file.write_text("no TOML")
    assert own.load([override(watermark_ratio=7)]).instead.cpu.watermark_ratio == 0.8


def test_override_of_the_very_key_that_is_wrong_in_the_file_makes_it_right(file):
    own = OwnFiles(file)
    own.load()
    file.write_text("[cpu]\nwatermark_ratio = 7\nmin_cores = 2.0\n")
    found = own.load([override(watermark_ratio=0.5)])
    assert (found.errors, found.instead, found.config.cpu.min_cores) == ((), None, 2.0)


# --- several, each of which is tried by itself ------------------------------------------------------------------------

OFF = Override("off", {"colocation": {"enabled": False, "on_disable": "evict"}})
TYPO = Override("typo", {"cpu": {"watermark": 0.5}})
HIGH = Override("high", {"cpu": {"max_cores": 0.5}})
"""Below the file's min_cores."""

LOW = Override("low", {"cpu": {"min_cores": 0.2}})
STATIC = Override("static", {"control": {"policy": "static"}})
SIZES = Override("sizes", {"cpu": {"static_cores": 2.0}, "memory": {"static_bytes": 4 << 30}})


def cpu_of(origin, **cpu):
    return Override(origin, {"cpu": cpu})


SEVERAL = {
    "one has a typo": ([TYPO, OFF], ["typo"]),
    "one that wins has a typo": ([OFF, TYPO], ["typo"]),
    "two have": ([TYPO, OFF, cpu_of("bound", watermark_ratio=7)], ["typo", "bound"]),
    "one needs another": ([LOW, HIGH, TYPO], ["typo"]),
    "one needs another below it": ([HIGH, LOW, TYPO], ["typo"]),
    "one does not go with the file": ([HIGH, OFF], ["high"]),
    "two do not go together": ([cpu_of("a", min_cores=4.0), OFF, cpu_of("b", max_cores=2.0)], ["a"]),
    "a bad value is no conflict of others": ([STATIC, SIZES, cpu_of("bad", static_cores=-1)], ["bad"]),
    "what wins hides a bad value": ([cpu_of("a", watermark_ratio=7), cpu_of("b", watermark_ratio=0.5)], []),
}


@pytest.mark.parametrize(("overrides", "refused"), SEVERAL.values(), ids=SEVERAL)
def test_of_several_overrides_those_with_errors_are_left_out_and_the_others_hold(file, overrides, refused):
    own = OwnFiles(file)
    own.load()
    left, found = list(overrides), []
    while refused_now := own.refused(left):
        for one in refused_now:
            assert one.errors
            found.append(one.override.origin)
            left.remove(one.override)
    assert found == refused

    loaded = own.load(overrides)
    assert (loaded.config, loaded.errors) == (load(file, left).config, ())
    if OFF in overrides:
        assert not loaded.config.colocation.enabled
        assert loaded.config.colocation.on_disable == "evict"


@pytest.mark.parametrize("on_disable", ["release", "evict", 7])
def test_override_that_is_left_out_switches_off_all_the_same(file, on_disable):
    """An emergency may come amid an upgrade, with a key that this version does not know."""
    file.write_text("[colocation]\nenabled = true\n")
    off = Override("off", {"colocation": {"enabled": False, "on_disable": on_disable}, **TYPO.tables})
    found = OwnFiles(file).load([off, cpu_of("b", watermark_ratio=0.5)])
    assert (found.errors, found.config.colocation.enabled, found.config.cpu.watermark_ratio) == ((), False, 0.5)
    assert found.config.colocation.on_disable == ("evict" if on_disable == "evict" else "release")
    assert OwnFiles(file).load([off, Override("on", {"colocation": {"enabled": True}})]).config.colocation.enabled
