"""The drop-in that adds one flag."""

import re
import shlex

from hypothesis import given
from hypothesis import strategies as st

from criproxy.commands.attach import dropin
from criproxy.commands.attach.kubelet import Command
from criproxy.kubelet.units import logical_lines

LISTEN = "/run/criproxy/criproxy.sock"
FLAG = f"--container-runtime-endpoint=unix://{LISTEN}"
COMMAND = Command("/usr/bin/kubelet $ARGS", "/u")
PATHS = st.text(st.characters(codec="utf-8", categories=["L", "N", "S", "P", "Zs"])).map(lambda text: f"/run/{text}x")


def expanded(command: str) -> list[str]:
    """A command's words with their variables put in. Source: systemd.service(5), COMMAND LINES."""
    variables, found = {"ARGS": "--v=2"}, list[str]()
    for word in shlex.split(command):
        if word[1:] in variables and word.startswith("$"):
            found += shlex.split(variables[word[1:]])
        else:
            filled = re.sub(r"\$\{(\w+)\}", lambda braced: variables.get(braced[1], ""), word)
            found.append(filled.replace("%%", "%").replace("$$", "$"))
    return found


def words(text: str) -> list[str]:
    """What systemd starts by the drop-in, whose first ExecStart= takes the unit's own back."""
    first, second = (line for line in logical_lines(text) if line.startswith("ExecStart="))
    assert first == "ExecStart="
    return expanded(second.removeprefix("ExecStart="))


def test_drop_in_is_the_command_with_one_flag_more_and_its_variables_kept() -> None:
    text = dropin.write(COMMAND, LISTEN, "unix:///r")
    assert f"ExecStart=/usr/bin/kubelet $ARGS {FLAG}\n" in text
    assert words(text) == ["/usr/bin/kubelet", "--v=2", FLAG]
    assert dropin.listen_of(text) == LISTEN
    assert "# Before, this kubelet used unix:///r\n" in text


@given(PATHS)
def test_socket_of_any_name_is_passed_as_it_is_and_read_back(listen: str) -> None:
    text = dropin.write(COMMAND, listen, "unix:///r")
    assert words(text)[-1] == f"--container-runtime-endpoint=unix://{listen}"
    assert dropin.taken_out(text, listen, COMMAND.text) is None


@given(st.lists(st.text(st.characters(codec="ascii", categories=["L", "N", "P", "Zs"]), min_size=1)))
def test_any_command_is_copied_unchanged(flags: list[str]) -> None:
    quoted = " ".join(shlex.quote(flag) for flag in flags if "\\" not in flag)
    command = Command(f"/usr/bin/kubelet {quoted}".strip(), "/u")
    assert words(dropin.write(command, LISTEN, "unix:///r")) == [*expanded(command.text), FLAG]


def test_command_that_has_changed_makes_the_copy_stale() -> None:
    text = dropin.write(COMMAND, LISTEN, "unix:///r")
    assert not dropin.is_stale(text, COMMAND, LISTEN)
    assert dropin.is_stale(text, Command("/usr/bin/kubelet --new $ARGS", "/u"), LISTEN)


def test_another_s_file_of_that_name_is_not_ours() -> None:
    text = f"[Service]\nExecStart=\nExecStart=/usr/bin/kubelet {FLAG}\n"
    assert dropin.listen_of(text) == ""
    assert not dropin.is_stale(text, COMMAND, LISTEN)
