"""`criproxy sentry`: has the runtime keep offline containers out itself while criproxy is not there, and undoes it.

Two files in the runtime's directory of NRI plugins (`criproxy.fronts.sentry.plugin`), and the rules beside criproxy's
state. They are in force from the runtime's next start on.
"""

import contextlib
import os
import re
import sys
from pathlib import Path
from typing import Final

from criproxy.commands.attach.edits import Edit, NodeError
from criproxy.commands.attach.host import Host, Machine
from criproxy.config import load
from criproxy.fronts.nri import handed
from criproxy.fronts.sentry import plugin
from criproxy.fronts.sentry.rules import NAMES, PLUGINS, SentryOrders

FIRST: Final = {"containerd": (1, 7, 27), "cri-o": (1, 32, 0)}
"""By runtime. Earlier ones end when a plugin that they have started ends, or does not register: the node is without a
runtime. Source: containerd/nri 0.8, pkg/adaptation/adaptation.go, startPlugins.
"""

_ASIDE: Final = ".criproxy~"
"""A directory in that of the plugins. The runtime passes directories over, while an executable file that is not called
like a plugin ends containerd's CRI service.
"""


def run(switch: str, config_file: Path, machine: Machine | None = None, root: Path = Path("/")) -> int:
    """Switch it "on" or "off". The exit status: 0 done, or it was so already; 1 not, and stderr says why."""
    host = Host(machine or Machine(), root)
    try:
        words = switch_off(host) if switch == "off" else switch_on(host, config_file)
    except NodeError as error:
        sys.stderr.write(f"criproxy sentry: {error}\n")
        return 1
    print(words or "off already")
    return 0


def switch_on(host: Host, config_file: Path) -> str:
    """Returns what was done, in words. Raises NodeError."""
    loaded = load(config_file)
    if loaded.errors:
        raise NodeError("; ".join(str(error) for error in loaded.errors))
    proxy = loaded.config.proxy
    if proxy.front != "nri":
        raise NodeError(f'proxy.front is "{proxy.front}": only with "nri" does the runtime itself ask about containers')
    runtime = host.machine.version(proxy.runtime_path)
    check_runtime(runtime)
    with host.lock():
        if host.read(plugin.RULES) is None:
            host.apply(Edit(plugin.RULES, None, SentryOrders().encode()))  # criproxy says more, once it runs
        content = plugin_text(handed=str(Path(proxy.listen_path).parent / handed.NAME)).encode()
        for name in NAMES:
            _place(host, f"{PLUGINS}/{name}", content)
    return f"on from the next start of {runtime.split()[0]}: {', '.join(f'{PLUGINS}/{name}' for name in NAMES)}"


def switch_off(host: Host) -> str:
    """Returns what was done, in words; "": it was off. Raises NodeError."""
    done = []
    for path in (plugin.RULES, *(f"{PLUGINS}/{name}" for name in NAMES)):  # without rules, one that runs lets all by
        try:
            host.at(path).unlink()
            done.append(path)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise NodeError(f"{path}: {error.strerror or error}: remove it, as root") from error
    return f"off: removed {', '.join(done)}" if done else ""


def check_runtime(runtime: str) -> None:
    """`runtime`: its name and version, as "containerd v2.4.2". Raises NodeError for one that it could harm."""
    name, _, version = runtime.partition(" ")
    first = FIRST.get(name)
    if first is None:
        raise NodeError(f"{runtime} is neither containerd nor CRI-O: what it does with a plugin that ends is not known")
    numbers = re.match(r"v?(\d+)\.(\d+)\.(\d+)", version)
    if numbers is None or tuple(map(int, numbers.groups())) < first:
        raise NodeError(
            f"{runtime} would end with a plugin that ends or is slow, and the node would have no runtime: this needs "
            f"{name} {'.'.join(map(str, first))} or later; nothing was changed"
        )


def plugin_text(*, rules: str = plugin.RULES, handed: str = plugin.HANDED) -> str:
    """The file for the runtime to start, by the Python that runs this, with other paths."""
    text = Path(plugin.__file__).read_text()
    for constant, path in ((plugin.RULES, rules), (plugin.HANDED, handed)):
        text = text.replace(f'= "{constant}"', f"= {path!r}", 1)
    return f"#!{os.path.realpath(sys.executable)} -IS\n{text}"


def _place(host: Host, path: str, content: bytes) -> None:
    """At once or not at all, and never under another name where the runtime would take it for a plugin."""
    target = host.at(path)
    aside = target.parent / _ASIDE
    new = aside / target.name
    try:
        aside.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with open(new, "wb") as opened:
                opened.write(content)
                os.fchmod(opened.fileno(), 0o755)
                opened.flush()
                os.fsync(opened.fileno())
            new.rename(target)
        finally:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
                aside.rmdir()
    except OSError as error:
        raise NodeError(f"{path}: {error.strerror or error}: run this as root, on a disk with room") from error
