"""KubeletConfiguration files, YAML or JSON: read the keys that matter, and edit one with every other byte kept.

Source: kubelet.config.k8s.io/v1beta1, KubeletConfiguration.
"""

import json
import re

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
    if held is None:
        edited = text if endpoint is None else _inserted(text, root, endpoint)
    elif endpoint is None:
        edited = _without(text, root, held)
    elif not isinstance(held[1], yaml.ScalarNode):
        raise ValueError(f"{ENDPOINT_KEY} is no text")
    else:
        start, end = held[1].start_mark.index, held[1].end_mark.index
        edited = text[:start] + (" " if text[start - 1] == ":" else "") + json.dumps(endpoint) + text[end:]
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
    """Before the first key: in a block a line of its own, where no open block can swallow it."""
    line = f"{ENDPOINT_KEY}: {json.dumps(endpoint)}\n"
    if root is None:
        return text + ("" if text.endswith("\n") or not text else "\n") + line
    at, piece = root.start_mark.index, line + " " * root.start_mark.column
    if root.flow_style:
        at, piece = at + 1, f"{json.dumps(ENDPOINT_KEY)}: {json.dumps(endpoint)}{', ' if root.value else ''}"
    return text[:at] + piece + text[at:]


def _without(text: str, root: yaml.MappingNode | None, held: tuple[yaml.Node, yaml.Node]) -> str:
    start, end = held[0].start_mark.index, held[1].end_mark.index
    if root is not None and root.flow_style:
        if comma := re.match(r"\s*, ?", text[end:]):
            return text[:start] + text[end + comma.end() :]
        return text[:start].rstrip().removesuffix(",") + text[end:]
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
