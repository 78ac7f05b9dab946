"""The webhook's own certificate authority: keys and certificates, and when they have to be made anew.

How it works
------------
One Secret has `ca.crt` (the authorities, newest first) and `ca.key` (of the newest), another `tls.crt` and `tls.key`.
`next_step` says what is to be done, given the two and the bundle that the webhook's configuration has, which is what
the API server trusts:

1. no authority, or the newest ends within a year, or has not begun: a new one before the others, which stay while they
   are valid;
2. the configuration has another bundle: write ours into it;
3. no certificate, or it is past two thirds of its life, has not begun, or is of an older authority: a new one by the
   newest authority.

A certificate is thus only ever signed by an authority that the API server trusts already, and the old one stays valid
meanwhile: no call fails when keys are rotated. What is damaged in a Secret counts as missing.

Clocks differ: what is made is valid since `EARLIER`, so that an API server whose clock is that much behind takes it.
What was made by a clock that was further ahead is replaced the next time.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

AUTHORITY_LIFE: Final = timedelta(days=3650)
AUTHORITY_LEFT: Final = timedelta(days=365)
CERTIFICATE_LIFE: Final = timedelta(days=90)
CERTIFICATE_LEFT: Final = CERTIFICATE_LIFE / 3
EARLIER: Final = timedelta(days=1)


class Step(Enum):
    """What is to be done next, by the list above."""

    AUTHORITY = "a new authority"
    BUNDLE = "the bundle into the webhook's configuration"
    CERTIFICATE = "a new certificate"
    NOTHING = "nothing"


class Tls(Struct, frozen=True):
    """The four entries of both Secrets, PEM; b"" for what is missing."""

    authorities: bytes = b""
    authority_key: bytes = b""
    certificate: bytes = b""
    key: bytes = b""

    @classmethod
    def of(cls, entries: Mapping[str, bytes]) -> "Tls":
        return cls(*(entries.get(name, b"") for name in ("ca.crt", "ca.key", "tls.crt", "tls.key")))

    @property
    def of_authority(self) -> dict[str, bytes]:
        return {"ca.crt": self.authorities, "ca.key": self.authority_key}

    @property
    def of_server(self) -> dict[str, bytes]:
        return {"tls.crt": self.certificate, "tls.key": self.key}


def next_step(tls: Tls, trusted: bytes, now: datetime) -> Step:
    newest = _newest(tls)
    if newest is None or newest.not_valid_after_utc - now < AUTHORITY_LEFT or newest.not_valid_before_utc > now:
        return Step.AUTHORITY
    if trusted != tls.authorities:
        return Step.BUNDLE
    current = _certificate(tls)
    if current is None or not _signed_by(current, newest):
        return Step.CERTIFICATE
    due = current.not_valid_after_utc - now < CERTIFICATE_LEFT or current.not_valid_before_utc > now
    return Step.CERTIFICATE if due else Step.NOTHING


def with_authority(tls: Tls, now: datetime) -> Tls:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"criproxy-webhook-ca {now:%Y-%m-%dT%H:%M:%SZ}")])
    made = (
        _builder(name, name, key.public_key(), now, AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    others = b"".join(_pem(one) for one in _certificates(tls.authorities) if one.not_valid_after_utc > now)
    return Tls(_pem(made) + others, _key_pem(key), tls.certificate, tls.key)


def with_certificate(tls: Tls, names: tuple[str, ...], now: datetime) -> Tls:
    """`names` are the service's. Raises ValueError without an authority."""
    authority = _newest(tls)
    if authority is None:
        raise ValueError("there is no authority to sign with")
    signer = serialization.load_pem_private_key(tls.authority_key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    made = (
        _builder(subject, authority.subject, key.public_key(), now, CERTIFICATE_LIFE)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(_usage(signs=False), critical=True)
        .sign(signer, hashes.SHA256())
    )
    return Tls(tls.authorities, tls.authority_key, _pem(made), _key_pem(key))


def _newest(tls: Tls) -> x509.Certificate | None:
    """The newest authority, if its key is there."""
    found = _keyed(tls.authorities, tls.authority_key)
    return found if found and isinstance(found.public_key(), ec.EllipticCurvePublicKey) else None


def _certificate(tls: Tls) -> x509.Certificate | None:
    return _keyed(tls.certificate, tls.key)


def _keyed(certificates: bytes, key: bytes) -> x509.Certificate | None:
    """The first of them, if this is its key."""
    found = _certificates(certificates)
    try:
        public = serialization.load_pem_private_key(key, None).public_key()
    except ValueError:
        return None
    return found[0] if found and found[0].public_key() == public else None


def _signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _certificates(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before((now - EARLIER).astimezone(UTC))
        .not_valid_after((now + life).astimezone(UTC))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
