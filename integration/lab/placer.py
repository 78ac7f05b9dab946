"""A stand-in for criproxy as the runtime's NRI plugin: puts each container of a pod with `MARK` into the box.

`python -m integration.lab.placer NRI_SOCKET HANDED REDIALS_S`: dials the runtime's socket whenever it has no
connection, and takes over what a launcher hands it at HANDED ("": it listens for none).
"""

import contextlib
import json
import socket
import sys
import threading
import time
from pathlib import Path

from criproxy.fronts.sentry import plugin
from criproxy.vocabulary.names import CLASS, OFFLINE

MARK = {CLASS: OFFLINE}
KUBELETS, BOX = "/kubepods/besteffort/", "/box/"


class PlacingSession(plugin.SentrySession):
    """As the sentry's, with another answer to a container that is created."""

    def _refusal(self, payload: bytes) -> str:
        raise AssertionError("not asked")

    def _answer(self, request: bytes) -> bytes:
        fields = dict(plugin._fields(request))
        if fields.get(2) != b"CreateContainer":
            return super()._answer(request)
        payload = fields.get(3, b"")
        assert isinstance(payload, bytes)
        pod, container = (plugin._last(payload, number) for number in (1, 2))
        path = plugin._last(plugin._last(container, 11), 5).decode()
        if plugin._map(pod, 5).get(CLASS) != OFFLINE or KUBELETS not in path:
            return b""
        linux = plugin._text(3, path.replace(KUBELETS, BOX))
        return plugin._bytes(2, plugin._bytes(1, plugin._bytes(6, linux)))


def _serve(runtime: socket.socket) -> None:
    with runtime, contextlib.suppress(OSError):
        session = PlacingSession(plugin.Rules("/nonexistent"))
        runtime.sendall(session.begin("criproxy", "95"))
        while data := runtime.recv(1 << 16):
            runtime.sendall(session.receive(data))


def _take_over(listener: socket.socket) -> None:
    while True:
        launcher, _ = listener.accept()
        with launcher:
            said, descriptors, _, _ = socket.recv_fds(launcher, 4096, 1)
            assert json.loads(said)["plugin_name"] == "criproxy"
            launcher.sendall(plugin.TAKEN)
            _serve(socket.socket(fileno=descriptors[0]))


def main(nri: str, handed: str, redials_s: str) -> None:
    if handed:
        Path(handed).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(handed)
        listener.listen()
        threading.Thread(target=_take_over, args=[listener], daemon=True).start()
    while True:
        runtime = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError):
            runtime.connect(nri)
            _serve(runtime)
        runtime.close()
        time.sleep(float(redials_s))


if __name__ == "__main__":
    main(*sys.argv[1:])
