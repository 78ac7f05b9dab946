"""Reading config files: all errors at once, and what is salvaged beside them."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.config import Config, Loaded, load, restart_keys
from criproxy.config.bounds import MAX_FILE_BYTES
from criproxy.config.load import parse
from criproxy.config.schema import conflicts, settings, value_of
from criproxy.control.schedule import Window
from criproxy.hooks.offline import Rule, Subject, Test
from criproxy.model import Pod, PodRef
from docs.config_example import render

ROOT = Path(__file__).parents[2]


def read(text: str | bytes) -> Loaded:
    return parse(text if isinstance(text, bytes) else text.encode(), "c.toml")


def keys(loaded: Loaded) -> list[str]:
    return [error.key for error in loaded.errors]


def test_example_on_disk_is_what_the_code_renders() -> None:
    assert (ROOT / "config.example.toml").read_text(encoding="utf-8") == render(), "run: python -m docs.generate"


def test_example_loads_as_the_defaults() -> None:
    loaded = read(render())
    assert (loaded.config, loaded.errors) == (Config(), ())


def test_example_names_every_setting() -> None:
    for setting in settings():
        assert f"\n{setting.name} = " in render() or f"\n# {setting.name} =" in render(), setting.key


def test_empty_file_means_the_defaults() -> None:
    assert read("") == Loaded(Config(), ())


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        pytest.param('[proxy]\nlisten = "unix:///a//b"', "proxy.listen", "unix:///a//b", id="socket"),
        pytest.param('[proxy]\nengine = "relay"', "proxy.engine", "relay", id="engine"),
        pytest.param("[colocation]\nenabled = true", "colocation.enabled", True, id="bool"),
        pytest.param('[colocation]\npresets = ["caelus"]', "colocation.presets", ("caelus",), id="list"),
        pytest.param("[cpu]\nmax_cores = 3", "cpu.max_cores", 3.0, id="whole-number-for-a-float"),
        pytest.param("[memory]\nmin_bytes = 4_194_304", "memory.min_bytes", 4 << 20, id="lowest-bound"),
        pytest.param("[control]\npercentile = 0.999", "control.percentile", 0.999, id="highest-bound"),
        pytest.param('[observe]\naddress = "[::1]:1"', "observe.address", "[::1]:1", id="ipv6-loopback"),
        pytest.param('[observe]\naddress = "localhost:1"', "observe.address", "localhost:1", id="localhost"),
        pytest.param('[observe]\naddress = "127.8.8.8:1"', "observe.address", "127.8.8.8:1", id="all-of-127"),
    ],
)
def test_value_that_is_valid_is_taken(text: str, key: str, value: object) -> None:
    loaded = read(text)
    assert loaded.errors == ()
    assert value_of(loaded.config, key) == value


@pytest.mark.parametrize(
    ("text", "key"),
    [
        pytest.param("[colocation]\nenabled = 1", "colocation.enabled", id="number-for-bool"),
        pytest.param('[colocation]\non_disable = "kill"', "colocation.on_disable", id="no-such-choice"),
        pytest.param("[cpu]\nwatermark_ratio = 1.01", "cpu.watermark_ratio", id="above"),
        pytest.param("[cpu]\nwatermark_ratio = nan", "cpu.watermark_ratio", id="nan"),
        pytest.param("[cpu]\nmin_cores = inf", "cpu.min_cores", id="inf"),
        pytest.param("[cpu]\nmin_cores = true", "cpu.min_cores", id="bool-for-number"),
        pytest.param("[memory]\nmin_bytes = 5e6", "memory.min_bytes", id="float-for-int"),
        pytest.param(f"[memory]\nmin_bytes = {10**40}", "memory.min_bytes", id="huge-int"),
        pytest.param("[control]\ninterval_s = 2024-01-01", "control.interval_s", id="date"),
        pytest.param('[control]\ncheckpoint = "a/b"', "control.checkpoint", id="relative-path"),
        pytest.param('[proxy]\nengine = "blind"', "proxy.engine", id="no-such-engine"),
        pytest.param('[proxy]\nlisten = "run/x.sock"', "proxy.listen", id="relative-socket"),
        pytest.param('[proxy]\nlisten = "tcp://127.0.0.1:1"', "proxy.listen", id="tcp"),
        pytest.param('[proxy]\nlisten = "/a/"', "proxy.listen", id="directory"),
        pytest.param('[proxy]\nlisten = "/a\\u0000b"', "proxy.listen", id="zero-byte"),
        pytest.param(f'[proxy]\nlisten = "/{"ü" * 60}"', "proxy.listen", id="too-long-in-bytes"),
        pytest.param('[proxy]\nlisten = "/a"\nruntime = "unix:///b/../a"', "proxy.listen", id="listen-is-runtime"),
        pytest.param("[cpu]\nmin_cores = 3\nmax_cores = 2", "cpu.min_cores", id="min-above-max"),
        pytest.param("[memory]\nmax_bytes = 4_194_304", "memory.min_bytes", id="default-min-above-max"),
        pytest.param(
            '[control]\npolicy = "static"\n[cpu]\nstatic_cores = 1', "control.policy", id="static-without-limit"
        ),
        pytest.param(
            '[interference]\nprometheus = "10.0.0.1"', "interference.prometheus", id="prometheus-without-port"
        ),
        pytest.param('[interference]\nprometheus = "10.0.0.1:0"', "interference.prometheus", id="prometheus-port-zero"),
        pytest.param(
            '[interference]\nprometheus = "10.0.0.999:80"', "interference.prometheus", id="prometheus-no-address"
        ),
        pytest.param('[interference]\nprometheus = "a.b:80"', "interference.prometheus", id="prometheus-by-name"),
        pytest.param('[observe]\naddress = "0.0.0.0:9464"', "observe.address", id="not-loopback"),
        pytest.param('[observe]\naddress = "10.0.0.1:9464"', "observe.address", id="other-host"),
        pytest.param('[observe]\naddress = "127.0.0.1"', "observe.address", id="no-port"),
        pytest.param('[observe]\naddress = "127.0.0.1:70000"', "observe.address", id="no-such-port"),
        pytest.param('[observe]\naddress = "127.0.0.1:0"', "observe.address", id="port-zero"),
        pytest.param('[observe]\naddress = "127.0.0.999:80"', "observe.address", id="no-address"),
    ],
)
def test_value_that_is_invalid_is_one_error_and_the_default(text: str, key: str) -> None:
    loaded = read(text)
    assert keys(loaded) == [key]
    assert value_of(loaded.config, key) == value_of(Config(), key)


@pytest.mark.parametrize(
    ("text", "key", "near"),
    [
        pytest.param("[colocaton]\nenabled = true", "colocaton", "colocation", id="section"),
        pytest.param("[colocation]\nenable = true", "colocation.enable", "enabled", id="key"),
        pytest.param("interval_s = 1", "interval_s", "control.interval_s", id="key-outside-its-section"),
        pytest.param(
            "enabled = true",
            "enabled",
            "colocation.enabled, guard.enabled, interference.enabled or kubernetes.enabled",
            id="key-of-several-sections",
        ),
        pytest.param('[colocation]\nrules = [{lable = "a"}]', "colocation.rules[0].lable", "label", id="key-of-a-rule"),
    ],
)
def test_unknown_key_is_an_error_that_names_the_nearest(text: str, key: str, near: str) -> None:
    (error,) = read(text).errors
    assert (error.key, error.remedy) == (key, f"did you mean {near}?")


@pytest.mark.parametrize("key", ["refuse_host_paths", "writable_host_paths"])
def test_folder_whose_name_has_a_star_before_its_end_is_an_error_as_it_would_be_that_name_alone(key: str) -> None:
    for value in ("/data*", "/", "//a/", "/var/lib/rancher/*/storage", "/a*/b*"):
        assert read(f'[hardening]\n{key} = ["{value}"]').errors == ()
    for value in ("/*a", "/a/*b", "/a**", "/a/b*c/d"):
        (error,) = read(f'[hardening]\n{key} = ["{value}"]').errors
        assert error.key == f"hardening.{key}[0]"
        assert "a * may stand at the end of a name alone" in str(error)


def test_kubelet_s_folder_and_those_of_the_sockets_are_refused_as_host_paths_unless_none_is() -> None:
    elsewhere = """
[kubelet]
root_dir = "/data/kubelet"
[proxy]
runtime = "unix:///data/run/containerd.sock"
listen = "/data/criproxy/criproxy.sock"
[hardening]
refuse_host_paths = """
    hardening = read(f'{elsewhere}["/sys"]').config.hooks(child_quota=True).hardening
    assert hardening.refuse_host_paths == ("/sys", "/data/kubelet", "/data/run", "/data/criproxy")
    assert read(f"{elsewhere}[]").config.hooks(child_quota=True).hardening.refuse_host_paths == ()


def test_section_that_is_no_table_is_an_error() -> None:
    assert keys(read("proxy = 3")) == ["proxy"]


def test_errors_are_all_told_at_once_with_file_key_value_and_remedy() -> None:
    loaded = read(
        """
        [cpu]
        min_cores = "many"
        typo = 1
        [observe]
        log_level = "loud"
        [proxy]
        runtime = "/run/mine.sock"
        [control]
        interval_s = 0
        percentile =
        """
    )
    assert keys(loaded) == ["", "cpu.typo", "cpu.min_cores", "control.interval_s", "observe.log_level"]
    assert loaded.config.proxy.runtime == "/run/mine.sock"
    assert str(loaded.errors[3]) == (
        "c.toml: control.interval_s = 0: expected a number from 0.1 to 60; correct it, or leave it out for 1.0"
    )


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param('on_disable = "evict', id="open quote"),
        pytest.param("presets = [", id="open bracket"),
        pytest.param('rules = [\n  {label = "a",', id="open table"),
        pytest.param("enabled", id="no value"),
        pytest.param("enabled = true\nenabled = true", id="twice"),
        pytest.param('on_disable = """', id="open text of several lines"),
        pytest.param("[colocation]", id="section twice"),
    ],
)
def test_what_follows_the_section_with_a_syntax_error_counts(bad: str) -> None:
    """Else criproxy would listen elsewhere than kubelet asks, and leave what it has published to nobody."""
    loaded = read(
        f"[colocation]\nenabled = true\n{bad}\n\n"
        '[proxy]\nlisten = "/run/mine.sock" # kubelet\'s\nbypass_after_s = "never"\n[kubernetes]\nenabled = true\n'
    )
    assert keys(loaded) == [""]
    config = loaded.config
    assert (config.proxy.listen, config.kubernetes.enabled) == ("/run/mine.sock", True)
    assert (config.proxy.bypass, config.colocation.enabled) == (None, True)


RULES: list[Any] = [
    pytest.param('{label = "a", equals = "b"}', Rule(Subject.LABEL, "a", Test.EQUALS, "b"), id="label-equals"),
    pytest.param('{label = "a", equals = ""}', Rule(Subject.LABEL, "a", Test.EQUALS, ""), id="equals-nothing"),
    pytest.param('{annotation = "a", prefix = "b"}', Rule(Subject.ANNOTATION, "a", Test.PREFIX, "b"), id="prefix"),
    pytest.param('{label = "a", present = true}', Rule(Subject.LABEL, "a", Test.PRESENT, ""), id="present"),
    pytest.param('{namespace = true, equals = "x"}', Rule(Subject.NAMESPACE, "", Test.EQUALS, "x"), id="namespace"),
]


@pytest.mark.parametrize(("table", "rule"), RULES)
def test_rule_that_is_valid_is_taken(table: str, rule: Rule) -> None:
    loaded = read(f"[colocation]\nrules = [{table}]")
    assert loaded.errors == ()
    assert loaded.config.colocation.offline_rules().rules == (rule,)


@pytest.mark.parametrize(
    "table",
    [
        pytest.param("{}", id="empty"),
        pytest.param('{label = "a"}', id="no-test"),
        pytest.param('{equals = "a"}', id="no-subject"),
        pytest.param('{label = "a", annotation = "b", equals = "c"}', id="two-subjects"),
        pytest.param('{label = "a", equals = "b", prefix = "c"}', id="two-tests"),
        pytest.param('{label = "a", present = false}', id="present-false"),
        pytest.param("{namespace = true, present = true}", id="every-pod"),
        pytest.param('{namespace = "x", equals = "x"}', id="namespace-with-a-name"),
        pytest.param('{label = "", equals = "b"}', id="empty-label"),
        pytest.param('{label = "a", prefix = ""}', id="empty-prefix"),
        pytest.param('{label = "a", equals = 3}', id="number"),
        pytest.param("3", id="no-table"),
    ],
)
def test_rule_that_is_invalid_is_one_error_and_the_others_stay(table: str) -> None:
    loaded = read(f'[colocation]\nrules = [{{label = "good", present = true}}, {table}]')
    assert keys(loaded) == ["colocation.rules[1]"]
    assert [rule.key for rule in loaded.config.colocation.offline_rules().rules] == ["good"]


def test_presets_are_asked_beside_the_rules() -> None:
    rules = read('[colocation]\npresets = ["koordinator"]').config.colocation.offline_rules()
    ref = PodRef("u", "ns", "n")
    assert rules.why(Pod(ref, {"koordinator.sh/qosClass": "BE"})) is not None
    assert rules.why(Pod(ref, {"colocation.criproxy.io/class": "offline"})) is not None
    assert rules.why(Pod(ref, {}, {"mixer.kubernetes.io/app-class": "greedy"})) is None


SCHEDULE = '[control]\npolicy = "schedule"\n[schedule]\n'


def scheduled(table: str, more: str = "") -> Loaded:
    return read(f"{SCHEDULE}windows = [{table}]\n{more}")


@pytest.mark.parametrize(
    ("table", "window"),
    [
        pytest.param('{start = "22:00", end = "06:00", policy = "off"}',
                     Window("mon-sun 22:00-06:00", frozenset(range(7)), 1320, 360, "off"), id="every-day"),
        pytest.param('{days = "mon-fri", start = "00:00", end = "24:00", policy = "dynamic"}',
                     Window("mon-fri 00:00-24:00", frozenset(range(5)), 0, 1440, "dynamic"), id="workdays"),
        pytest.param('{days = "sat-mon,wed", start = "00:30", end = "01:00", policy = "off"}',
                     Window("sat-mon,wed 00:30-01:00", frozenset({5, 6, 0, 2}), 30, 60, "off"), id="over-the-week"),
        pytest.param('{days = "tue", start = "09:00", end = "10:00", policy = "static", cores = 2, bytes = 4_194_304}',
                     Window("tue 09:00-10:00", frozenset({1}), 540, 600, "static"), id="static"),
    ],
)  # fmt: skip
def test_window_that_is_valid_is_taken(table: str, window: Window) -> None:
    loaded = scheduled(table)
    assert loaded.errors == ()
    assert [each.window for each in loaded.config.schedule.windows] == [window]


@pytest.mark.parametrize(
    "table",
    [
        pytest.param('{start = "22:00", end = "06:00"}', id="no-policy"),
        pytest.param('{start = "22:00", policy = "off"}', id="no-end"),
        pytest.param('{start = "22:00", end = "22:00", policy = "off"}', id="no-time"),
        pytest.param('{start = "24:00", end = "06:00", policy = "off"}', id="begins-at-24"),
        pytest.param('{start = "22:00", end = "00:00", policy = "off"}', id="ends-at-0"),
        pytest.param('{start = "9:00", end = "10:00", policy = "off"}', id="one-digit"),
        pytest.param('{start = "09:60", end = "10:00", policy = "off"}', id="minute-60"),
        pytest.param('{start = 09:00:00, end = "10:00", policy = "off"}', id="a-toml-time"),
        pytest.param('{days = "weekend", start = "09:00", end = "10:00", policy = "off"}', id="no-day"),
        pytest.param('{days = "mon-", start = "09:00", end = "10:00", policy = "off"}', id="half-a-range"),
        pytest.param('{start = "09:00", end = "10:00", policy = "dynamic", cores = 2}', id="limits-that-nobody-uses"),
        pytest.param('{start = "09:00", end = "10:00", policy = "static", cores = 0, bytes = 4_194_304}', id="zero"),
        pytest.param('"nights"', id="no-table"),
    ],
)
def test_window_that_is_invalid_is_one_error_and_the_others_stay(table: str) -> None:
    loaded = scheduled('{start = "00:00", end = "01:00", policy = "dynamic"}, ' + table)
    assert keys(loaded) == ["schedule.windows[1]"]
    assert [each.window.name for each in loaded.config.schedule.windows] == ["mon-sun 00:00-01:00"]


def test_list_with_too_many_windows_is_refused_though_each_is_right() -> None:
    one = '{start = "00:00", end = "01:00", policy = "dynamic"}'
    (error,) = scheduled(", ".join([one] * 33)).errors
    assert (error.key, error.problem) == ("schedule.windows", "expected a list of at most 32 tables")


def test_window_that_is_invalid_is_told_with_an_example() -> None:
    (error, _) = scheduled('{start = "09:00", end = "09:00", policy = "off"}').errors
    assert "it ends when it begins" in error.problem
    assert error.remedy.startswith('write, for example, { days = "mon-fri", start = "22:00"')


@pytest.mark.parametrize(
    ("text", "key", "told"),
    [
        pytest.param("", "control.policy", "needs schedule.windows", id="no-windows"),
        pytest.param('windows = [{start = "00:00", end = "01:00", policy = "dynamic"}]\ntime_zone = "Europe/Nowhere"',
                     "schedule.time_zone", "no such time zone", id="no-such-zone"),
        pytest.param('windows = [{start = "00:00", end = "01:00", policy = "dynamic"}]\ntime_zone = "../etc/passwd"',
                     "schedule.time_zone", "no such time zone", id="a-path"),
        pytest.param('windows = [{start = "00:00", end = "01:00", policy = "dynamic"}]\ntime_zone = "Europe"',
                     "schedule.time_zone", "no such time zone", id="a-folder"),
        pytest.param('windows = [{start = "00:00", end = "01:00", policy = "static", cores = 1}]',
                     "schedule.windows", "mon-sun 00:00-01:00 is static", id="static-without-memory"),
        pytest.param('outside = "static"\nwindows = [{start = "00:00", end = "01:00", policy = "off"}]',
                     "schedule.outside", "has no limits", id="static-outside"),
    ],
)  # fmt: skip
def test_schedule_that_does_not_go_together_is_an_error(text: str, key: str, told: str) -> None:
    loaded = read(SCHEDULE + text)
    assert keys(loaded) == [key]
    assert told in loaded.errors[0].problem
    assert list(conflicts(loaded.config)) == []


def test_schedule_that_is_not_used_is_not_asked_for_limits() -> None:
    assert read('[schedule]\noutside = "static"').errors == ()


@pytest.mark.parametrize(
    ("data", "line"),
    [
        pytest.param(b'[proxy]\nlisten = "/mine"\n[cpu\nmin_cores = 1\n', "line 3", id="bad-line"),
        pytest.param(b'[proxy]\nlisten = "/mine"\n[cpu]\nmin_cores = \xff1\n', "line 4", id="not-utf-8"),
        pytest.param(b'[proxy]\nlisten = "/mine"\n[colocation]\nrules = [\n', "end", id="list-never-ends"),
        pytest.param(
            b'[proxy]\nlisten = "/mine"\n[colocation]\nrules = [\n{label = "a", equals = "b"},\n[cpu]\nmin_cores = 1\n',
            "line 6",
            id="list-never-ends-before-a-section",
        ),
        pytest.param(b'[proxy]\nlisten = "/mine"\nx = """\na\nb\n', "end", id="string-never-ends"),
        pytest.param(b'[proxy]\nlisten = "/mine"\nx = [\n' + b"1,\n" * 20_000, "end", id="long-list-never-ends"),
        pytest.param(b'[proxy]\nlisten = "/mine"\nx = ' + b"[" * 50_000, "8 deep (at line 3)", id="nested-too-deep"),
        pytest.param(b'[proxy]\nlisten = "/mine"\nx = ' + b"9" * 50_000, "digits", id="number-too-long"),
        pytest.param(b'[proxy]\nlisten = "/mine"\nlisten = "/other"\n', "line 3", id="key-twice"),
    ],
)
def test_syntax_error_keeps_what_stands_before_it(data: bytes, line: str) -> None:
    loaded = read(data)
    assert line in loaded.errors[0].problem
    assert loaded.config.proxy.listen == "/mine"


def test_file_that_is_too_large_is_an_error() -> None:
    loaded = read(b"#" * (MAX_FILE_BYTES + 1))
    assert (keys(loaded), loaded.config) == ([""], Config())


def test_file_that_is_missing_is_an_error_and_the_defaults(tmp_path: Path) -> None:
    loaded = load(tmp_path / "none.toml")
    assert loaded.config == Config()
    assert "config.example.toml" in str(loaded.errors[0])
    assert str(tmp_path / "none.toml") in str(loaded.errors[0])


def test_file_that_is_a_directory_is_an_error(tmp_path: Path) -> None:
    assert load(tmp_path).config == Config()
    assert len(load(tmp_path).errors) == 1


def test_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("[colocation]\nenabled = true\n")
    assert load(tmp_path / "c").config.colocation.enabled


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config file, with an empty directory of drop-ins beside it."""
    (tmp_path / "c.d").mkdir()
    (tmp_path / "c.toml").write_text("[cpu]\nmin_cores = 1\nmax_cores = 4\n")
    return tmp_path / "c.toml"


@pytest.mark.parametrize(
    ("dropins", "min_cores", "max_cores"),
    [
        pytest.param({}, 1, 4, id="none"),
        pytest.param({"a.toml": "[cpu]\nmin_cores = 2"}, 2, 4, id="key-by-key"),
        pytest.param({"9.toml": "[cpu]\nmin_cores = 2", "10.toml": "[cpu]\nmin_cores = 3"}, 2, 4, id="last-by-name"),
        pytest.param({"a.toml": "[memory]\nmin_bytes = 4_194_304"}, 1, 4, id="another-section"),
        pytest.param({"a.toml.dpkg-old": "[", ".b.toml": "[", "c.conf": "["}, 1, 4, id="other-names-are-no-dropins"),
    ],
)
def test_dropins_override_the_file_in_order_of_their_names(
    config: Path, dropins: dict[str, str], min_cores: float, max_cores: float
) -> None:
    for name, text in dropins.items():
        (config.with_suffix(".d") / name).write_text(text)
    loaded = load(config)
    assert loaded.errors == ()
    assert (loaded.config.cpu.min_cores, loaded.config.cpu.max_cores) == (min_cores, max_cores)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        pytest.param("[cpu]\nmin_cores = true", "cpu.min_cores", id="value"),
        pytest.param("[cpu]\nmin_core = 2", "cpu.min_core", id="unknown-key"),
        pytest.param("[cpu]\nmin_cores = 2\n=", "", id="syntax"),
        pytest.param("[cpu]\nmin_cores = 8", "cpu.min_cores", id="conflict-with-the-file"),
        pytest.param("cpu = 2", "cpu", id="section-that-is-no-table"),
        pytest.param("[colocation]\nrules = [{}]", "colocation.rules[0]", id="item-of-a-list"),
    ],
)
def test_error_in_a_dropin_names_the_dropin(config: Path, text: str, key: str) -> None:
    dropin = config.with_suffix(".d") / "site.toml"
    dropin.write_text(text)
    assert [(error.file, error.key) for error in load(config).errors] == [(str(dropin), key)]


def test_error_in_the_file_names_the_file_beside_a_sound_dropin(config: Path) -> None:
    config.write_text("[cpu]\nmin_cores = true\n")
    (config.with_suffix(".d") / "site.toml").write_text("[cpu]\nmax_cores = 3\n")
    assert [error.file for error in load(config).errors] == [str(config)]


def test_dropin_repairs_a_bad_key_of_the_file(config: Path) -> None:
    config.write_text("[cpu]\nmin_cores = true\n")
    (config.with_suffix(".d") / "site.toml").write_text("[cpu]\nmin_cores = 2\n")
    loaded = load(config)
    assert (loaded.errors, loaded.config.cpu.min_cores) == ((), 2)


def test_dropins_of_a_missing_file_are_read_beside_the_error(config: Path) -> None:
    config.unlink()
    (config.with_suffix(".d") / "site.toml").write_text('[proxy]\nlisten = "/x/y.sock"\n')
    loaded = load(config)
    assert ([error.file for error in loaded.errors], loaded.config.proxy.listen) == ([str(config)], "/x/y.sock")


def test_dropin_directory_that_is_none_is_an_error(config: Path) -> None:
    config.with_suffix(".d").rmdir()
    config.with_suffix(".d").write_text("")
    loaded = load(config)
    assert [error.file for error in loaded.errors] == [str(config.with_suffix(".d"))]
    assert loaded.config.cpu.max_cores == 4


@pytest.mark.parametrize("endpoint", ["unix:///run/a b/x.sock", "/run/a b/x.sock"])
def test_socket_with_and_without_scheme_is_a_path(endpoint: str) -> None:
    loaded = read(f"[proxy]\nlisten = {json.dumps(endpoint)}")
    assert (loaded.config.proxy.listen_path, loaded.errors) == ("/run/a b/x.sock", ())


@pytest.mark.parametrize(
    "endpoint",
    ["", "x.sock", "unix://x.sock", "unix:/x.sock", "tcp://127.0.0.1:80", "npipe:////./pipe/x", "/run/", "/a\0b"],
)
def test_socket_that_is_no_unix_path_is_refused(endpoint: str) -> None:
    (error,) = read(f"[proxy]\nlisten = {json.dumps(endpoint)}").errors
    assert "an absolute path of a socket (/path or unix:///path)" in str(error)


def test_socket_paths_are_plain_and_normal() -> None:
    proxy = read('[proxy]\nlisten = "unix:///a//b/../c"\nruntime = "/d"').config.proxy
    assert (proxy.listen_path, proxy.runtime_path) == ("/a/c", "/d")


@pytest.mark.parametrize("served", ["", "c.sock.7", "runtime.sock"], ids=["nobody", "criproxy", "the bypass"])
@pytest.mark.parametrize("way", ["linked/c.sock", "link.sock", "linked/link.sock", "linked/c-status.sock"])
def test_runtime_that_leads_to_our_own_sockets_is_an_error(way: str, served: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "linked").symlink_to("run")
    (tmp_path / "link.sock").symlink_to("linked/c.sock")
    (tmp_path / "run/link.sock").symlink_to("../link.sock")
    if served:
        (tmp_path / "run/c.sock").symlink_to(served)
    loaded = read(f'[proxy]\nlisten = "{tmp_path}/run/c.sock"\nruntime = "{tmp_path}/{way}"')
    assert [error.key for error in loaded.errors] == ["proxy.listen"]


def test_runtime_may_be_a_link_and_lie_beside_our_socket(tmp_path: Path) -> None:
    (tmp_path / "runtime.sock").symlink_to("containerd.sock")
    (tmp_path / "c.sock").symlink_to("runtime.sock")
    (tmp_path / "loop.sock").symlink_to("loop.sock")
    for runtime in ("runtime.sock", "containerd.sock", "loop.sock"):
        assert read(f'[proxy]\nlisten = "{tmp_path}/c.sock"\nruntime = "{tmp_path}/{runtime}"').errors == ()


@pytest.mark.parametrize(
    ("listen", "status"),
    [
        ("/run/criproxy/criproxy.sock", "/run/criproxy/criproxy-status.sock"),
        ("unix:///run/criproxy/run/crio/crio.sock", "/run/criproxy/run/crio/crio-status.sock"),
        ("/run.d/plain", "/run.d/plain-status"),
    ],
)
def test_status_socket_lies_beside_the_listen_socket(listen: str, status: str) -> None:
    assert read(f'[proxy]\nlisten = "{listen}"').config.proxy.status_path == status


def test_status_socket_in_the_runtimes_place_is_refused() -> None:
    loaded = read('[proxy]\nlisten = "/run/c.sock"\nruntime = "/run/c-status.sock"')
    assert keys(loaded) == ["proxy.listen"]
    assert "the socket of criproxy's status" in str(loaded.errors[0])


def test_key_that_is_gone_is_unknown_and_has_its_remedy() -> None:
    assert read("[proxy]\nblind = false").errors == (), "the default of packages before: it asks for nothing"
    (error,) = read("[proxy]\nblind = true").errors
    assert (error.key, error.problem) == ("proxy.blind", "there is no such key")
    assert "`criproxy detach`" in error.remedy


@pytest.mark.parametrize(
    ("section", "name", "default", "other"),
    [
        ("guard", "interval_ms", "50", "20"),
        ("interference", "open_after_most_s", "600.0", "1200.0"),
        ("interference", "evict_pause_s", "10.0", "30"),
        ("interference", "evict_owner_s", "60", "5.0"),
    ],
)
def test_setting_that_is_now_a_constant_may_say_just_that(section: str, name: str, default: str, other: str) -> None:
    assert read(f"[{section}]\n{name} = {default}").errors == ()
    (error,) = read(f"[{section}]\n{name} = {other}").errors
    assert (error.key, error.problem) == (f"{section}.{name}", "there is no such key")
    assert error.remedy.startswith("remove it (it is always ")


def test_prometheus_is_host_and_port_or_nowhere() -> None:
    assert Config().interference.prometheus_server is None
    read_in = read('[interference]\nprometheus = "10.96.0.20:9090"').config
    assert read_in.interference.prometheus_server == ("10.96.0.20", 9090)


def test_address_is_host_and_port() -> None:
    assert read('[observe]\naddress = "[::1]:80"').config.observe.host_port == ("::1", 80)


def test_restart_keys_are_those_that_changed_and_need_one() -> None:
    proxy = '[proxy]\nlisten = "/x"\nengine = "grpc"\n'
    new = read(proxy + '[observe]\naddress = "127.0.0.1:1"\n[cpu]\nmin_cores = 1').config
    assert restart_keys(Config(), new) == ("proxy.listen", "proxy.engine", "observe.address")
    assert restart_keys(new, new) == ()


def test_error_of_a_hostile_value_is_one_short_line() -> None:
    loaded = read('[proxy]\nlisten = "' + "\\u001b[2J\\n" * 1000 + '"\n[cpu]\n"' + "k" * 5000 + '" = 1')
    for error in loaded.errors:
        assert len(str(error)) < 500
        assert str(error).isprintable()


# --- properties ------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from([s.name for s in settings()] + ["label", "equals", "present", "namespace"])
SCALARS = (
    st.booleans()
    | st.integers()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.text()
    | st.dates()
    | st.times()
    | st.datetimes()
    | st.sampled_from(["/a", "unix:///a", "static", "dynamic", "127.0.0.1:1", "10.0.0.1:1", "koordinator", "evict"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.slow
@given(
    st.dictionaries(
        st.sampled_from(["proxy", "colocation", "cpu", "memory", "control", "observe", "x"]),
        st.dictionaries(NAMES | st.text(max_size=5), VALUES, max_size=4) | VALUES,
        max_size=6,
    )
)
def test_any_document_gives_a_consistent_config_or_errors_with_one(document: dict[str, Any]) -> None:
    loaded = read(_toml(document))
    assert list(conflicts(loaded.config)) == []
    loaded.config.colocation.offline_rules()
    for error in loaded.errors:
        assert str(error).isprintable()
        assert error.key or error.problem.endswith("more errors are not shown")
        assert error.remedy


@given(st.sampled_from(settings()), VALUES)
def test_any_value_of_any_key_is_taken_or_told(setting: Any, value: Any) -> None:
    loaded = read(_toml({setting.section: {setting.name: value}}))
    if not loaded.errors:
        taken = value_of(loaded.config, setting.key)
        assert type(taken) in (type(value), float, tuple)
        assert setting.item_type or taken == value
    else:
        assert {error.key.split("[")[0] for error in loaded.errors} <= {s.key for s in settings()}


@given(st.binary(max_size=200))
def test_any_bytes_give_a_config(data: bytes) -> None:
    assert list(conflicts(read(data).config)) == []


@given(st.integers(0, render().count("\n")))
def test_any_leading_lines_of_the_example_mean_the_defaults(count: int) -> None:
    assert read("\n".join(render().split("\n")[:count])).config == Config()


def _toml(value: Any) -> str:
    if isinstance(value, dict) and all(isinstance(v, dict) for v in value.values()):
        return "\n".join(f"[{_inline(name)}]\n" + _pairs(table, "\n") for name, table in value.items())
    return _pairs(value, "\n")


def _pairs(table: dict[str, Any], separator: str) -> str:
    return separator.join(f"{_inline(name)} = {_inline(item)}" for name, item in table.items())


def _inline(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return '"' + "".join(f"\\U{ord(c):08x}" for c in value) + '"'
        case list():
            return "[" + ", ".join(map(_inline, value)) + "]"
        case dict():
            return "{" + _pairs(value, ", ") + "}"
        case int() | float():
            return repr(value)
    return str(value.isoformat())


@pytest.mark.parametrize(
    ("value", "seconds"),
    [pytest.param("2.5", 2.5, id="seconds"), pytest.param("3", 3, id="int"), pytest.param('"never"', None, id="never")],
)
def test_bypass_is_seconds_or_never(value: str, seconds: float | None) -> None:
    loaded = read(f"[proxy]\nbypass_after_s = {value}")
    assert (loaded.errors, loaded.config.proxy.bypass) == ((), seconds)


@pytest.mark.parametrize("value", ["0", "3601", "true", '"always"', "[]", "nan"])
def test_bypass_that_is_neither_is_refused_with_both_named(value: str) -> None:
    loaded = read(f"[proxy]\nbypass_after_s = {value}")
    assert [error.key for error in loaded.errors] == ["proxy.bypass_after_s"]
    assert 'expected a number from 1 to 3_600, or "never"' in str(loaded.errors[0])
    assert loaded.config.proxy.bypass == 10.0


REMOTE = '[observe]\nremote_address = "0.0.0.0:9465"\n'
TLS = 'tls_certificate = "/etc/c.crt"\ntls_key = "/etc/c.key"\n'


@pytest.mark.parametrize("way", ['token_file = "/etc/tokens"', 'client_ca = "/etc/ca.crt"'])
def test_a_remote_address_takes_a_certificate_and_a_way_to_be_let_in(way: str) -> None:
    loaded = read(f"{REMOTE}{TLS}{way}")
    assert not loaded.errors
    assert loaded.config.observe.remote_host_port == ("0.0.0.0", 9465)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        pytest.param(f'{REMOTE}token_file = "/t"', "tls_certificate and observe.tls_key", id="no-tls"),
        pytest.param(f'{REMOTE}tls_key = "/k"\ntoken_file = "/t"', "observe.tls_key", id="key-alone"),
        pytest.param(f"{REMOTE}{TLS}", "observe.token_file or observe.client_ca", id="no-authentication"),
        pytest.param(f'{REMOTE.replace("9465", "0")}{TLS}client_ca = "/a"', "from 1 to 65535", id="no-port"),
        pytest.param(f'{REMOTE.replace("0.0.0.0", "0.0.0.999")}{TLS}client_ca = "/a"', "0.0.0.0", id="no-ip"),
    ],
)  # fmt: skip
def test_a_remote_address_without_is_an_error_with_a_remedy(text: str, remedy: str) -> None:
    (error,) = read(text).errors
    assert error.key == "observe.remote_address" and remedy in error.remedy
