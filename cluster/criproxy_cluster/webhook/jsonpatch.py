"""What turns one JSON document into another, as a JSON patch. Pure. Source: RFC 6902; of paths, RFC 6901."""

from collections.abc import Iterator
from typing import Any


def difference(old: Any, new: Any, path: str = "") -> Iterator[dict[str, Any]]:
    """The operations in their order; none when both are equal. Lists of one length are compared item by item."""
    if old is new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for name in old.keys() - new.keys():
            yield {"op": "remove", "path": f"{path}/{_escaped(name)}"}
        for name, value in new.items():
            below = f"{path}/{_escaped(name)}"
            if name in old:
                yield from difference(old[name], value, below)
            else:
                yield {"op": "add", "path": below, "value": value}
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, pair in enumerate(zip(old, new, strict=True)):
            yield from difference(*pair, f"{path}/{number}")
    elif type(old) is not type(new) or old != new:  # 1 == True, but not in JSON
        yield {"op": "replace", "path": path, "value": new}


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
