"""A config is bounded in size, depth and number: whatever lies there is told, in few words, and nothing is raised."""

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from criproxy.cli import main
from criproxy.config import Config, load
from criproxy.config.bounds import MAX_BYTES, MAX_DEPTH, MAX_DROPINS, MAX_ERRORS, MAX_FILE_BYTES, too_deep
from criproxy.config.load import parse
from docs.config_example import render
from tests.cost import LONGEST, assert_cheap


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "config.d").mkdir()
    (tmp_path / "config.toml").write_text('[proxy]\nlisten = "/mine"\n')
    return tmp_path / "config.toml"


DEEP = {
    "dotted-key": ".".join(["a"] * 500) + " = 1",
    "dotted-key-that-takes-minutes": ".".join(["a"] * 60_000) + " = 1",
    "quoted-parts": ".".join(['"a.b"', "'c'"] * 250) + " = 1",
    "spaces-between": " . ".join(["a"] * 500) + " = 1",
    "header": f"[{'.'.join(['a'] * 500)}]",
    "header-of-a-list": f"[[{'.'.join(['a'] * 500)}]]",
    "lists": "x = " + "[" * 500 + "]" * 500,
    "lists-over-lines": "x = " + "[\n" * 500 + "]" * 500,
    "tables": "x = " + "{a = " * 500 + "1" + "}" * 500,
    "in-a-list": f"[colocation]\nrules = [{{ {'.'.join(['a'] * 500)} = 1 }}]",
}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_config_that_nests_too_deep_is_one_clear_error_that_names_the_file(config: Path, text: str) -> None:
    (config.parent / "config.d" / "deep.toml").write_text(text)
    loaded = load(config)
    (error,) = loaded.errors
    assert error.file.endswith("config.d/deep.toml")
    assert f"nests more than {MAX_DEPTH} deep (at line " in error.problem
    assert len(str(error)) < 500
    assert loaded.config.proxy.listen == "/mine"


def test_check_tells_of_a_config_that_nests_too_deep(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(DEEP["dotted-key"])
    assert main(["check", "--config", str(config)]) == 1
    assert "nests more than 8 deep (at line 1)" in capsys.readouterr().err


def test_long_line_of_a_string_that_never_ends_costs_next_to_nothing() -> None:
    assert_cheap(lambda: parse(f'x = """\n{"a" * LONGEST}\nb\nc\n'.encode(), "c.toml"))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("# " + "." * 500 + "[" * 500, id="comment"),
        pytest.param(f"""[observe]\naddress = "{"." * 50}{"[" * 50}" # '""", id="string"),
        pytest.param(f"""[observe]\naddress = '{"." * 50}{"[" * 50}'""", id="literal-string"),
        pytest.param('x = """\n' + "[.\n" * 50 + '""" # """', id="long-string"),
        pytest.param("x = '''\n" + '[."\n' * 50 + "'''", id="long-literal-string"),
        pytest.param('x = "\\"' + "." * 50 + '"', id="escaped-quote"),
        pytest.param("x = [" + "0.5, " * 500 + "]", id="numbers"),
        pytest.param("x = [\n" + "{ a = 1 },\n" * 500 + "]", id="tables-beside-each-other"),
        pytest.param(render(), id="the-example"),
    ],
)
def test_config_that_only_looks_deep_is_none(text: str) -> None:
    assert too_deep(text) is None


FRAGMENTS = ['"', "'", '"""', "'''", "\\", "\n", "#", ".", "a", "b", "[", "]", "{", "}", "=", " ", "1", ",", "a.", "[["]


def depth(value: Any) -> int:
    if isinstance(value, (dict, list)):
        return 1 + max(map(depth, value.values() if isinstance(value, dict) else value), default=0)
    return 0


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=60).map("".join))
def test_any_text_is_called_too_deep_only_where_it_is_and_never_stays_deep(text: str) -> None:
    line = too_deep(text)
    try:
        found = depth(tomllib.loads(text))
    except ValueError:
        return
    assert found <= MAX_DEPTH * (MAX_DEPTH + 2) if line is None else found > MAX_DEPTH
    parse(text.encode(), "c.toml")


@given(st.lists(st.sampled_from([*FRAGMENTS, "[cpu]\n", "rules = [", "[" * 300, "a." * 300]), max_size=30))
def test_any_text_gives_a_config(fragments: list[str]) -> None:
    parse("".join(fragments).encode(), "c.toml")


@pytest.mark.parametrize("text", ["[cpu]\nmin_cores = 0x{}", "[x]\nb = 0x{}"], ids=["known-key", "unknown-key"])
def test_number_that_python_does_not_spell_out_is_an_error(text: str) -> None:
    (error,) = parse(text.format("f" * 10_000).encode(), "c.toml").errors
    assert "0xfff" in str(error)
    assert len(str(error)) < 500


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("".join(f"k{i} = 1\n" for i in range(5000)), id="sections"),
        pytest.param("[cpu]\n" + "".join(f"k{i} = 1\n" for i in range(5000)), id="keys"),
        pytest.param("[colocation]\nrules = [" + "{ lable = 'a' }," * 5000 + "]", id="items"),
        pytest.param(
            "[colocation]\nrules = [{" + ", ".join(f"k{i} = 1" for i in range(5000)) + "}]", id="keys-of-an-item"
        ),
    ],
)
def test_errors_beyond_the_first_are_counted(text: str) -> None:
    errors = parse(text.encode(), "c.toml").errors
    assert len(errors) == MAX_ERRORS + 1
    assert all(error.file == "c.toml" and error.remedy for error in errors)
    assert errors[-1].problem == f"{5000 - MAX_ERRORS} more errors are not shown"


def test_errors_of_all_files_are_counted_together(config: Path) -> None:
    for name in ("a", "b"):
        (config.parent / "config.d" / f"{name}.toml").write_text("".join(f"{name}{i} = 1\n" for i in range(30)))
    assert load(config).errors[-1].problem == f"{60 - MAX_ERRORS} more errors are not shown"


def test_file_is_read_no_further_than_its_bound(config: Path) -> None:
    with (config.parent / "config.d" / "sparse.toml").open("wb") as file:
        file.truncate(1 << 40)
    (error,) = load(config).errors
    assert "sparse.toml" in error.file
    assert str(MAX_FILE_BYTES) in error.problem


def test_files_together_are_bounded(config: Path) -> None:
    for number in range(4):
        (config.parent / "config.d" / f"{number}.toml").write_text("#" * (MAX_BYTES // 3))
    loaded = load(config)
    assert [Path(error.file).name for error in loaded.errors] == ["2.toml", "3.toml"]
    assert loaded.config.proxy.listen == "/mine"


def test_dropins_are_bounded_in_number(config: Path) -> None:
    for number in range(MAX_DROPINS + 50):
        (config.parent / "config.d" / f"{number:04}.toml").touch()
    (error,) = load(config).errors
    assert (error.file, error.problem) == (str(config.parent / "config.d"), f"has more than {MAX_DROPINS} drop-ins")


def test_what_is_no_regular_file_is_an_error_and_never_opened(config: Path) -> None:
    directory = config.parent / "config.d"
    os.mkfifo(directory / "fifo.toml")
    (directory / "device.toml").symlink_to("/dev/zero")
    (directory / "directory.toml").mkdir()
    (directory / "loop.toml").symlink_to("loop.toml")
    loaded = load(config)
    assert [Path(error.file).name for error in loaded.errors] == [
        "device.toml", "directory.toml", "fifo.toml", "loop.toml"
    ]  # fmt: skip
    assert loaded.config.proxy.listen == "/mine"


def test_name_of_any_bytes_is_told_in_text(config: Path) -> None:
    directory = os.fsencode(config.parent / "config.d")
    with open(directory + b"/\xff\n.toml", "w") as file:
        file.write("oops")
    (error,) = load(config).errors
    assert "\\udcff" in error.file
    assert str(error).encode()


def test_config_of_the_longest_file_is_taken() -> None:
    text = "[colocation]\nrules = [" + "{ label = 'a', equals = 'b' },\n" * 4000 + "]"
    assert len(text) < MAX_FILE_BYTES
    loaded = parse(text.encode(), "c.toml")
    assert (loaded.errors, len(loaded.config.colocation.rules)) == ((), 4000)
    assert loaded.config != Config()


def test_byte_order_mark_before_a_config_is_passed_over() -> None:
    loaded = parse(b"\xef\xbb\xbf[colocation]\nenabled = true\n", "c.toml")
    assert (loaded.config.colocation.enabled, loaded.errors) == (True, ())
