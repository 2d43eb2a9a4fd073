"""Certificates say who may do what; addresses and ports are nobody else's."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from octavo_localcluster.kubeconfig import write_kubeconfig
from octavo_localcluster.network import (
    PORTS,
    NetworkError,
    busy_networks,
    claim_network,
    free_ports,
    port_is_free,
)
from octavo_localcluster.pki import make_authority, make_signing_key


def load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_a_client_certificate_carries_user_and_groups_and_is_verified_by_its_authority(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "ca")
    identity = authority.client("node-a", "system:node:a", ["system:nodes"])
    certificate = load(identity.certificate)
    subject = certificate.subject
    assert [name.value for name in subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == ["system:node:a"]
    assert [name.value for name in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)] == ["system:nodes"]
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate.verify_directly_issued_by(load(authority.path))


def test_a_server_certificate_is_good_for_its_names_and_addresses_only(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "ca")
    certificate = load(authority.server("api", ["kubernetes.default.svc", "127.0.0.1"]).certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["kubernetes.default.svc"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    certificate.verify_directly_issued_by(load(authority.path))


def test_no_authority_vouches_for_anothers_certificates(tmp_path: Path) -> None:
    kubernetes, etcd = make_authority(tmp_path, "ca"), make_authority(tmp_path, "etcd-ca")
    certificate = load(kubernetes.client("a", "a").certificate)
    certificate.verify_directly_issued_by(load(kubernetes.path))
    with pytest.raises(ValueError, match="[Ii]ssuer"):
        certificate.verify_directly_issued_by(load(etcd.path))


def test_private_keys_and_kubeconfigs_are_for_their_owner_alone(tmp_path: Path) -> None:
    authority = make_authority(tmp_path / "pki", "ca")
    identity = authority.client("admin", "admin", ["system:masters"])
    tokens = make_signing_key(tmp_path / "pki", "service-account")
    config = write_kubeconfig(tmp_path / "kubeconfig", "https://127.0.0.1:1", authority.path, identity, "admin")
    for path in (identity.key, tokens.key, config):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert not list((tmp_path / "pki").glob("ca.key")), "the authority's key is never written"


def test_a_kubeconfig_works_from_any_folder(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "ca")
    identity = authority.client("admin", "admin")
    path = write_kubeconfig(tmp_path / "kubeconfig", "https://127.0.0.1:1", authority.path, identity, "admin")
    content = yaml.safe_load(path.read_text())
    assert content["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:1"
    assert str(tmp_path) not in path.read_text()


def test_two_claims_never_get_the_same_network_and_a_released_one_is_free_again() -> None:
    first = claim_network()
    second = claim_network()
    try:
        assert first.cidr != second.cidr
    finally:
        second.release()
    again = claim_network()
    assert again.cidr == second.cidr
    again.release()
    first.release()


def test_a_network_in_which_someone_listens_is_left_alone() -> None:
    free = claim_network()
    free.release()
    with (
        socket.create_server((free.address(3, 9), 0)),
        pytest.raises(NetworkError, match="octavo-localcluster down"),
    ):
        claim_network([free.octet])
    claim_network([free.octet]).release()


def test_listeners_are_read_from_the_kernels_table() -> None:
    with socket.create_server(("127.251.3.9", 0)):
        assert 251 in busy_networks(Path("/proc/net/tcp").read_text())


def test_free_ports_are_different_outside_of_the_ranges_of_others_and_really_free() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(port in PORTS for port in ports)
    with socket.create_server(("127.0.0.1", ports[0])):
        assert not port_is_free(ports[0], "127.0.0.1")
        assert ports[0] not in free_ports(2000)
