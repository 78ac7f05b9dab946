"""The chart's installer for a node without Helm, YAML and a registry: its image, and its objects at some revisions.

`python -m integration.lab.installer_jobs` (integration/setup does it) makes both of dist/ and the chart, in
dist/installer, which goes with the checkout to the node of integration/systemd/test_installer_job.py.
"""

import io
import json
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.image import oci
from cluster.image.__main__ import NAME, build
from cluster.image.contents import HOST_PACKAGES
from cluster.image.oci import architecture
from integration.lab.criproxy import CHECKOUT

FOLDER = CHECKOUT / "dist" / "installer"
IMAGE, NEWER_IMAGE, OBJECTS = FOLDER / "image.tar", FOLDER / "newer.tar", FOLDER / "objects.json"
NODE = "node"
NEWER = "newer"
"""The tag of the image that has the package of dist/next."""
RELEASE = "deb13"
"""Of the node: an emulated machine takes long for an image of more packages."""
ON = {"colocation": {"enabled": True}}
ERROR = {"observe": {"remote_address": "127.0.0.1:9443"}}
"""It has no certificate: Helm checks each key by itself, and criproxy's own reader what they are together."""

VALUES: Mapping[str, Mapping[str, Any]] = {
    "error": {"installer": {"install": [NODE], "config": {**ON, **ERROR}}},
    "install": {"installer": {"install": [NODE], "config": ON}},
    "newer": {"installer": {"install": [NODE], "config": ON}, "image": {"tag": NEWER}},
    "remove": {"installer": {"remove": [NODE], "config": ON}, "image": {"tag": NEWER}},
}


def main() -> int:
    import helm_python  # not on a node
    import yaml

    FOLDER.mkdir(exist_ok=True)
    (older,) = (CHECKOUT / "dist").glob(f"criproxy_*~{RELEASE}u*_{architecture()}.deb")
    (newer,) = (CHECKOUT / "dist" / "next").glob(f"criproxy_*~{RELEASE}u*_{architecture()}.deb")
    print(IMAGE, build(IMAGE, "", [architecture()], [older]))
    _replace_packages(newer)
    with helm_python.Chart.load(CHECKOUT / "packaging" / "chart") as chart:
        OBJECTS.write_text(json.dumps({
            name: [one for text in _rendered(chart, values).values() for one in yaml.safe_load_all(text) if one]
            for name, values in VALUES.items()
        }, indent=1))  # fmt: skip
    return 0


def _replace_packages(package: Path) -> None:
    """Make `NEWER_IMAGE` of `IMAGE` by a layer more. It is without the layers that a node has of `IMAGE`.

    Source: OCI image-spec, layer, "Opaque Whiteout".
    """
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as made:
        oci.add(made, f"{HOST_PACKAGES}/.wh..wh..opq", b"")
        oci.add(made, f"{HOST_PACKAGES}/{package.name}", package.read_bytes())
    with tarfile.open(IMAGE) as image:
        older = {one.name: one for one in image if one.isfile()}

        def read(name: str) -> bytes:
            file = image.extractfile(older[name])
            assert file is not None
            return file.read()

        (described,) = json.loads(read("index.json"))["manifests"]
        manifest = json.loads(read(_place(described)))
        layers = [*(read(_place(one)) for one in manifest["layers"]), layer.getvalue()]
        settings = json.loads(read(_place(manifest["config"])))["config"]
    whole = NEWER_IMAGE.with_suffix(".whole")
    oci.write_archive(whole, {architecture(): layers}, settings, [f"{NAME}:{NEWER}"])
    with tarfile.open(whole) as image, tarfile.open(NEWER_IMAGE, "w") as made:
        for one in image:
            if one.name not in older or not one.name.startswith("blobs/"):
                made.addfile(one, image.extractfile(one))
    whole.unlink()


def _place(descriptor: Mapping[str, str]) -> str:
    return f"blobs/{descriptor['digest'].replace(':', '/')}"


def _rendered(chart: Any, values: Mapping[str, Any]) -> dict[str, str]:
    made = chart.render({"cluster": {"enabled": False}, **values}, name="criproxy", namespace="default", revision=1)
    return {name: text for name, text in made.items() if name.endswith(".yaml")}


if __name__ == "__main__":
    sys.exit(main())
