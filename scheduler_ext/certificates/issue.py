"""Makes and reads certificates with the `cryptography` library, and decides when to replace one (edge).

Each serving certificate has its own authority, whose key is deleted as soon as it has signed. So no second certificate
can be signed, and only the serving key is secret.
"""

# ruff: noqa: PLC0415 - the library is 10 MiB that a webhook needs only for its own certificate.

from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING

LIFETIME = timedelta(days=365)

CLOCK_SKEW = timedelta(hours=1)
"""The time by which a new certificate's validity begins earlier, for peers whose clocks are behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validity:
    """The statements of a certificate about itself."""

    not_before: datetime
    not_after: datetime
    names: frozenset[str]
    """DNS names and IP addresses that it may serve."""

    def renewed_at(self) -> datetime:
        """Returns the time when two thirds of its life have passed: one third is left to solve any problem."""
        return self.not_before + (self.not_after - self.not_before) * 2 / 3

    def is_good(self, now: datetime) -> bool:
        return self.not_before <= now < self.renewed_at()


def is_due(current: Validity | None, names: frozenset[str], now: datetime) -> bool:
    """Returns whether a new one is due. `current` is None if there is none that can be used. It must serve `names`."""
    return current is None or not names <= current.names or not current.is_good(now)


def names_to_serve(current: Validity | None, names: frozenset[str], now: datetime) -> frozenset[str]:
    """Names for a new certificate: ours, and those of a current one that is still valid. Otherwise two versions of the
    extender would replace each other's certificates in turn.
    """
    return names | current.names if current is not None and current.is_good(now) else names


if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

NAME = "topogpu-webhook"


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """One issue, in PEM: the certificates of the trusted authorities, newest first; a serving certificate of the first;
    its key.
    """

    authorities: bytes
    certificate: bytes
    key: bytes


def issue(names: frozenset[str], now: datetime, previous_authorities: bytes = b"") -> Issued:
    """Issue a certificate for these DNS names and IP addresses, valid for LIFETIME from `now`.

    The previous authority stays trusted until it expires: its certificate is still served in the meantime.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import ExtendedKeyUsageOID

    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = (
        _unsigned(f"{NAME}-ca", authority_key.public_key(), authority_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    certificate = (
        _unsigned(NAME, key.public_key(), authority_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in sorted(names)]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    trusted = [authority, *[old for old in _certificates(previous_authorities) if now < old.not_valid_after_utc][:1]]
    return Issued(
        authorities=b"".join(each.public_bytes(Encoding.PEM) for each in trusted),
        certificate=certificate.public_bytes(Encoding.PEM),
        key=key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


def read(issued: Issued) -> Validity | None:
    """Returns what the certificate states; None unless key, certificate and authority belong together."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        certificate = x509.load_pem_x509_certificate(issued.certificate)
        key = load_pem_private_key(issued.key, password=None)
        authority = x509.load_pem_x509_certificates(issued.authorities)[0]
        certificate.verify_directly_issued_by(authority)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.ExtensionNotFound):
        return None
    if certificate.public_key() != key.public_key():
        return None
    return Validity(
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        names=frozenset(str(name.value) for name in names),
    )


def _certificates(pem: bytes) -> "list[x509.Certificate]":
    """Returns the certificates in `pem`; none if it cannot be read."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []


def _unsigned(
    name: str, key: "EllipticCurvePublicKey", authority_key: "EllipticCurvePublicKey", now: datetime
) -> "x509.CertificateBuilder":
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(_common_name(name))
        .issuer_name(_common_name(f"{NAME}-ca"))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now - CLOCK_SKEW + LIFETIME)
        # Peers use these to distinguish authorities of the same name.
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key), critical=False)
    )


def _common_name(name: str) -> "x509.Name":
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _key_usage(*, signs_certificates: bool) -> "x509.KeyUsage":
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
