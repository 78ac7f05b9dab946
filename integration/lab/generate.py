"""Make cri_client_pb2.py and its types from cri_client.proto: `python integration/lab/generate.py`.

integration/setup does it, and they are in no commit. What this proto and generator have made already is left alone.
"""

import hashlib
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
STUBS: Final = ("cri_client_pb2.pyi", "cri_client_pb2.py")  # the module last: where it is, both are


def made_of() -> str:
    """The first line of the stubs, which tells what they were made of; it keeps mypy off the generator's hints."""
    digest = hashlib.sha256((HERE / "cri_client.proto").read_bytes() + Path(__file__).read_bytes()).hexdigest()
    return f"# mypy: ignore-errors\n# made of {digest} by grpcio-tools {metadata.version('grpcio-tools')}\n"


def generate() -> None:
    """Write the stubs. Raises SystemExit when protoc fails."""
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as out:
        args = ["protoc", f"-I{HERE}", f"--python_out={out}", f"--pyi_out={out}", str(HERE / "cri_client.proto")]
        if protoc.main(args) != 0:
            raise SystemExit("protoc failed")
        for name in STUBS:
            (HERE / name).write_text(made_of() + (Path(out) / name).read_text())


def main() -> None:
    if not all((HERE / name).exists() and (HERE / name).read_text().startswith(made_of()) for name in STUBS):
        generate()


if __name__ == "__main__":
    main()
