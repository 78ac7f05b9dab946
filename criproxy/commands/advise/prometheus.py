"""A Prometheus, asked over HTTP or HTTPS: range queries in pieces that are kept on disk, each answer bounded.

Pieces begin at multiples of their length, so that who asks again an hour later finds all but the last in the cache.
"""

import gzip
import hashlib
import http.client
import json
import os
import ssl
import time
import urllib.parse
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from criproxy import __version__
from criproxy.commands.simulate import SimulateError
from criproxy.commands.simulate.readers import matrix, warnings

TIMEOUT_S: Final = 120.0
"""Prometheus itself gives up after 120 s by default."""

MOST_ANSWER: Final = 64 << 20
"""Bytes."""

MOST_ANSWER_S: Final = 600.0
"""For the whole of an answer, which may come byte by byte."""

MOST_POINTS: Final = 10_000
"""Of one series; Prometheus refuses 11,000."""

PIECE_SAMPLES: Final = 200_000
"""An answer is to have no more, so that it takes some 10 MB as text."""

LENGTHS_S: Final = (86400, 21600, 3600)

SETTLED_S: Final = 7200.0
"""What is older does not change any more, and may be kept. After an outage, Prometheus sends by remote write what its
write-ahead log still has, which is two hours. Source: Prometheus, practices/remote_write.
"""

KEPT_S: Final = 14 * 86400.0

MOST_WARNINGS: Final = 5


class PrometheusAddress(Struct, frozen=True):
    """Where a Prometheus is, and by what we are let in; "": nothing of it.

    `token_file` holds a bearer token, `ca_file` who signed its certificate, `certificate` and `key` are our own.
    """

    url: str
    token_file: str = ""
    ca_file: str = ""
    certificate: str = ""
    key: str = ""


class Prometheus:
    """Methods raise SimulateError, with what to do, when there is no answer that can be used.

    `warnings` came with answers, which are then not kept: with one, Thanos answers without a store that is away.
    """

    def __init__(self, address: PrometheusAddress, cache: Path | None) -> None:
        parts = urllib.parse.urlsplit(address.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SimulateError(f"--prometheus {address.url}: give http://HOST:PORT or https://HOST:PORT")
        if parts.query or parts.fragment or parts.username:
            raise SimulateError(
                f"--prometheus {address.url}: give its address alone; a token belongs into --token-file"
            )
        self.url: Final = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._parts, self._path = parts, parts.path.rstrip("/")
        self._headers = {"User-Agent": f"criproxy-advise/{__version__}", "Accept": "application/json"}
        if address.token_file:
            self._headers["Authorization"] = f"Bearer {_token(address.token_file)}"
            if parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "::1", "localhost"):
                raise SimulateError(f"--prometheus {address.url}: a token is not sent without TLS; give https://")
        self._context = _context(address) if parts.scheme == "https" else None
        self._cache = None if cache is None else _made(cache)
        self.warnings: list[str] = []
        """Those that differ, and no more than `MOST_WARNINGS`."""

    def instant(self, query: str, at_s: float) -> list[Mapping[str, Any]]:
        """The series of an instant vector, each with `metric` and `value`."""
        data = _data(self._asked("query", {"query": query, "time": f"{at_s:.0f}"}), self.url)
        result = data.get("result")
        if data.get("resultType") != "vector" or not isinstance(result, list):
            raise SimulateError(f"{self.url}: {query} is no vector; a --query has a value for each node")
        return result

    def pieces(
        self, query: str, start_s: float, end_s: float, step_s: int, series: int
    ) -> Iterator[Sequence[Mapping[str, Any]]]:
        """The matrix of each piece of the time in turn, of so many `series`. Times are multiples of `step_s`, `end_s`
        included."""
        length_s = next((one for one in LENGTHS_S if one / step_s * series <= PIECE_SAMPLES), LENGTHS_S[-1])
        length_s = max(step_s, min(length_s, MOST_POINTS * step_s) // step_s * step_s)
        at_s = int(start_s // length_s * length_s)
        while at_s <= end_s:
            first = max(at_s, -int(-start_s // step_s) * step_s)
            last = min(at_s + length_s - step_s, int(end_s // step_s) * step_s)
            if first <= last:
                asked = {"query": query, "start": str(first), "end": str(last), "step": str(step_s)}
                text = self._kept(asked, settled=last < time.time() - SETTLED_S)
                yield [] if not _data(text, self.url).get("result") else matrix(json.loads(text), self.url)
            at_s += length_s

    def _kept(self, asked: Mapping[str, str], *, settled: bool) -> bytes:
        """The answer, of the cache if it has it. Raises SimulateError."""
        file = None
        if self._cache is not None and settled:
            name = hashlib.sha256(json.dumps([self.url, asked], sort_keys=True).encode()).hexdigest()
            file = self._cache / f"{name}.json.gz"
            try:
                with gzip.open(file) as kept:
                    text = kept.read(MOST_ANSWER + 1)
                whole = len(text) <= MOST_ANSWER and json.loads(text).get("status") == "success"
                if whole and not _warnings(text):
                    return text
            except (OSError, EOFError, ValueError, AttributeError, RecursionError, zlib.error):  # it is not whole
                pass
        text = self._asked("query_range", asked)
        if file is not None and not _warnings(text):
            _keep(file, text)
        return text

    def _asked(self, what: str, asked: Mapping[str, str]) -> bytes:
        host, port = self._parts.hostname, self._parts.port
        assert host is not None
        connection = (
            http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
            if self._context is None
            else http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=self._context)
        )
        try:
            # Thanos is to answer in full or not at all; others pass over what they don't know.
            parameters = urllib.parse.urlencode({**asked, "partial_response": "false"})
            path = f"{self._path}/api/v1/{what}?{parameters}"
            connection.request("GET", path, headers=self._headers)
            answer = connection.getresponse()
            text = _within(answer, time.monotonic() + MOST_ANSWER_S)
        except ssl.SSLCertVerificationError as error:
            why = error.verify_message or error
            raise SimulateError(f"{self.url}: its certificate is not trusted ({why}); give --ca-file") from error
        except (OSError, http.client.HTTPException) as error:
            raise SimulateError(f"{self.url}: does not answer ({error}); is the address right?") from error
        finally:
            connection.close()
        if len(text) > MOST_ANSWER:
            raise SimulateError(
                f"{self.url}: an answer of more than {MOST_ANSWER >> 20} MiB; narrow it with --selector, or give a "
                "longer --step"
            )
        self._check(answer, text, asked["query"])
        for warning in _warnings(text):
            if warning not in self.warnings and len(self.warnings) < MOST_WARNINGS:
                self.warnings.append(warning)
        return text

    def _check(self, answer: http.client.HTTPResponse, text: bytes, query: str) -> None:
        """Raises SimulateError for what is no success."""
        if answer.status == 200:
            return
        if 300 <= answer.status < 400:
            raise SimulateError(
                f"{self.url}: leads on to {answer.headers.get('Location', '?')[:200]}; give that address"
            )
        if answer.status in (401, 403):
            raise SimulateError(
                f"{self.url}: lets nobody in without a word (status {answer.status}); give --token-file, or "
                "--certificate and --key"
            )
        try:
            said = str(json.loads(text)["error"])
        except (ValueError, KeyError, TypeError, RecursionError):
            said = " ".join(text[:200].decode(errors="replace").split())
        raise SimulateError(f"{self.url}: answers {answer.status} to {query}: {said[:300]}")


def _within(answer: http.client.HTTPResponse, end_s: float) -> bytes:
    """The answer, or more than `MOST_ANSWER` of it. Raises OSError where it has not come by then."""
    parts, size = [], 0
    while size <= MOST_ANSWER and (part := answer.read1(1 << 20)):
        parts.append(part)
        size += len(part)
        if time.monotonic() > end_s:
            raise TimeoutError(f"not all of the answer in {MOST_ANSWER_S:g} s")
    return b"".join(parts)


def _data(text: bytes, url: str) -> Mapping[str, Any]:
    """Raises SimulateError where it is no answer of Prometheus'."""
    try:
        data = json.loads(text)["data"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        shown = " ".join(text[:80].decode(errors="replace").split())
        raise SimulateError(f"{url}: does not answer as Prometheus does ({shown!r}); is it one?") from error
    if not isinstance(data, dict):
        raise SimulateError(f"{url}: does not answer as Prometheus does; is it one?")
    return data


def _warnings(text: bytes) -> list[str]:
    """Those of an answer; none where it is no answer, which `_data` says."""
    if b'"warnings"' not in text:  # parsing takes long
        return []
    try:
        return warnings(json.loads(text))
    except (ValueError, RecursionError):
        return []


def _token(file: str) -> str:
    try:
        with open(file, encoding="ascii") as lines:
            token = lines.read(1 << 16).strip()
    except (OSError, ValueError) as error:
        raise SimulateError(f"--token-file {file}: {getattr(error, 'strerror', None) or 'is no text'}") from error
    if not token or any(one.isspace() for one in token):
        raise SimulateError(f"--token-file {file}: holds no token, or more than one; write one line")
    return token


def _context(address: PrometheusAddress) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=address.ca_file or None)
        if address.certificate:
            context.load_cert_chain(address.certificate, address.key or None, password=_no_password)
    except OSError as error:  # ssl.SSLError is one
        named = " ".join(filter(None, (address.ca_file, address.certificate, address.key)))
        why = error.strerror or error
        raise SimulateError(f"{named}: can't be used ({why}); give PEM files, the key without a password") from error
    return context


def _no_password() -> str:
    """Asked for where a key has one; else OpenSSL asks at the terminal."""
    return ""


def _made(cache: Path) -> Path | None:
    """The folder, without what is old; None: there can be none, and every query goes out each time."""
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        for file in cache.glob("*.json.gz"):
            if file.stat().st_mtime < time.time() - KEPT_S:
                file.unlink()
    except OSError:
        return None
    return cache


def _keep(file: Path, text: bytes) -> None:
    """All of it, or nothing; a disk that is full hinders nobody."""
    part = file.with_suffix(f".{os.getpid()}")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as out:
            out.write(gzip.compress(text, 1))
        part.replace(file)
    except OSError:
        part.unlink(missing_ok=True)
