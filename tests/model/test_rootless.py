"""Which processes are rootless."""

import pytest

from criproxy.model.rootless import in_words, is_rootless

OF_THE_MACHINE = "         0          0 4294967295\n"
OF_A_USER = "         0       1000          1\n         1     100000      65536\n"


@pytest.mark.parametrize(
    ("uid_map", "rootless"),
    [
        pytest.param(OF_THE_MACHINE, False, id="the-machines-own"),
        pytest.param(OF_A_USER, True, id="of-a-user"),
        pytest.param("0 0 1\n", True, id="of-root-alone"),
        pytest.param("0 100000 4294867295\n", True, id="shifted"),
        pytest.param("", True, id="not-mapped-yet"),
    ],
)
def test_process_is_rootless_unless_all_users_are_themselves(uid_map: str, rootless: bool) -> None:
    assert is_rootless(uid_map) is rootless


def test_map_is_put_on_one_line() -> None:
    assert in_words(OF_A_USER) == "0 1000 1; 1 100000 65536"
