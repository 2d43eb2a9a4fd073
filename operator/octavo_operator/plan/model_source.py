"""How a pod comes to its model: the container that fetches it, its credentials, and the claim that keeps the files."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_operator.api.engine_section import Runtime
from octavo_operator.api.model_section import ModelSection, claim_path

from . import server_contract as contract
from .manifest import Manifest

_S3_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_S3_OPTIONAL_KEYS = ("AWS_SESSION_TOKEN", "AWS_REGION")


def is_fetched(model: ModelSection) -> bool:
    """Whether pods fetch the model from elsewhere before they serve."""
    return model.uri.startswith(("hf://", "s3://"))


def credentials(model: ModelSection, proxy: Sequence[tuple[str, str]] = ()) -> list[Manifest]:
    """Environment of the containers that talk to the model's source, and of no other."""
    entries: list[Manifest] = [{"name": name, "value": value} for name, value in proxy if is_fetched(model)]
    hub = model.uri.startswith("hf://")
    if model.endpoint is not None and is_fetched(model):
        entries.append(
            {"name": contract.HUB_ENDPOINT_ENV if hub else contract.S3_ENDPOINT_ENV, "value": model.endpoint}
        )
    if model.secret_ref is None:
        return entries
    secret = model.secret_ref.name
    if hub:
        entries.append(_from_secret(contract.HUB_TOKEN_ENV, secret, contract.HUB_TOKEN_KEY))
    elif model.uri.startswith("s3://"):
        entries += [_from_secret(key, secret, key) for key in _S3_KEYS]
        entries += [_from_secret(key, secret, key, optional=True) for key in _S3_OPTIONAL_KEYS]
    return entries


def _from_secret(variable: str, secret: str, key: str, *, optional: bool = False) -> Manifest:
    reference: Manifest = {"name": secret, "key": key}
    if optional:
        reference["optional"] = True
    return {"name": variable, "valueFrom": {"secretKeyRef": reference}}


def model_location(model: ModelSection) -> str:
    """The model as the container sees it (wire contract)."""
    where = claim_path(model.uri)
    if where is not None:
        return f"{contract.MODELS_FOLDER}/{where.claim}/{where.path}"
    if model.uri.startswith("file://"):
        return model.uri.removeprefix("file://")
    return f"{contract.CACHE_FOLDER}/model"


def model_volume(model: ModelSection) -> tuple[list[Manifest], list[Manifest]]:
    """(volumes, mounts for reading) of a model on a claim, or of the claim that keeps fetched files; both may be empty.

    The container that fetches mounts the latter for writing (`store_mounts`).
    """
    where = claim_path(model.uri)
    if where is not None:
        volume = {"name": "model", "persistentVolumeClaim": {"claimName": where.claim, "readOnly": True}}
        mount = {"name": "model", "mountPath": f"{contract.MODELS_FOLDER}/{where.claim}", "readOnly": True}
        return [volume], [mount]
    if model.cache_claim is None or not is_fetched(model):
        return [], []
    volume = {"name": "store", "persistentVolumeClaim": {"claimName": model.cache_claim}}
    return [volume], [{"name": "store", "mountPath": contract.STORE_FOLDER, "readOnly": True}]


def store_mounts(model: ModelSection) -> list[Manifest]:
    """Mounts of the container that fetches, beside those of scratch folders."""
    if model.cache_claim is None or not is_fetched(model):
        return []
    return [{"name": "store", "mountPath": contract.STORE_FOLDER}]


def fetch_arguments(model: ModelSection, runtime: Runtime) -> list[str]:
    """Arguments of `octavo-server` in the container that fetches."""
    words = ["fetch", "--model", escaped(model.uri), "--to", model_location(model), "--format", model.format.value]
    if model.revision:
        words += ["--revision", escaped(model.revision)]
    if model.cache_claim is not None:
        words += ["--cache", contract.STORE_FOLDER]
    return [*words, *for_runtime(runtime), "--progress-address", f"$(POD_IP):{contract.PORT}"]


def for_runtime(runtime: Runtime) -> list[str]:
    """Arguments that say that another program will serve the model, which may know other architectures."""
    return [] if runtime == Runtime.OCTAVO else ["--runtime", runtime.value]


def escaped(text: str) -> str:
    """A text as an argument: `$` would start a reference to a variable."""
    return text.replace("$", "$$")
