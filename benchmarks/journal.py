"""Runs a program whose stderr is a socket, as systemd runs a service's: `python benchmarks/journal.py LOG PROGRAM ARG …`.

The program keeps this process's pid. What it writes is appended to LOG until it has ended.
"""

import os
import socket
import sys
from pathlib import Path

_READ_BYTES = 65536


def main() -> None:
    log, *command = sys.argv[1:]
    reading, writing = socket.socketpair()
    if os.fork():
        os.dup2(writing.fileno(), sys.stderr.fileno())
        os.execv(command[0], command)
    writing.close()
    for descriptor in (sys.stdout.fileno(), sys.stderr.fileno()):
        os.close(descriptor)
    with Path(log).open("ab", buffering=0) as file:
        while data := reading.recv(_READ_BYTES):
            file.write(data)


if __name__ == "__main__":
    main()
