"""What fails again and again: logged once."""

import pytest

from criproxy.pods.shared import Trouble


def fail(trouble: Trouble, error: Exception | None, said: list[Exception]) -> None:
    with trouble.logged_by(said.append):
        if error is not None:
            raise error


@pytest.mark.parametrize(
    ("errors", "logged"),
    [
        pytest.param([OSError("full"), OSError("full")], 1, id="the same again"),
        pytest.param([OSError("full"), OSError("gone")], 2, id="another one"),
        pytest.param([OSError("full"), None, OSError("full")], 2, id="it worked meanwhile"),
        pytest.param([TimeoutError(), TimeoutError()], 1, id="without words"),
    ],
)
def test_trouble_is_logged_once_until_it_works_or_fails_otherwise(errors: list[Exception | None], logged: int) -> None:
    trouble, said = Trouble(), list[Exception]()
    for error in errors:
        fail(trouble, error, said)
    assert len(said) == logged
