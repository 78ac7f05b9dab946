"""`python -m cluster.image [--out FILE] [--mirror URL] [--host-packages DEB...]`: builds the image (a minute), and
prints its digest."""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cluster.image.contents import CLUSTER, SETTINGS, BuildError, find_mirror, make_base, make_code
from cluster.image.oci import layer, write_archive

NAME = "docker.io/library/criproxy"
"""What the manifests' `criproxy` means to a container runtime."""


def version() -> str:
    return (CLUSTER / "VERSION").read_text().strip()


def build(out: Path, mirror: str, host_packages: Sequence[Path] = ()) -> str:
    """Write the image's archive, and return its digest. Raises BuildError or OSError."""
    os.umask(0o022)
    with tempfile.TemporaryDirectory(prefix="criproxy-image-") as work:
        base, code = Path(work, "base"), Path(work, "code")
        make_base(base, mirror or find_mirror())
        make_code(code, base, host_packages)
        out.parent.mkdir(parents=True, exist_ok=True)
        unfinished = out.with_name(f".{out.name}.new")
        digest = write_archive(unfinished, [layer(base), layer(code)], SETTINGS, [f"{NAME}:{version()}"])
        unfinished.rename(out)
    return digest


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m cluster.image", description="Build the image of criproxy.")
    default = CLUSTER.parent / "build" / f"criproxy-image-{version()}.tar"
    parser.add_argument("--out", type=Path, default=default, metavar="FILE", help="default: %(default)s")
    parser.add_argument("--mirror", default="", metavar="URL", help="a Debian archive (default: the one that apt uses)")
    about = "criproxy's packages, which an installer's Job puts onto hosts (default: none)"
    parser.add_argument("--host-packages", type=Path, nargs="+", default=[], metavar="DEB", help=about)
    given = parser.parse_args()
    try:
        print(f"{given.out} {build(given.out, given.mirror, given.host_packages)}")
    except (BuildError, OSError) as error:
        print(f"cluster.image: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
