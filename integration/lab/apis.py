"""The versions of CRI, as parameters of tests."""

from typing import Final, get_args

import pytest

from integration.lab.client import Api

APIS: Final[tuple[Api, ...]] = get_args(Api)

OLDER_BY_COMMAND: Final = [APIS[0], *(pytest.param(api, marks=pytest.mark.by_command) for api in APIS[1:])]
"""For many rows that differ in nothing but the service's name."""
