"""The text of /proc and /sys, which others shape by the names that they give: any bytes are read, line by line."""

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import criproxy
from criproxy.cgroup.files import kernel_text, lines_of, parse_diskstats, parse_mounts

CODE = Path(criproxy.__file__).parent
READERS = ("cgroup", "control", "kubelet/process.py", "observe/metrics.py", "pods/overhead.py", "model/rootless.py")
"""What reads /proc, /sys or cgroups, or takes their text apart."""

ONE = "   8       0 sda 10 1 2048 5 20 2 4096 7 0 9 12 0 0 0 0 0 0"


@given(st.binary())
def test_any_bytes_are_text_and_come_out_again(data: bytes) -> None:
    assert kernel_text(data).encode(errors="surrogateescape") == data


@pytest.mark.parametrize("byte", [b for b in range(1, 256) if b != 0x0A])
def test_no_byte_but_a_line_feed_ends_a_line(byte: int) -> None:
    assert len(lines_of(kernel_text(b"a" + bytes([byte]) + b"b\nc\n"))) == 2


@pytest.mark.parametrize("name", [" ", "a b", "\x0b", "a\rb", "\udcff"])
def test_disk_of_any_name_hides_no_other(name: str) -> None:
    odd = f"   9       1 {name} 1 0 2 0 3 0 4 0 0 0 0"
    found = parse_diskstats(f"{odd}\n{ONE}\n   9       2 md2\nx\n")

    assert (found["8:0"].name, found["8:0"].size_bytes, found["8:0"].operations) == ("sda", 6144 * 512, 33)
    assert (found["9:1"].name, found["9:1"].operations) == (name, 4)


def test_mount_with_an_empty_source_and_one_that_is_no_text_hide_no_cgroup() -> None:
    data = b"9 1 0:9 / /mnt/\xff\x1cx rw - tmpfs  rw\n" + b"7 1 0:7 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"

    assert parse_mounts(kernel_text(data)).v2 == "/sys/fs/cgroup"


def test_no_reader_takes_other_line_ends_or_fails_for_bytes() -> None:
    """`str.splitlines` ends lines at ten characters, and `Path.read_text` makes line feeds of returns."""
    files = [file for one in READERS for file in ([CODE / one] if one.endswith(".py") else (CODE / one).rglob("*.py"))]
    assert len(files) > 50
    called = [
        f"{file.relative_to(CODE)}:{node.lineno}: {node.func.attr}"
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr in ("splitlines", "read_text")
    ]
    assert called == []
