"""A registry with the images that critest pulls: `python -m integration.lab.registry ADDRESS`, until it is killed.

One server stands for all registries: containerd sends the name of the one that it was asked for as `ns`. All images
have one layer, of the machine's busybox, and scripts for the programs that critest expects in them.
Source: OCI distribution-spec v1.1 (pull); containerd, docs/hosts.md; cri-tools, images/ and pkg/validate.
"""

import sys
import urllib.parse
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cluster.image import oci
from integration.lab import images
from integration.lab.criproxy import python_path
from integration.lab.process import Process

BUSYBOX = "localhost/critest/busybox:1"
_KUBERNETES = "registry.k8s.io/e2e-test-images"
WEB = f"{_KUBERNETES}/nginx:1.14-2"
_CRI_TOOLS = "gcr.io/k8s-staging-cri-tools"

_APPLETS = f"{images.APPLETS} brctl httpd mount netstat pidof ping umount"
_SCRIPTS = {
    # Both web servers: on the port of a pod's own network, and on the one of the host's.
    "nginx": """\
echo httpd
mkdir -p /var/run && echo $$ >/var/run/nginx.pid
httpd -p 80 -h /www
httpd -p 12003 -h /www
while :; do sleep 1000; done
""",
    "nonewprivs": """/bin/su root -c 'echo "Effective uid: $(id -u)"' || echo "Effective uid: $(id -u)"\n""",
    "ipcs": "cat /proc/sysvipc/shm\n",
    "pgrep": """pidof "$@" | tr ' ' '\\n' | grep -vx 1\n""",  # 1 is the lab's pause, which sleeps as well
}
_PASSWD = """\
root::0:0:root:/:/bin/sh
default-user:x:1000:1000::/:/bin/sh
nobody:x:65534:65534::/:/bin/sh
"""
_GROUPS = """\
root:x:0:
default-user:x:1000:
group-defined-in-image:x:50000:default-user
nobody:x:65534:
"""
_SLEEP = ["sleep", "2147483647"]
_READY = "serving"
_START_S = 180


def start(directory: Path, address: str, before: Sequence[str] = ()) -> Process:
    """Start one that logs into `directory`, and return once it listens. `before`: what comes before the command."""
    log = directory / "registry.log"
    command = [*before, sys.executable, "-u", "-m", __name__, address]
    process = Process("registry", command, log, {"PYTHONPATH": python_path()})
    process.wait_until(lambda: _READY in log.read_text(), _START_S, "it to listen")
    return process


def _settings() -> dict[str, dict[str, Any]]:
    """The `config` of each image's config, by the image's name; images of one config are one image."""
    tests = f"{_CRI_TOOLS}/test-image"
    users = {"user-uid": "1002", "user-username": "www-data", "user-uid-group": "1003:users"}
    users |= {"user-username-group": "www-data:100", "predefined-group": "1000"}
    web = {"Cmd": ["nginx", "master process"]}
    return {
        BUSYBOX: {},
        WEB: web,
        f"{_KUBERNETES}/httpd:2.4.39-4": web,
        f"{_CRI_TOOLS}/hostnet-nginx-{oci.architecture()}:latest": web,
        f"{_KUBERNETES}/nonewprivs:1.3": {"Cmd": ["nonewprivs"]},
        f"{tests}-latest:latest": {"Env": ["OF=latest"]},
        f"{tests}-tag:test": {"Env": ["OF=test"]},
        f"{tests}-tag:all": {"Env": ["OF=all"]},
        **{f"{tests}-{number}:latest": {"Env": [f"OF={number}"]} for number in (1, 2, 3)},
        **{f"{tests}-tags:{tag}": {"Env": ["OF=tags"]} for tag in (1, 2, 3)},
        **{f"{tests}-{name}:latest": {"User": user} for name, user in users.items()},
        **{f"{registry}/pause:3.9": {"Env": ["OF=pause"]} for registry in ("registry.k8s.io", "k8s.gcr.io")},
    }


def _layer() -> bytes:
    scripts = {f"bin/{name}": (f"#!/bin/sh\n{text}".encode(), 0o755) for name, text in _SCRIPTS.items()}
    return images.layer(
        _APPLETS,
        {
            **scripts,
            "bin/su": (images.read_busybox(), 0o4755),
            "etc/passwd": (_PASSWD.encode(), 0o644),
            "etc/group": (_GROUPS.encode(), 0o644),
            "www/index.html": (b"here\n", 0o644),
        },
    )


class Registry(ThreadingHTTPServer):
    """`manifests` by the image's name, `REGISTRY/PATH:TAG` or `REGISTRY/PATH@DIGEST`; `blobs` by digest."""

    def __init__(self, address: tuple[str, int]) -> None:
        layer = _layer()
        self.manifests: dict[str, bytes] = {}
        self.blobs: dict[str, bytes] = {oci.digest(layer): layer}
        for name, settings in _settings().items():
            config, manifest = oci.describe(
                [layer], {"Env": ["PATH=/bin"], "Cmd": _SLEEP, **settings}, oci.architecture()
            )
            self.blobs[oci.digest(config)] = config
            self.manifests[name] = self.manifests[f"{name.rpartition(':')[0]}@{oci.digest(manifest)}"] = manifest
        super().__init__(address, _Handler)

    def find(self, target: str) -> tuple[str, bytes] | None:
        """The media type and content of what a request is for; None: there is no such thing here."""
        url = urllib.parse.urlsplit(target)
        path, kind, reference = url.path.removeprefix("/v2/").rsplit("/", 2)
        if kind == "blobs":
            blob = self.blobs.get(reference)
            return None if blob is None else ("application/octet-stream", blob)
        registry = urllib.parse.parse_qs(url.query)["ns"][0]
        manifest = self.manifests.get(f"{registry}/{path}{'@' if ':' in reference else ':'}{reference}")
        return None if manifest is None else (oci.MANIFEST, manifest)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Registry

    def do_HEAD(self) -> None:
        self._answer(with_content=False)

    def do_GET(self) -> None:
        self._answer(with_content=True)

    def _answer(self, *, with_content: bool) -> None:
        found = self.server.find(self.path)
        kind, content = found or ("text/plain", b"")
        self.send_response(200 if found else 404)
        headers: Mapping[str, str] = {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Docker-Content-Digest": oci.digest(content),
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if with_content:
            self.wfile.write(content)


if __name__ == "__main__":
    host, _, port = sys.argv[1].rpartition(":")
    with Registry((host, int(port))) as registry:
        print(_READY)
        registry.serve_forever()
