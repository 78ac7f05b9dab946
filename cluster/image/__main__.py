"""`python -m cluster.image [--out FILE] [--mirror URL] [--host-packages DEB...] [--arch NAME...]`: builds the image, a
minute for each architecture, and prints its digest."""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cluster.image.contents import CLUSTER, SETTINGS, BuildError, find_mirror, make_base, make_code
from cluster.image.oci import MACHINES, architecture, layer, write_archive

NAME = "docker.io/library/criproxy"
"""What the manifests' `criproxy` means to a container runtime."""


def version() -> str:
    return (CLUSTER / "VERSION").read_text().strip()


def build(out: Path, mirror: str, architectures: Sequence[str], host_packages: Sequence[Path] = ()) -> str:
    """Write the image's archive, and return its digest. Raises BuildError or OSError."""
    own = architecture()
    if own not in MACHINES:
        raise BuildError(f"this machine is {own}: build on one of {', '.join(MACHINES)}")
    os.umask(0o022)
    with tempfile.TemporaryDirectory(prefix="criproxy-image-") as work:
        archive, python = mirror or find_mirror(), Path(work, f"base-{own}")
        images = {}
        for one in sorted({own, *architectures}, key=lambda name: (name != own, name)):  # whose Python compiles
            base, code = Path(work, f"base-{one}"), Path(work, f"code-{one}")
            make_base(base, archive, one, python)
            if one in architectures:
                make_code(code, one, python, host_packages)
                images[one] = [layer(base), layer(code)]
        out.parent.mkdir(parents=True, exist_ok=True)
        unfinished = out.with_name(f".{out.name}.new")
        digest = write_archive(unfinished, dict(sorted(images.items())), SETTINGS, [f"{NAME}:{version()}"])
        unfinished.rename(out)
    return digest


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m cluster.image", description="Build the image of criproxy.")
    default = CLUSTER.parent / "build" / f"criproxy-image-{version()}.tar"
    parser.add_argument("--out", type=Path, default=default, metavar="FILE", help="default: %(default)s")
    parser.add_argument("--mirror", default="", metavar="URL", help="a Debian archive (default: the one that apt uses)")
    about = "criproxy's packages, which an installer's Job puts onto hosts (default: none)"
    parser.add_argument("--host-packages", type=Path, nargs="+", default=[], metavar="DEB", help=about)
    about = "for which processors (default: %(default)s)"
    parser.add_argument("--arch", nargs="+", choices=MACHINES, default=list(MACHINES), metavar="NAME", help=about)
    given = parser.parse_args()
    try:
        print(f"{given.out} {build(given.out, given.mirror, given.arch, given.host_packages)}")
    except (BuildError, OSError) as error:
        print(f"cluster.image: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
