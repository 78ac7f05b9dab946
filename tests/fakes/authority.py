"""A certificate authority, and what it signs, as PEM files."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """`certificate`: its own, in `folder`."""

    def __init__(self, folder: Path, name: str = "an authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = folder / f"{name}.crt"
        self.certificate.write_bytes(_pem(self._signed(self._name, self._key, ca=True)))

    def issue(self, name: str) -> tuple[Path, Path]:
        """A certificate and its key, for 127.0.0.1 and clients; what has this name is replaced."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        files = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        files[0].write_bytes(_pem(self._signed(subject, key, ca=False)))
        files[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return files

    def _signed(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, ca: bool) -> x509.Certificate:
        now = datetime.now(UTC)
        alternative = x509.SubjectAlternativeName([x509.DNSName("localhost")])
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(alternative, critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
