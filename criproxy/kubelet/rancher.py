"""The kubelet of k3s and RKE2: by which words they run it, from their unit and their configuration.

From Kubernetes 1.32 on, kubelet has its configuration from a directory that they keep: `00-k3s-defaults.conf` is theirs
and written at each start, every other file stays as it is, and a later name goes over an earlier one. RKE2 starts
kubelet as a process of its own, whose words can be seen; in k3s it is a part of k3s's process, which hides its own
words from then on, so that its unit is read.
Source: docs.k3s.io, "Configuration options"; k3s, pkg/configfilearg/parser.go, pkg/daemons/agent/agent.go,
pkg/cli/agent/agent.go (SetProcTitle).
"""

import contextlib
import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from criproxy.kubelet import units
from criproxy.kubelet.configuration import YamlValue, parsed
from criproxy.kubelet.flags import EMBEDDING
from criproxy.kubelet.wrappers import program_at

_DIRECTORY: Final = "agent/etc/kubelet.conf.d"
_ARGUMENT: Final = "kubelet-arg"
_TAKEN: Final = ("config=", "config-dir=")
"""Arguments of kubelet's whose files they copy into the directory."""


def kubelet_words(root: Path, unit: str) -> list[str]:
    """Kubelet's words, given the unit of its distribution.

    Empty for one before Kubernetes 1.32, without a directory, and where a shell or the like starts it, whose options
    nobody can tell. Raises OSError, and ValueError for a file that is not understood.
    """
    product = EMBEDDING[unit]
    words, environment = _started(root, unit)
    if not words:
        return []
    data = environment.get(f"{product.upper()}_DATA_DIR") or f"/var/lib/rancher/{product}"
    arguments = list[str]()
    for path in _config_files(root, product, words, environment):
        try:
            said = parsed((root / path.lstrip("/")).read_bytes())
            data = _text(said.get("data-dir")) or data
            if (given := said.get(_ARGUMENT)) is not None:
                arguments = _texts(given)
            arguments += _texts(said.get(f"{_ARGUMENT}+"))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    *_, data = data, *_given(words, "--data-dir", "-d")
    arguments += _given(words, f"--{_ARGUMENT}")
    directory = posixpath.join("/", data, _DIRECTORY)
    if not (root / directory.lstrip("/") / f"00-{product}-defaults.conf").exists():
        return []
    return ["kubelet", f"--config-dir={directory}", *(f"--{one}" for one in arguments if not one.startswith(_TAKEN))]


def config_files(root: Path, unit: str) -> Iterator[str]:
    """The distribution's own configuration files, in the order in which they are read. Raises OSError."""
    return _config_files(root, EMBEDDING[unit], *_started(root, unit))


def _started(root: Path, unit: str) -> tuple[list[str], dict[str, str]]:
    """The distribution's own words of the unit's command, [] where they can't be told, and the unit's environment."""
    words, environment = units.started(root, unit)
    with contextlib.suppress(ValueError):
        return words[program_at(words, EMBEDDING[unit]) :], environment
    return [], environment


def _config_files(root: Path, product: str, words: Sequence[str], environment: Mapping[str, str]) -> Iterator[str]:
    """The variable goes over the flag, of which the first one counts."""
    given = environment.get(f"{product.upper()}_CONFIG_FILE") or next(_given(words, "--config", "-c"), "")
    main = given or f"/etc/rancher/{product}/config.yaml"
    if (root / main.lstrip("/")).is_file():
        yield main
    directory = root / f"{main.lstrip('/')}.d"
    if directory.is_dir():
        yield from (f"{main}.d/{name}" for name in sorted(os.listdir(directory)) if name.endswith((".yaml", ".yml")))


def _given(words: Sequence[str], *names: str) -> Iterator[str]:
    """The values of a flag that has these names; those of a command line come after those of the files."""
    for at, word in enumerate(words):
        key, equals, value = word.partition("=")
        if key in names and (equals or at + 1 < len(words)):
            yield value if equals else words[at + 1]


def _text(value: YamlValue) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: YamlValue) -> list[str]:
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)]
