"""What the daemon imports and when, and that memory goes back: each in a process of its own."""

import json
import platform
import subprocess
import sys

import pytest


def modules_after(code: str) -> set[str]:
    """The modules that a new Python has after this."""
    done = subprocess.run(
        [sys.executable, "-c", f"import json, sys\n{code}\nprint(json.dumps(list(sys.modules)))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


# As `criproxy run`, as far as the imports go; the engine is made as the daemon makes it.
DAEMON = """
from criproxy import cli
from criproxy.daemon import footprint
with footprint.fewer_modules():
    from criproxy.daemon import daemon
import asyncio
from pathlib import Path
from criproxy.concurrency.clock import Clock
from criproxy.fronts.chosen import ChosenEngine
from criproxy.fronts.socket import ListenSocket
async def make(kind):
    listen = ListenSocket(Path("/nowhere/c.sock"), 1)
    parts = dict(pid=1, interceptor=None, metrics=None, clock=Clock(), log=None)
    return ChosenEngine(kind, Path("/nowhere/r.sock"), listen, **parts)
"""


def test_daemon_with_the_relay_never_imports_grpc_nor_tls() -> None:
    found = modules_after(DAEMON + "asyncio.run(make('relay'))\nfootprint.settle()")
    others = ("grpc", "ssl", "_ssl", "_hashlib", "prometheus_client")
    assert {name for name in found if name.partition(".")[0] in others} == set()
    assert {"criproxy.daemon.daemon", "criproxy.fronts.relay.server", "google._upb._message"} <= found
    assert "google.protobuf.internal.python_message" not in found


def test_daemon_with_grpc_has_it_before_it_listens() -> None:
    assert {"grpc", "grpc._utilities"} <= modules_after(DAEMON + "asyncio.run(make('grpc'))")


def test_daemon_that_begins_to_listen_has_no_protobuf_yet() -> None:
    found = modules_after(DAEMON + "asyncio.run(make('relay'))")
    assert "google._upb._message" not in found


KUBECONFIG = """
import criproxy.kube.node_side
from criproxy.kube.kubeconfig import parse
cluster = "{name: c, cluster: {server: 'https://a:6443'}}"
context = "{name: x, context: {cluster: c, user: u}}"
text = f"clusters: [{cluster}]\\nusers: [{{name: u, user: {{token: t}}}}]\\ncontexts: [{context}]\\ncurrent-context: x"
assert parse(text, "f").port == 6443
assert parse(text, "f").port == 6443
"""

SOUGHT = """
class Sought:
    def find_spec(self, name, path=None, target=None):
        sought.append(name)
sought = []
sys.meta_path.insert(0, Sought())
{then}
assert "yaml" in sought and "yaml._yaml" not in sought, sought
"""


def test_node_side_of_kubernetes_has_yaml_only_while_it_reads_a_kubeconfig_and_never_libyaml() -> None:
    found = modules_after(SOUGHT.format(then=KUBECONFIG))
    assert not {name for name in found if name.partition(".")[0] in ("yaml", "_yaml")}
    assert {"yaml", "yaml.loader"} <= modules_after(f"import yaml\n{KUBECONFIG}"), "it was there before"


@pytest.mark.parametrize("name", ["ssl", "typing_extensions"])
def test_what_is_hidden_while_the_daemon_is_imported_can_be_imported_later(name: str) -> None:
    hide = "from criproxy.daemon import footprint\nwith footprint.fewer_modules():\n    import asyncio, msgspec"
    code = f"{hide}\nimport {name}"
    assert name in modules_after(code)
    assert name not in modules_after(code.rpartition("\n")[0])


LARGE = """
import resource
from pathlib import Path
from criproxy.daemon import footprint
{prepare}
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
one = b"x" * 30_000_000  # from now on, glibc would take what is smaller from the heap, and keep it
del one
before = resident()
many = [b"x" * 1_500_000 for _ in range(20)]
del many
print(resident() - before)
"""


def left_bytes(prepare: str) -> int:
    code = LARGE.format(prepare=prepare)
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another libc")
def test_large_blocks_go_back_to_the_kernel() -> None:
    assert left_bytes("pass") > 20_000_000, "without it, they stay: is it of any use?"
    assert left_bytes("footprint.return_memory()") < 2_000_000
