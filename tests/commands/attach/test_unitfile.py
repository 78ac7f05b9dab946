"""Unit files and drop-ins, merged."""

from hypothesis import given
from hypothesis import strategies as st

from criproxy.commands.attach.unitfile import Service, logical_lines, merge

UNIT = """\
[Unit]
ExecStart=/not/here
# a comment
[Service]
 Environment = A=1 \\
   B=2
ExecStart=/usr/bin/kubelet \\
# between
; and this
  --v=2 \\
  $ARGS
Restart=always
[Install]
ExecStart=/nor/here
"""


def commands(service: Service) -> list[tuple[str, str]]:
    return [(setting.value, setting.file) for setting in service.of("ExecStart")]


def test_unit_file_gives_its_service_section_with_lines_joined() -> None:
    service = merge([("/u", UNIT)])
    assert [setting.value.split() for setting in service.of("ExecStart")] == [["/usr/bin/kubelet", "--v=2", "$ARGS"]]
    assert [setting.value.split() for setting in service.of("Environment")] == [["A=1", "B=2"]]


def test_drop_in_that_resets_wins_and_others_add() -> None:
    files = [
        ("/u", "[Service]\nExecStart=/a\nEnvironment=A=1\n"),
        ("/d1", "[Service]\nExecStart=\nExecStart=/b\nEnvironment=A=2\n"),
        ("/d2", "[Service]\nUnsetEnvironment=A\n"),
    ]
    service = merge(files)
    assert commands(service) == [("/b", "/d1")]
    assert [setting.value for setting in service.of("Environment")] == ["A=1", "A=2"]


def test_two_commands_are_both_told() -> None:
    assert len(commands(merge([("/u", "[Service]\nExecStart=/a\nExecStart=/b\n")]))) == 2


@given(st.lists(st.text(st.characters(codec="ascii", exclude_characters="\\\r\n\x0b\x0c\x1c\x1d\x1e#;"), min_size=1)))
def test_lines_that_are_continued_are_one(parts: list[str]) -> None:
    joined = list(logical_lines("\\\n".join(parts)))
    assert joined == ([text] if (text := " ".join(parts).strip()) else [])
