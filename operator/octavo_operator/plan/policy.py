"""What an administrator lets users choose: images and extra arguments by their beginnings."""

from __future__ import annotations

import re
from collections.abc import Iterable

from octavo_operator.api.inference_service import InferenceServiceSpec

from .facts import PlanSettings

EVERYTHING = "*"


def repository(reference: str) -> str:
    """An image's name without tag and digest."""
    name = reference.split("@", 1)[0]
    head, slash, last = name.rpartition("/")
    return f"{head}{slash}{last.split(':', 1)[0]}"


def begins_with(reference: str, prefix: str) -> bool:
    """Whether an image lies below a prefix: `r/team` admits r/team/x and r/team:1, and not r/team-of-others/x."""
    if prefix == EVERYTHING:
        return True
    if not prefix or not reference.startswith(prefix):
        return False
    return prefix.endswith(("/", ":", "@")) or reference[len(prefix) : len(prefix) + 1] in ("", "/", ":", "@")


def _image_is_allowed(reference: str, settings: PlanSettings) -> bool:
    known = {repository(image.image) for image in settings.images}
    return repository(reference) in known or any(begins_with(reference, each) for each in settings.image_prefixes)


def _refused_flags(arguments: Iterable[str], settings: PlanSettings) -> list[str]:
    flags = [text for text in arguments if text.startswith("-") and not re.fullmatch(r"-[0-9.]+", text)]
    allowed = settings.argument_prefixes
    return [text for text in flags if not any(each == EVERYTHING or text.startswith(each) for each in allowed)]


def refusals(spec: InferenceServiceSpec, settings: PlanSettings) -> list[str]:
    """A sentence per thing that the administrator does not allow."""
    found: list[str] = []
    reference = spec.image.reference
    if reference is not None and not _image_is_allowed(reference, settings):
        allowed = ", ".join(settings.image_prefixes) or "none beside the catalogue's repositories"
        found.append(f"image.reference {reference} is not below an allowed prefix (policy.imagePrefixes: {allowed})")
    flags = _refused_flags(spec.engine.extra_args, settings)
    if flags:
        allowed = ", ".join(settings.argument_prefixes) or "none"
        found.append(f"engine.extraArgs holds {', '.join(flags)} (policy.argumentPrefixes: {allowed})")
    return found
