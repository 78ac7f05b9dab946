"""The drop-in that adds one flag."""

import shlex

from hypothesis import given
from hypothesis import strategies as st

from criproxy.commands.attach import dropin
from criproxy.commands.attach.endpoint import arguments
from criproxy.commands.attach.unitfile import Setting, merge

LISTEN = "/run/criproxy/criproxy.sock"
FLAG = f"--container-runtime-endpoint=unix://{LISTEN}"
COMMAND = Setting("ExecStart", "/usr/bin/kubelet $ARGS", "/u")
PATHS = st.text(st.characters(codec="utf-8", categories=["L", "N", "S", "P", "Zs"])).map(lambda text: f"/run/{text}x")


class NoFiles:
    def read(self, path: str) -> bytes | None:
        return None

    def matching(self, pattern: str) -> list[str]:
        return []

    def below(self, directory: str) -> list[str]:
        return []


def words(text: str, unit: str = "[Service]\nEnvironment=ARGS=--v=2\n") -> list[str]:
    return [word.text for word in arguments(merge([("/u", unit), ("/d", text)]), NoFiles())]


def test_drop_in_is_the_command_with_one_flag_more() -> None:
    text = dropin.write(COMMAND, LISTEN, "unix:///r")
    assert words(text, "[Service]\nExecStart=/old\nEnvironment=ARGS=--v=2\n") == ["/usr/bin/kubelet", "--v=2", FLAG]
    assert (dropin.listen_of(text), dropin.endpoint_before(text)) == (LISTEN, "unix:///r")


@given(PATHS)
def test_socket_of_any_name_is_passed_as_it_is_and_read_back(listen: str) -> None:
    text = dropin.write(COMMAND, listen, "unix:///r")
    assert words(text)[-1] == f"--container-runtime-endpoint=unix://{listen}"
    assert dropin.taken_out(text, listen, COMMAND.value) is None


@given(st.lists(st.text(st.characters(codec="ascii", categories=["L", "N", "P", "Zs"]), min_size=1)))
def test_any_command_is_copied_unchanged(flags: list[str]) -> None:
    quoted = " ".join(shlex.quote(flag) for flag in flags if "\\" not in flag)
    command = Setting("ExecStart", f"/usr/bin/kubelet {quoted}".strip(), "/u")
    unit = f"[Service]\nExecStart={command.value}\n"
    plain = [word.text for word in arguments(merge([("/u", unit)]), NoFiles())]
    assert words(dropin.write(command, LISTEN, "unix:///r"), unit) == [*plain, FLAG]


def test_command_that_has_changed_makes_the_copy_stale() -> None:
    text = dropin.write(COMMAND, LISTEN, "unix:///r")
    assert not dropin.stale(text, COMMAND, LISTEN)
    assert dropin.stale(text, Setting("ExecStart", "/usr/bin/kubelet --new $ARGS", "/u"), LISTEN)


def test_another_s_file_of_that_name_is_not_ours() -> None:
    assert dropin.listen_of(f"[Service]\nExecStart=\nExecStart=/usr/bin/kubelet {FLAG}\n") == ""
