"""Generate criproxy/fronts/cri/cri_pb2.py from cri.proto: `python cri-api/generate.py [--check]`.

--check writes nothing and fails when the committed stubs are not what the generator makes.
"""

import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

HERE = Path(__file__).resolve().parent
OUT = HERE.parent / "criproxy" / "fronts" / "cri"
STUBS = ("cri_pb2.py", "cri_pb2.pyi")


def generate(out: Path) -> None:
    """Write the stubs into the directory `out`. Raises SystemExit when protoc fails."""
    args = ["protoc", f"-I{HERE}", f"--python_out={out}", f"--pyi_out={out}", str(HERE / "cri.proto")]
    if protoc.main(args) != 0:
        raise SystemExit("protoc failed")


def main() -> int:
    if sys.argv[1:] != ["--check"]:
        generate(OUT)
        return 0
    with tempfile.TemporaryDirectory() as fresh:
        generate(Path(fresh))
        stale = [name for name in STUBS if (Path(fresh) / name).read_bytes() != (OUT / name).read_bytes()]
    for name in stale:
        print(f"criproxy/fronts/cri/{name} is stale: run python cri-api/generate.py", file=sys.stderr)
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())
