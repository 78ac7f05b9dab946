"""PyYAML for a moment: a daemon's YAML files are read once in months, and a parser in its memory is there always."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import ModuleType

_YAML: Final = "yaml"
_LIBYAML: Final = "yaml._yaml"
_passes: Final = threading.Lock()


@contextmanager
def pyyaml() -> Iterator["ModuleType"]:
    """PyYAML for as long as this lasts, unless it was there before. Raises ImportError: an upgrade may have removed it.

    It takes 0.7 MiB, and libyaml, which is left out, 0.4 more.
    """
    with _passes:
        before = set(sys.modules)
        if _LIBYAML not in before:
            sys.modules[_LIBYAML] = None  # type: ignore[assignment]  # Source: Python, the import system, module cache
        try:
            import yaml

            yield yaml
        finally:
            for name in [name for name in sys.modules if name.partition(".")[0] == _YAML and name not in before]:
                del sys.modules[name]
