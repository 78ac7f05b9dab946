"""How much notice an offline pod asks for before criproxy stops it."""

import re
from collections.abc import Mapping
from typing import Final

from criproxy.vocabulary.names import NOTICE_SECONDS

MOST_NOTICE_S: Final = 60
"""Whoever asks for more gets this: a pod that has to go keeps what online needs."""

_SECONDS: Final = re.compile(r"\d{1,9}", re.ASCII)


def notice_asked_s(annotations: Mapping[str, str]) -> int:
    """In whole seconds; 0: the pod requests none, or what it has there is no number of seconds."""
    text = annotations.get(NOTICE_SECONDS, "")
    return min(MOST_NOTICE_S, int(text)) if _SECONDS.fullmatch(text) else 0
