"""What an administrator lets users choose: images, extra arguments, priority, taints and devices."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Sequence
from urllib.parse import urlsplit

from octavo_operator.api.inference_service import InferenceServiceSpec
from octavo_operator.api.placement_section import Resources, Toleration, TolerationOperator

from .admission import VENDOR_TAINTS
from .facts import PlanSettings

EVERYTHING = "*"
SYSTEM_PRIORITY = "system-"
"""Priority classes of Kubernetes itself, which displace anybody: `*` does not mean them."""
ORDINARY_RESOURCES = ("cpu", "memory", "ephemeral-storage")

_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?"
_REFERENCE = re.compile(
    rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(?:@[a-z0-9]+(?:[.+_-][a-z0-9]+)*:[0-9a-f]{{32,}})?"
)


def is_reference(text: str) -> bool:
    """Whether a text is an image's name as registries and runtimes understand it: no empty part, no `..`, one tag, one
    digest. Anything else may mean one thing here and another one there."""
    return _REFERENCE.fullmatch(text) is not None


def repository(reference: str) -> str:
    """An image's name without tag and digest."""
    name = reference.split("@", 1)[0]
    head, slash, last = name.rpartition("/")
    return f"{head}{slash}{last.split(':', 1)[0]}"


def begins_with(reference: str, prefix: str) -> bool:
    """Whether an image lies below a prefix: `r/team` admits r/team/x and r/team:1, and not r/team-of-others/x; `r` does
    not admit r:5000/x, which is another registry."""
    if prefix == EVERYTHING:
        return True
    if not prefix or not reference.startswith(prefix):
        return False
    rest = reference[len(prefix) :]
    if prefix.endswith(("/", ":", "@")) or rest == "" or rest.startswith("/"):
        return True
    return rest.startswith((":", "@")) and "/" not in rest


def _image(spec: InferenceServiceSpec, settings: PlanSettings) -> Iterable[str]:
    reference = spec.image.reference
    if reference is None:
        return
    if not is_reference(reference):
        yield f"image.reference {reference} is no image's name; write registry/name:tag or registry/name@sha256:…"
        return
    known = {repository(image.image) for image in settings.images}
    if repository(reference) in known or any(begins_with(reference, each) for each in settings.image_prefixes):
        return
    allowed = ", ".join(settings.image_prefixes) or "none beside the catalogue's repositories"
    yield f"image.reference {reference} is not below an allowed prefix (policy.imagePrefixes: {allowed})"


def lies_below(path: str, folder: str) -> bool:
    """Whether a path, with its `..` followed, is a folder or lies in it; `*` holds everything."""
    if folder == EVERYTHING:
        return True
    clean, whole = posixpath.normpath(path), posixpath.normpath(folder)
    return clean == whole or clean.startswith(whole.rstrip("/") + "/")


def _files(spec: InferenceServiceSpec, settings: PlanSettings) -> Iterable[str]:
    named = [("model.uri", spec.model.uri), *(("model.adapters", item.uri) for item in spec.model.adapters)]
    for field, uri in named:
        path = uri.removeprefix("file://")
        if path != uri and not any(lies_below(path, folder) for folder in settings.file_prefixes):
            yield f"{field} {uri} (policy.filePrefixes: {', '.join(settings.file_prefixes) or 'none'})"


def _arguments(spec: InferenceServiceSpec, settings: PlanSettings) -> Iterable[str]:
    allowed = settings.argument_prefixes
    flags = [text for text in spec.engine.extra_args if text.startswith("-") and not re.fullmatch(r"-[0-9.]+", text)]
    refused = [text for text in flags if not any(each == EVERYTHING or text.startswith(each) for each in allowed)]
    if refused:
        listed = ", ".join(allowed) or "none"
        yield f"engine.extraArgs holds {', '.join(refused)} (policy.argumentPrefixes: {listed})"


def endpoint_allowed(endpoint: str, allowed: Sequence[str]) -> bool:
    """Whether an address lies below an allowed one: `https://m.example` admits https://m.example/hub, and neither
    https://m.example.evil.com nor another port."""
    given, bounds = urlsplit(endpoint), map(urlsplit, allowed)
    return EVERYTHING in allowed or any(
        given[:2] == bound[:2] and lies_below(given.path or "/", bound.path or "/") for bound in bounds
    )


def _endpoint(spec: InferenceServiceSpec, settings: PlanSettings) -> Iterable[str]:
    # The hub's token goes to the address as it is, and the key `token` is in every Secret of a service account. To a
    # store that speaks S3 only signatures go.
    model = spec.model
    allowed = tuple(filter(None, (*settings.token_endpoints, settings.hub_endpoint)))
    if model.endpoint is None or model.secret_ref is None or not model.uri.startswith("hf://"):
        return
    if not endpoint_allowed(model.endpoint, allowed):
        listed = ", ".join(allowed) or "none"
        yield (
            f"model.endpoint {model.endpoint} would be sent the token of Secret {model.secret_ref.name} "
            f"(policy.tokenEndpoints: {listed}); without model.secretRef it is allowed"
        )


def _priority(spec: InferenceServiceSpec, settings: PlanSettings) -> Iterable[str]:
    name, allowed = spec.placement.priority_class_name, settings.priority_classes
    if name is None or name in allowed or (EVERYTHING in allowed and not name.startswith(SYSTEM_PRIORITY)):
        return
    yield f"placement.priorityClassName {name} (policy.priorityClasses: {', '.join(allowed) or 'none'})"


def tolerates_only(toleration: Toleration, allowed: Sequence[str]) -> bool:
    """Whether a toleration accepts no taint beyond those allowed, each a key, or `key=value` for that value alone."""
    if EVERYTHING in allowed:
        return True
    if toleration.key is None:
        return False
    if toleration.key in allowed:
        return True
    exact = toleration.operator == TolerationOperator.EQUAL
    return exact and f"{toleration.key}={toleration.value or ''}" in allowed


def _written(toleration: Toleration) -> str:
    if toleration.key is None:
        return "every taint"
    return f"{toleration.key}={toleration.value}" if toleration.value else toleration.key


def _tolerations(spec: InferenceServiceSpec, settings: PlanSettings) -> Iterable[str]:
    # Pods with an accelerator tolerate its vendor's taint anyhow.
    allowed = (*settings.tolerations, *VENDOR_TAINTS.values())
    refused = [_written(each) for each in spec.placement.tolerations if not tolerates_only(each, allowed)]
    if refused:
        listed = ", ".join(settings.tolerations) or "none beside the accelerators' own taints"
        yield f"placement.tolerations accepts {', '.join(refused)} (policy.tolerations: {listed})"


def _resources(spec: InferenceServiceSpec, settings: PlanSettings) -> Iterable[str]:
    # A device plugin's resource puts a device of the host into the container.
    given: Resources = spec.placement.resources
    names = sorted({*given.requests, *given.limits})
    refused = [
        name
        for name in names
        if not name.startswith("hugepages-")
        and name not in ORDINARY_RESOURCES
        and name not in settings.resources
        and EVERYTHING not in settings.resources
    ]
    if refused:
        listed = ", ".join(settings.resources) or "none beside cpu, memory, ephemeral-storage and hugepages-…"
        yield f"placement.resources names {', '.join(refused)} (policy.resources: {listed})"


_RULES: tuple[Callable[[InferenceServiceSpec, PlanSettings], Iterable[str]], ...] = (
    _image,
    _endpoint,
    _files,
    _arguments,
    _priority,
    _tolerations,
    _resources,
)


def refusals(spec: InferenceServiceSpec, settings: PlanSettings) -> list[str]:
    """A sentence per thing that the administrator does not allow."""
    return [sentence for rule in _RULES for sentence in rule(spec, settings)]
