"""The webhook's certificate on its way from files into the server.

A server without a certificate accepts no call. A certificate that is replaced serves new connections from then on, and
old ones go on: nobody is cut off. What can't be loaded is logged, and the last good one serves on.
"""

import asyncio
import math
import ssl
import tempfile
from pathlib import Path
from typing import Final

from structlog.typing import FilteringBoundLogger

from criproxy_cluster.webhook.validity import validity

LOOK_S: Final = 20.0
FIRST_S: Final = 1.0
"""From one look to the next, and while there is no certificate."""

Pair = tuple[bytes, bytes]
"""The certificate and its key, PEM."""


class ServerCertificate:
    """Of tls.crt and tls.key in `folder`, as a Secret is mounted. `context` is the server's, for new connections."""

    def __init__(self, folder: Path, log: FilteringBoundLogger) -> None:
        self.context = _context()
        self._folder = folder
        self._log = log
        self._loaded: Pair | None = None
        self._trouble = ""
        self.holds: tuple[float, float] = (math.nan, math.nan)
        """From when until when what is loaded holds, in seconds since 1970; NaN: not known."""

    @property
    def ready(self) -> bool:
        return self._loaded is not None

    @property
    def pair(self) -> Pair | None:
        """What is served now; None: nothing yet."""
        return self._loaded

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S if self.ready else FIRST_S)

    def look(self) -> None:
        """Load what is there, if it is another one. Never raises."""
        try:
            certificate, key = ((self._folder / name).read_bytes() for name in ("tls.crt", "tls.key"))
            if (certificate, key) != self._loaded:
                self._load(certificate, key)
                self._log.info("certificate_loaded")
        except (OSError, ssl.SSLError) as error:
            why = f"{self._folder}: tls.crt and tls.key can't be taken: {error}"
            if why != self._trouble:
                consequence = "the last one serves on" if self.ready else "no call is answered yet"
                self._log.warning("certificate_not_loaded", error=why, consequence=consequence)
            self._trouble = why
        else:
            self._trouble = ""

    def _load(self, certificate: bytes, key: bytes) -> None:
        """The ssl module reads files only. A context would keep the old one beside one with a key of another kind."""
        with tempfile.TemporaryDirectory(prefix="criproxy-") as folder:
            files = Path(folder, "tls.crt"), Path(folder, "tls.key")
            for file, content in zip(files, (certificate, key), strict=True):
                file.touch(mode=0o600)
                file.write_bytes(content)
            context = _context()
            context.load_cert_chain(*files)
        self.context, self._loaded = context, (certificate, key)
        try:
            self.holds = validity(certificate)
        except ValueError:
            self.holds = (math.nan, math.nan)


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
