"""KubeletConfiguration files, YAML or JSON: the endpoint is set, with every other byte kept.

Source: kubelet.config.k8s.io/v1beta1, KubeletConfiguration.
"""

import json

import yaml

from criproxy.commands.attach.dropin import MARK
from criproxy.kubelet.attachment import ENDPOINT_KEY


def with_endpoint(text: str, endpoint: str) -> str:
    """`text` with its endpoint set. Only that key's bytes change.

    Raises ValueError when the file is none that can be edited so.
    """
    root = _root(text)
    held = next((value for key, value in root.value if key.value == ENDPOINT_KEY), None) if root else None
    if held is None:
        edited = _inserted(text, root, endpoint)
    elif isinstance(held, yaml.ScalarNode):
        start, end = held.start_mark.index, held.end_mark.index
        edited = text[:start] + (" " if text[start - 1] == ":" else "") + json.dumps(endpoint) + text[end:]
    else:
        raise ValueError(f"{ENDPOINT_KEY} is no text")
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


def _check(text: str, edited: str, endpoint: str) -> None:
    """No edit is taken on trust: read anew, everything but this key must be what it was."""
    try:
        before, after = yaml.safe_load(text) or {}, yaml.safe_load(edited)
    except (yaml.YAMLError, TypeError, ValueError) as error:
        raise ValueError(f"cannot be edited safely: set {ENDPOINT_KEY} in it by hand") from error
    if after != {**before, ENDPOINT_KEY: endpoint}:
        raise ValueError(f"cannot be edited safely: set {ENDPOINT_KEY} in it by hand")
