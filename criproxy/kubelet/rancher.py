"""The kubelet of k3s and RKE2: by which words they run it, from their own command line and configuration.

From Kubernetes 1.32 on, kubelet has its configuration from a directory that they keep: `00-k3s-defaults.conf` is theirs
and written at each start, every other file stays as it is, and a later name goes over an earlier one. RKE2 starts
kubelet as a process of its own, whose words can be seen; in k3s it is a part of k3s's process.
Source: docs.k3s.io, "Configuration options"; k3s, pkg/configfilearg/parser.go, pkg/daemons/agent/agent.go.
"""

import os
import posixpath
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from criproxy.kubelet.configuration import YamlValue, parsed
from criproxy.kubelet.flags import flag

K3S: Final = "k3s"
_DIRECTORY: Final = "agent/etc/kubelet.conf.d"
_ARGUMENT: Final = "kubelet-arg"
_TAKEN: Final = ("config=", "config-dir=")
"""Arguments of kubelet's whose files they copy into the directory."""


def kubelet_words(root: Path, product: str, words: Sequence[str]) -> list[str]:
    """Kubelet's words, given those of its distribution; empty for one before Kubernetes 1.32, which has no directory.

    Raises OSError, and ValueError for a file that is not understood.
    """
    data, arguments = f"/var/lib/rancher/{product}", list[str]()
    for path in config_files(root, product, words):
        try:
            said = parsed((root / path.lstrip("/")).read_bytes())
            data = _text(said.get("data-dir")) or data
            if (given := said.get(_ARGUMENT)) is not None:
                arguments = _texts(given)
            arguments += _texts(said.get(f"{_ARGUMENT}+"))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    data = flag(words, "--data-dir") or data
    arguments += _given(words)
    directory = posixpath.join("/", data, _DIRECTORY)
    if not (root / directory.lstrip("/") / f"00-{product}-defaults.conf").exists():
        return []
    return ["kubelet", f"--config-dir={directory}", *(f"--{one}" for one in arguments if not one.startswith(_TAKEN))]


def config_files(root: Path, product: str, words: Sequence[str]) -> Iterator[str]:
    """The distribution's own configuration files, in the order in which they are read."""
    main = flag(words, "--config") or f"/etc/rancher/{product}/config.yaml"
    if (root / main.lstrip("/")).is_file():
        yield main
    directory = root / f"{main.lstrip('/')}.d"
    if directory.is_dir():
        yield from (f"{main}.d/{name}" for name in sorted(os.listdir(directory)) if name.endswith((".yaml", ".yml")))


def _given(words: Sequence[str]) -> Iterator[str]:
    """The kubelet-args of a command line, which come after those of the files."""
    for at, word in enumerate(words):
        key, equals, value = word.partition("=")
        if key == f"--{_ARGUMENT}" and (equals or at + 1 < len(words)):
            yield value if equals else words[at + 1]


def _text(value: YamlValue) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: YamlValue) -> list[str]:
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)]
