"""KubeletConfiguration files, YAML or JSON: read the keys that matter, and edit one with every other byte kept.

Source: kubelet.config.k8s.io/v1beta1, KubeletConfiguration.
"""

import json

import yaml

from criproxy.commands.attach.dropin import MARK
from criproxy.kubelet.attachment import ENDPOINT_KEY


def endpoint_of(text: str) -> str:
    """The endpoint that a configuration sets; "" when it sets none. Raises ValueError for what is no YAML mapping."""
    root = _root(text)
    for key, value in root.value if root else ():
        if key.value == ENDPOINT_KEY and isinstance(value, yaml.ScalarNode):
            return "" if value.tag == "tag:yaml.org,2002:null" else str(value.value)
    return ""


def with_endpoint(text: str, endpoint: str | None) -> str:
    """`text` with its endpoint set, or its key taken out (None). Only that key's bytes change.

    Raises ValueError when the file is none that can be edited so.
    """
    root = _root(text)
    held = next((pair for pair in root.value if pair[0].value == ENDPOINT_KEY), None) if root else None
    if endpoint is None:
        edited = text if held is None else _without(text, root, held)
    elif held is not None:
        start, end = held[1].start_mark.index, held[1].end_mark.index
        if not isinstance(held[1], yaml.ScalarNode):
            raise ValueError(f"{ENDPOINT_KEY} is no text")
        edited = text[:start] + (" " if text[start - 1] == ":" else "") + json.dumps(endpoint) + text[end:]
    elif root is not None and root.flow_style:
        at = root.start_mark.index + 1
        comma = ", " if root.value else ""
        edited = f"{text[:at]}{json.dumps(ENDPOINT_KEY)}: {json.dumps(endpoint)}{comma}{text[at:]}"
    else:
        edited = _inserted(text, root, endpoint)
    _check(text, edited, endpoint)
    return edited


def drop_in(endpoint: str) -> str:
    """A file for kubelet's --config-dir that sets the endpoint alone."""
    return (
        f"{MARK}\n"
        "apiVersion: kubelet.config.k8s.io/v1beta1\n"
        "kind: KubeletConfiguration\n"
        f"{ENDPOINT_KEY}: {json.dumps(endpoint)}\n"
    )


def _root(text: str) -> yaml.MappingNode | None:
    """The mapping of the file's one document; None: it is empty."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"is no YAML: {' '.join(str(error).split())}") from error
    if root is None:
        return None
    if not isinstance(root, yaml.MappingNode):
        raise ValueError("is no KubeletConfiguration: it holds no mapping")
    return root


def _inserted(text: str, root: yaml.MappingNode | None, endpoint: str) -> str:
    """A line of its own before the first key, where no open block can swallow it."""
    line = f"{ENDPOINT_KEY}: {json.dumps(endpoint)}\n"
    if root is None:
        return text + ("" if text.endswith("\n") or not text else "\n") + line
    at = root.start_mark.index
    indent = " " * root.start_mark.column
    return f"{text[:at]}{line}{indent}{text[at:]}"


def _without(text: str, root: yaml.MappingNode | None, held: tuple[yaml.Node, yaml.Node]) -> str:
    start, end = held[0].start_mark.index, held[1].end_mark.index
    if root is not None and root.flow_style:
        rest = text[end:]
        comma = len(rest) - len(rest.lstrip())
        if rest.lstrip().startswith(","):
            after = rest[comma + 1 :]
            return text[:start] + after.removeprefix(" ")
        before = text[:start].rstrip()
        return before.removesuffix(",") + text[end:]
    newline = text.find("\n", end)
    line = text.rfind("\n", 0, start) + 1
    if text[line:start].strip():
        raise ValueError(f"{ENDPOINT_KEY} shares its line with something else")
    return text[:line] + ("" if newline < 0 else text[newline + 1 :])


def _check(text: str, edited: str, endpoint: str | None) -> None:
    """No edit is taken on trust: read anew, everything but this key must be what it was."""
    try:
        before, after = yaml.safe_load(text) or {}, yaml.safe_load(edited) or {}
    except (yaml.YAMLError, TypeError, ValueError) as error:
        raise ValueError(f"cannot be edited safely: set {ENDPOINT_KEY} in it by hand") from error
    wanted = {key: value for key, value in before.items() if key != ENDPOINT_KEY}
    if endpoint is not None:
        wanted[ENDPOINT_KEY] = endpoint
    if after != wanted:
        raise ValueError(f"cannot be edited safely: set {ENDPOINT_KEY} in it by hand")
