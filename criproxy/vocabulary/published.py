"""The annotation with the names of what a node publishes, also while it is 0: sorted, with commas between. Pure.

colocation.criproxy.io/publishes  kubernetes.io/batch-cpu,kubernetes.io/batch-memory
"""

import re
from collections.abc import Collection
from typing import Final

MAX_NAMES: Final = 64
"""Of an annotation that is read: anybody who may edit the Node may write there."""

_NAME: Final = re.compile(r"[A-Za-z0-9][-.A-Za-z0-9]{0,252}/[A-Za-z0-9][-._A-Za-z0-9]{0,62}", re.ASCII)
"""An extended resource's. All else that a node has (cpu, memory, hugepages-2Mi) has no slash."""


def annotation_of(names: Collection[str]) -> str:
    return ",".join(sorted(names))


def names_of(annotation: str | None) -> tuple[str, ...]:
    """The names in it. What can be no extended resource is left out."""
    return tuple(name for name in (annotation or "").split(",", MAX_NAMES)[:MAX_NAMES] if _NAME.fullmatch(name))
