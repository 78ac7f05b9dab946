from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from criproxy_cluster.certificates.authority import (
    AUTHORITY_LEFT,
    AUTHORITY_LIFE,
    CERTIFICATE_LEFT,
    CERTIFICATE_LIFE,
    Step,
    Tls,
    next_step,
    with_authority,
    with_certificate,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ("criproxy-cluster.criproxy-system.svc",)


def made(now=NOW):
    return with_certificate(with_authority(Tls(), now), NAMES, now)


def test_the_steps_from_nothing_lead_to_a_certificate_that_is_trusted_before_it_serves():
    tls, trusted, done = Tls(), b"", []
    while (step := next_step(tls, trusted, NOW)) is not Step.NOTHING:
        done.append(step)
        if step is Step.AUTHORITY:
            tls = with_authority(tls, NOW)
        elif step is Step.BUNDLE:
            trusted = tls.authorities
        else:
            tls = with_certificate(tls, NAMES, NOW)

    assert done == [Step.AUTHORITY, Step.BUNDLE, Step.CERTIFICATE]


TLS = made()
LATER = {
    "fresh": (TLS, TLS.authorities, NOW, Step.NOTHING),
    "past two thirds": (
        TLS,
        TLS.authorities,
        NOW + CERTIFICATE_LIFE - CERTIFICATE_LEFT + timedelta(hours=1),
        Step.CERTIFICATE,
    ),
    "an authority at its end": (
        TLS,
        TLS.authorities,
        NOW + AUTHORITY_LIFE - AUTHORITY_LEFT + timedelta(hours=1),
        Step.AUTHORITY,
    ),
    "another bundle": (TLS, b"other", NOW, Step.BUNDLE),
    "of an older authority": (
        with_authority(TLS, NOW),
        None,
        NOW,
        Step.CERTIFICATE,
    ),
    "a key of another": (
        Tls(TLS.authorities, TLS.authority_key, TLS.certificate, made().key),
        None,
        NOW,
        Step.CERTIFICATE,
    ),
    "an authority without its key": (Tls(TLS.authorities, b"", TLS.certificate, TLS.key), None, NOW, Step.AUTHORITY),
    "an authority with another's key": (
        Tls(TLS.authorities, made().authority_key, TLS.certificate, TLS.key),
        None,
        NOW,
        Step.AUTHORITY,
    ),
    "made by a clock that is two days ahead": (made(NOW + timedelta(days=2)), None, NOW, Step.AUTHORITY),
    "a certificate by a clock that is two days ahead": (
        with_certificate(TLS, NAMES, NOW + timedelta(days=2)),
        None,
        NOW,
        Step.CERTIFICATE,
    ),
    "made by a clock that is an hour ahead": (made(NOW + timedelta(hours=1)), None, NOW, Step.NOTHING),
    "damaged": (Tls(b"x", b"y", b"z", b"k"), b"x", NOW, Step.AUTHORITY),
}


@pytest.mark.parametrize(("tls", "trusted", "now", "step"), LATER.values(), ids=LATER)
def test_what_is_due_is_seen(tls, trusted, now, step):
    assert next_step(tls, tls.authorities if trusted is None else trusted, now) is step


def test_an_old_authority_is_trusted_until_it_ends():
    later = NOW + AUTHORITY_LIFE - timedelta(days=10)
    both = with_authority(TLS, later)

    assert both.authorities.endswith(TLS.authorities)
    assert len(x509.load_pem_x509_certificates(both.authorities)) == 2
    assert (both.certificate, both.key) == (TLS.certificate, TLS.key), "it serves until the new one is trusted"
    after = with_authority(both, NOW + AUTHORITY_LIFE + timedelta(days=1))
    assert len(x509.load_pem_x509_certificates(after.authorities)) == 2


@pytest.mark.parametrize("hours", [-12, -1, 0, 1, 12])
def test_what_is_made_by_a_wrong_clock_is_valid_at_once(hours):
    tls = made(NOW + timedelta(hours=hours))

    for pem in (tls.authorities, tls.certificate):
        (found,) = x509.load_pem_x509_certificates(pem)
        assert found.not_valid_before_utc <= NOW < found.not_valid_after_utc
