"""What is read of a certificate is what a library of certificates reads of it."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from criproxy_cluster.certificates.authority import Tls, with_authority, with_certificate
from criproxy_cluster.webhook.validity import validity

YEARS = (1970, 1999, 2026, 2049, 2060)
"""From 2050 on, times are written in another way."""


@pytest.mark.parametrize("year", YEARS)
def test_validity_is_what_cryptography_says(year):
    now = datetime(year, 7, 1, 12, 34, 56, tzinfo=UTC)
    pem = with_certificate(with_authority(Tls(), now), ("a",), now).of_server["tls.crt"]
    known = x509.load_pem_x509_certificates(pem)[0]
    found = tuple(datetime.fromtimestamp(one, UTC) for one in validity(pem))
    assert found == (known.not_valid_before_utc, known.not_valid_after_utc)
    assert found[0] <= now < found[1]
    assert found[1] - found[0] > timedelta(days=1)


def test_validity_of_anything_else_is_a_value_error():
    now = datetime(2026, 7, 1, tzinfo=UTC)
    pem = with_certificate(with_authority(Tls(), now), ("a",), now).of_server["tls.crt"]
    lines = pem.splitlines(keepends=True)
    for spoiled in (b"", b"\xff", lines[0] + lines[-1], b"".join(lines[:3]), lines[0] + lines[1] + lines[-1]):
        with pytest.raises(ValueError, match="it is no certificate"):
            validity(spoiled)
