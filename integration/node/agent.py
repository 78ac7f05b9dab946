"""The node's end of the line: runs, as a service in the guest, what the host asks for; sends back output and status.

Frames to the host: a letter, the length (4 bytes, big-endian), the data. R: ready; o, e: output; f: a part of the tar
of /out; x: the exit status, the last frame of an answer. Requests are lines of JSON. The image has this file alone.
"""

import fcntl
import glob
import json
import os
import struct
import subprocess
import threading
import time
from typing import IO, Any

RNDRESEEDCRNG = 0x5207
"""Source: random(4): what was written to /dev/urandom takes effect at once; else two resumes draw the same numbers."""
READ_BYTES = 1 << 16
NODE_FAILED, NOT_FOUND = 125, 127


class Line:
    """The virtio port to the host; frames of different threads do not mix."""

    def __init__(self, path: str) -> None:
        self._port = os.open(path, os.O_RDWR)
        self._lock = threading.Lock()

    def send(self, kind: bytes, data: bytes = b"") -> None:
        left = memoryview(kind + struct.pack(">I", len(data)) + data)
        with self._lock:
            while left:
                left = left[os.write(self._port, left) :]

    def pump(self, kind: bytes, source: IO[bytes]) -> None:
        while data := os.read(source.fileno(), READ_BYTES):
            self.send(kind, data)

    def request(self) -> dict[str, Any]:
        received = b""
        while not received.endswith(b"\n"):
            byte = os.read(self._port, 1)
            if not byte:  # nobody is connected
                time.sleep(0.01)
            received += byte
        return dict(json.loads(received))


def set_clock_and_seed(now_s: float, seed: str) -> None:
    """A resumed guest is where it was when the snapshot was made."""
    time.clock_settime(time.CLOCK_REALTIME, now_s)
    with open("/dev/urandom", "wb") as pool:
        pool.write(seed.encode())
        pool.flush()
        fcntl.ioctl(pool, RNDRESEEDCRNG)


def answer(line: Line, request: dict[str, Any]) -> int:
    """Run what is asked for, its output sent as it comes; returns its exit status."""
    setup = subprocess.run(
        ["sh", "-ec", request["setup"]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if setup.returncode != 0:
        line.send(b"e", b"node: " + setup.stdout)
        return NODE_FAILED
    try:
        status = run(line, request["argv"], request["cwd"], request["env"])
    except OSError as error:
        line.send(b"e", f"node: {error}\n".encode())
        return NOT_FOUND
    if request["out"]:
        with subprocess.Popen(["tar", "-C", "/out", "-c", "."], stdout=subprocess.PIPE) as tar:
            assert tar.stdout is not None
            line.pump(b"f", tar.stdout)
    return status


def run(line: Line, argv: list[str], directory: str, env: dict[str, str]) -> int:
    child = subprocess.Popen(
        argv,
        cwd=directory,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    pumps = [
        threading.Thread(target=line.pump, args=(kind, source), daemon=True)
        for kind, source in ((b"o", child.stdout), (b"e", child.stderr))
    ]
    for pump in pumps:
        pump.start()
    status = child.wait()
    for pump in pumps:
        pump.join(1)  # a daemon that the command left behind may keep the pipes open
    return status if status >= 0 else 128 - status


def main() -> None:
    line = Line(glob.glob("/dev/vport*p1")[0])
    line.send(b"R")
    while True:
        request = line.request()
        set_clock_and_seed(request["now"], request["seed"])
        line.send(b"x", str(answer(line, request)).encode())


if __name__ == "__main__":
    main()
