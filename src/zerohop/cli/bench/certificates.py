"""Makes the certificate of the floor that goes through TLS; uses no zerohop code."""

from __future__ import annotations

import datetime as dt


def self_signed() -> tuple[bytes, bytes]:
    """Return a certificate (DER) that is valid for a day, and its Ed25519 key."""
    # Few rows need this package, which an extra brings.
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import NameOID

    key = Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "floor")])
    now = dt.datetime.now(dt.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .sign(key, None)
    )
    seed = key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
    return made.public_bytes(Encoding.DER), seed
