"""From when until when a certificate holds. Pure.

The ssl module says it of a peer's certificate only, and the webhook has no library of certificates: two times are read
of the DER. Source: RFC 5280 section 4.1, X.690.
"""

import ssl
from datetime import UTC, datetime
from typing import Final

_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_END: Final = "-----END CERTIFICATE-----"


def validity(pem: bytes) -> tuple[float, float]:
    """Of the first certificate, in seconds since 1970. Raises ValueError for what is none."""
    first, end, _ = pem.decode("ascii", "replace").partition(_END)
    try:
        der = ssl.PEM_cert_to_DER_cert(first[first.index("-----BEGIN CERTIFICATE-----") :] + end)
        _, certificate, _ = _element(der)
        _, body, _ = _element(certificate)
        tag, _, rest = _element(body)
        if tag == _VERSION:
            _, _, rest = _element(rest)  # past the serial number
        for _ in range(2):  # past the algorithm and the issuer
            _, _, rest = _element(rest)
        tag, times, _ = _element(rest)
        if tag != _SEQUENCE:
            raise ValueError("it has no validity")
        tag, begins, rest = _element(times)
        return _seconds(tag, begins), _seconds(*_element(rest)[:2])
    except (IndexError, ValueError) as error:
        raise ValueError(f"it is no certificate: {error}") from error


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """The tag and content of the first element, and what comes after it."""
    tag, size, begin = data[0], data[1], 2
    if size >= 0x80:
        begin += size & 0x7F
        size = int.from_bytes(data[2:begin])
    if begin + size > len(data):
        raise ValueError("it is cut off")
    return tag, data[begin : begin + size], data[begin + size :]


def _seconds(tag: int, text: bytes) -> float:
    said = text.decode("ascii")
    if tag == _UTC_TIME:  # 50 and above are of the last century
        said = f"{19 if int(said[:2]) >= 50 else 20}{said}"
    return datetime.strptime(said, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
