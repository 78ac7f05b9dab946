"""What turns one JSON document into another, as a JSON patch. Pure. Source: RFC 6902; of paths, RFC 6901."""

from collections.abc import Iterator
from typing import Any


def difference(old: Any, new: Any, path: str = "") -> Iterator[dict[str, Any]]:
    """The operations in their order; none when both are equal. Lists of one length are compared item by item.

    What both share, as the same object, is not looked at.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for name in old.keys() - new.keys():
            yield {"op": "remove", "path": f"{path}/{_escaped(name)}"}
        for name, value in new.items():
            if name not in old:
                yield {"op": "add", "path": f"{path}/{_escaped(name)}", "value": value}
            elif old[name] is not value:
                yield from difference(old[name], value, f"{path}/{_escaped(name)}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (was, value) in enumerate(zip(old, new, strict=True)):
            if was is not value:
                yield from difference(was, value, f"{path}/{number}")
    elif type(old) is not type(new) or old != new:  # 1 == True, but not in JSON
        yield {"op": "replace", "path": path, "value": new}


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
