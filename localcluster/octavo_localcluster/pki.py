"""Keys and certificates of one cluster: a certificate authority for Kubernetes, one for etcd, and what they sign."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from octavo_localcluster.agent_config import Identity

VALID_DAYS = 3650


@dataclass(frozen=True)
class Authority:
    """A certificate authority whose files lie in `folder`."""

    folder: Path
    name: str
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def path(self) -> Path:
        """The authority's certificate (PEM)."""
        return self.folder / f"{self.name}.crt"

    def client(self, file_name: str, user: str, groups: Sequence[str] = ()) -> Identity:
        """A client certificate: `user` becomes the user's name in Kubernetes, `groups` its groups."""
        attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, user)])
        return self._sign(file_name, subject, (), (ExtendedKeyUsageOID.CLIENT_AUTH,))

    def server(self, file_name: str, hosts: Sequence[str], *, also_client: bool = False) -> Identity:
        """A server certificate for names and IP addresses."""
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, file_name)])
        client = (ExtendedKeyUsageOID.CLIENT_AUTH,) if also_client else ()
        return self._sign(file_name, subject, hosts, (ExtendedKeyUsageOID.SERVER_AUTH, *client))

    def _sign(
        self, file_name: str, subject: x509.Name, hosts: Sequence[str], usages: Sequence[x509.ObjectIdentifier]
    ) -> Identity:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(subject, self.certificate.subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False
            )
        certificate = builder.sign(self.key, hashes.SHA256())
        identity = Identity(certificate=self.folder / f"{file_name}.crt", key=self.folder / f"{file_name}.key")
        identity.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        write_private(identity.key, _private_pem(key))
        return identity


def make_authority(folder: Path, name: str) -> Authority:
    """A new authority; writes `<name>.crt`. Its key is kept in memory alone."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"octavo-localcluster-{name}")])
    certificate = (
        _builder(subject, subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_ca_usage(), critical=True)
        .sign(key, hashes.SHA256())
    )
    authority = Authority(folder, name, certificate, key)
    authority.path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return authority


def make_signing_key(folder: Path, name: str) -> Identity:
    """A key pair for service-account tokens: `key` signs, `certificate` holds the public key (PEM)."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pair = Identity(certificate=folder / f"{name}.pub", key=folder / f"{name}.key")
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    pair.certificate.write_bytes(public)
    write_private(pair.key, _private_pem(key))
    return pair


def write_private(path: Path, content: bytes) -> None:
    """Writes a file that only its owner can read, from its first byte on."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(content)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # An hour back: two processes' clocks may differ, and a machine may mend its clock after the start.
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _ca_usage() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )


def _private_pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
