"""Settings of the operator process, from flags and the pod's own environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path

import yaml

from .plan import SAFE_ARGUMENTS, CatalogueImage, Egress

DEFAULT_ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"


class SettingsError(ValueError):
    """A setting that a person must correct; its text names setting, value and way out."""


class Unavailable(SettingsError):
    """The cluster as it is can't give what was asked for; its text says what is missing there."""


@dataclass(frozen=True)
class LeaseSettings:
    """Timing of leadership; the process ends when it could not renew for `renew_deadline_seconds`."""

    name: str = "octavo-operator"
    namespace: str = "octavo-system"
    identity: str = "octavo-operator"
    duration_seconds: float = 15.0
    renew_deadline_seconds: float = 10.0
    retry_seconds: float = 2.0


@dataclass(frozen=True)
class Settings:
    """Everything that `octavo-operator run` needs."""

    lease: LeaseSettings
    images: tuple[CatalogueImage, ...] = ()
    namespaces: tuple[str, ...] = ()
    """Namespaces to watch; empty = all."""
    nodes_access: bool = True
    monitoring_namespace: str | None = None
    gateway_namespace: str | None = None
    egress: tuple[Egress, ...] = ()
    pull_secrets: tuple[str, ...] = ()
    proxy: tuple[tuple[str, str], ...] = ()
    image_prefixes: tuple[str, ...] = ()
    token_endpoints: tuple[str, ...] = ()
    file_prefixes: tuple[str, ...] = ("*",)
    argument_prefixes: tuple[str, ...] = SAFE_ARGUMENTS
    cache_claim: str = ""
    hub_endpoint: str = ""
    priority_class: str = ""
    priority_classes: tuple[str, ...] = ()
    tolerations: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    calibration: str = "Accelerators"
    calibration_seconds: int = 300
    calibration_priority_class: str = ""
    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 4
    resync_seconds: float = 300.0
    account_folder: Path = Path(DEFAULT_ACCOUNT_FOLDER)


def read_catalogue(path: Path) -> tuple[CatalogueImage, ...]:
    """The images of the server from the chart's file; raises SettingsError."""
    try:
        text = path.read_text()
    except OSError as error:
        raise SettingsError(f"--catalogue {path}: can't be read ({error}); give the chart's images.yaml") from error
    return parse_catalogue(text, f"--catalogue {path}")


def parse_catalogue(text: str, path: str) -> tuple[CatalogueImage, ...]:
    """The images in the chart's YAML; `path` says in errors where the text comes from. Raises SettingsError."""
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SettingsError(f"{path}: can't be read as YAML ({error}); give the chart's images.yaml") from error
    entries = content.get("images") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not entries:
        raise SettingsError(f"{path}: holds no list `images`; give at least one image (name, image, cuda)")
    try:
        return tuple(CatalogueImage.parse(entry) for entry in entries)
    except ValueError as error:
        raise SettingsError(f"{path}: {error}") from error


def read_egress(text: str) -> tuple[Egress, ...]:
    """Addresses as `CIDR=PORT,…`, such as 10.1.2.3/32=3128; raises SettingsError."""
    found = []
    for part in filter(None, text.split(",")):
        cidr, _, port = part.rpartition("=")
        try:
            found.append(Egress(str(ip_network(cidr, strict=False)), int(port)))
        except ValueError as error:
            raise SettingsError(f"--egress {part}: {error}; write CIDR=PORT, such as 10.1.2.3/32=3128") from error
        if not 1 <= found[-1].port <= 65535:
            raise SettingsError(f"--egress {part}: the port must lie between 1 and 65535")
    return tuple(found)


def read_proxy(address: str, without: str) -> tuple[tuple[str, str], ...]:
    """Variables of the containers that fetch models; raises SettingsError."""
    if not address:
        return ()
    if not re.fullmatch(r"https?://[^\s/@]+(:[0-9]+)?/?", address):
        raise SettingsError(
            f"--model-proxy {address}: must be http:// or https://, a host and a port, without a password"
        )
    return (("HTTPS_PROXY", address), ("HTTP_PROXY", address), *((("NO_PROXY", without),) if without else ()))


def read_hub_endpoint(address: str) -> str:
    """A mirror of the Hub; raises SettingsError."""
    if address and not re.fullmatch(r"https?://[^\s/@]+(:[0-9]+)?(/[^\s?#]*)?", address):
        raise SettingsError(
            f"--hub-endpoint {address}: must be http:// or https:// and a host, such as https://hub.example"
        )
    return address.rstrip("/")


def account_folder(environment: Mapping[str, str]) -> Path:
    """Where this pod's service-account files lie."""
    return Path(environment.get("OCTAVO_SERVICEACCOUNT_DIR", DEFAULT_ACCOUNT_FOLDER))
