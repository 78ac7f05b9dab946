"""What attach and detach use of the machine besides its files: programs, sockets, time."""

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from criproxy.commands.attach.edits import NodeError

_HTTP_S: Final = 5.0
_VERSION_S: Final = 10.0


class Machine:
    """What is not a file: programs, sockets, time."""

    def run(self, command: Sequence[str], timeout_s: float) -> tuple[int, str]:
        """Exit status, and output with errors. Raises NodeError when it cannot be run, or takes longer."""
        # In a session of its own: what a terminal's Ctrl-C ends is us, and we undo what the command began.
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                check=False,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired as error:
            raise NodeError(f"{' '.join(command)} has not ended within {timeout_s:.0f} s") from error
        except OSError as error:
            raise NodeError(f"{command[0]}: {error.strerror or error}: is this a node with systemd?") from error
        return done.returncode, done.stdout.decode(errors="replace")

    def version(self, socket: str) -> str:
        """What the runtime behind a socket calls itself. Raises NodeError when it does not answer."""
        import asyncio

        from criproxy.fronts.cri.runtime import RuntimeInfo, ask_version
        from criproxy.fronts.http2.client.connection import Connection

        async def ask() -> RuntimeInfo:
            async with await Connection.dial(Path(socket)) as connection:
                return await ask_version(connection.call, _VERSION_S)

        try:
            info = asyncio.run(ask())
        except OSError as error:  # a ConnectionError, too
            raise NodeError(f"{socket}: {error}") from error
        return f"{info.name} {info.version}"

    def get(self, host: str, port: int, path: str) -> str:
        """The body of a 200 answer. Raises NodeError for any other, and for none."""
        import http.client

        connection = http.client.HTTPConnection(host, port, timeout=_HTTP_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise NodeError(f"http://{host}:{port}{path} does not answer ({error})") from error
        finally:
            connection.close()
        if answer.status != 200:
            raise NodeError(f"http://{host}:{port}{path} answers {answer.status}: {body.strip()[:200]}")
        return body

    def ask(self, socket: str, question: str) -> str:
        """What the criproxy of that status socket answers. Raises NodeError when it does not."""
        from criproxy.observe import client

        try:
            return client.ask(Path(socket), question, _HTTP_S)
        except client.ERRORS as error:
            raise NodeError(str(error)) from error

    def now_s(self) -> float:
        """Monotonic."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
