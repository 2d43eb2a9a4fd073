"""What tells that a sleeping service is wanted. A gateway that holds requests is one; the annotation is the first."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

from octavo_operator.plan.server_contract import PREFIX

from .policy import Wake

WAKE_ANNOTATION = PREFIX + "wake"
"""Set by whatever holds requests: the time (RFC 3339) at which the last one came, or empty before the first."""


class WakeSource(Protocol):
    """Whether something in front of a service holds requests while it has no replica."""

    def wake(self, service: Mapping[str, Any]) -> Wake | None:
        """None when nothing does: the service must then keep a replica."""
        ...


class AnnotationWake:
    """Reads the annotation of the InferenceService."""

    def wake(self, service: Mapping[str, Any]) -> Wake | None:
        """A text that is no time is a source that has not asked yet."""
        text = (service["metadata"].get("annotations") or {}).get(WAKE_ANNOTATION)
        if text is None:
            return None
        try:
            at = datetime.fromisoformat(text.strip())
        except ValueError:
            return Wake()
        return Wake(at.timestamp()) if at.tzinfo is not None else Wake()
