"""What a listener shows to a client that trusts certain authorities."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

HOST = "127.0.0.1"


def client_identity(now: datetime) -> tuple[bytes, bytes]:
    """PEM of a client's certificate, which is its own authority, and of its key with it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kube-apiserver")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(key, SHA256())
        .public_bytes(Encoding.PEM)
    )
    return certificate, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + certificate


@asynccontextmanager
async def served(context: ssl.SSLContext) -> AsyncIterator[int]:
    """The port of a listener that says `served`."""

    async def say(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"served")
        writer.close()

    server = await asyncio.start_server(say, HOST, 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def trusts(authorities: bytes, port: int, name: str = HOST, shows: Path | None = None) -> bool:
    """Whether a client that trusts these gets its answer from the server called `name`; it `shows` a certificate."""
    context = ssl.create_default_context(cadata=authorities.decode())
    if shows is not None:
        context.load_cert_chain(shows)
    try:
        reader, writer = await asyncio.open_connection(HOST, port, ssl=context, server_hostname=name)
    except (ssl.SSLError, ConnectionError):
        return False
    try:
        return await reader.read() == b"served"
    except (ssl.SSLError, ConnectionError):
        return False
    finally:
        writer.close()
