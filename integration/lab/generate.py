"""Generate cri_client_pb2.py from cri_client.proto: `python integration/lab/generate.py [--check]`.

--check writes nothing and fails when the committed stubs are not what the generator makes.
"""

import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

HERE = Path(__file__).resolve().parent
STUBS = ("cri_client_pb2.py", "cri_client_pb2.pyi")


def generate(out: Path) -> None:
    """Write the stubs into the directory `out`. Raises SystemExit when protoc fails."""
    args = ["protoc", f"-I{HERE}", f"--python_out={out}", f"--pyi_out={out}", str(HERE / "cri_client.proto")]
    if protoc.main(args) != 0:
        raise SystemExit("protoc failed")
    stub = out / "cri_client_pb2.pyi"
    stub.write_text(f"# mypy: ignore-errors\n{stub.read_text()}")  # the generator's hints are not strict


def main() -> int:
    if sys.argv[1:] != ["--check"]:
        generate(HERE)
        return 0
    with tempfile.TemporaryDirectory() as fresh:
        generate(Path(fresh))
        stale = [name for name in STUBS if (Path(fresh) / name).read_bytes() != (HERE / name).read_bytes()]
    for name in stale:
        print(f"integration/lab/{name} is not what cri_client.proto makes: run python integration/lab/generate.py")
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())
