"""Nothing of ours is imported in the middle of the daemon's life, when an upgrade may have removed its files."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from criproxy.daemon import footprint

_LOADED = """
import json, sys
from criproxy.daemon import daemon, footprint
footprint.settle()
print(json.dumps([sorted(sys.modules), sorted(m.__file__ for n, m in sys.modules.items() if n.startswith("criproxy"))]))
"""

SWITCHED_ON = ("criproxy.kube.", "criproxy.observe.remote", "criproxy.fronts.nri.nri_descriptor")
"""Imported at once where Kubernetes, a remote address, or the NRI front is switched on, and nowhere else: see
`test_node_side_needs_no_further_import`.
"""

FALLBACKS = (
    "criproxy.fronts.grpc.server",
    "google.protobuf.descriptor_pool",
    "google.protobuf.reflection",
    "google.protobuf.unknown_fields",
    "yaml",
)
"""The first is imported only when the relay gives way, as it brings gRPC; without its files, that is told
(`no_fallback`). Protobuf's, in `settle` as well, only where protobuf has no part in C. The last
stays for no longer than it reads a file; without its own files, that is an error with its remedy.
"""


def imported_by_functions(file: Path) -> Iterator[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in (node for function in functions for node in ast.walk(function)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_what_functions_of_the_daemon_import_is_loaded_or_of_the_standard_library() -> None:
    output = subprocess.run([sys.executable, "-c", _LOADED], capture_output=True, text=True, check=True).stdout
    modules, files = json.loads(output)
    later = {
        f"{file}: {name}"
        for file in files
        for name in imported_by_functions(Path(file))
        if name not in (*modules, *FALLBACKS)
        and not name.startswith(SWITCHED_ON)
        and name.partition(".")[0] not in sys.stdlib_module_names
    }
    assert later == set(), f"name them in {footprint.__name__}.DEFERRED_MODULES"


def test_node_side_needs_no_further_import() -> None:
    """What it is made of is all there with it; `criproxy.daemon.kubernetes` imports nothing else of the kind."""
    code = "import json, sys, criproxy.kube.node_side; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    folder = Path(__file__).resolve().parents[2] / "criproxy"
    files = [folder / "daemon" / "kubernetes.py", *(folder / "kube").glob("*.py")]
    asked = {name for file in files for name in imported_by_functions(file) if name.startswith(SWITCHED_ON)}
    assert asked
    assert asked <= set(loaded)
