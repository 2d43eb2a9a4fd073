"""What all resource models share: a frozen base with camelCase names, and bounded field types.

Every string and every list has an upper bound, because the API server estimates the cost of validation rules from
these bounds and refuses a CRD whose rules might become too expensive.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

GROUP = "serving.octavo.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"


class Model(BaseModel):
    """A part of a resource. Unknown fields are ignored: the API server has pruned them before."""

    model_config = ConfigDict(
        frozen=True,
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
        extra="ignore",
    )


def rule(expression: str, message: str, **more: str) -> dict[str, str]:
    """One CEL rule (x-kubernetes-validations); the message names the field and the way out."""
    return {"rule": expression, "message": message, **more}


def rules(*entries: dict[str, str]) -> dict[str, Any]:
    """JSON schema extension with CEL rules, for a model's or a field's json_schema_extra."""
    return {"x-kubernetes-validations": list(entries)}


ATOMIC: dict[str, Any] = {"x-kubernetes-list-type": "atomic"}
SET: dict[str, Any] = {"x-kubernetes-list-type": "set"}


def keyed_by(*keys: str) -> dict[str, Any]:
    """JSON schema extension of a list whose items are told apart by these fields."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


PATTERN_WORDS = "x-octavo-pattern-words"
"""Key of a field's schema: what its pattern asks for, in words. The CRD gets a rule with them in its place."""


def in_words(words: str) -> dict[str, Any]:
    """JSON schema extension of a field with a pattern: the message when a value does not match, with the way out."""
    return {PATTERN_WORDS: words}


_NAME_WORDS = "must be a Kubernetes name: lower-case letters, digits, '-' and '.', with a letter or digit at both ends"
ObjectName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=253,
        pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$",
        json_schema_extra=in_words(_NAME_WORDS),
    ),
]
Capability = Annotated[
    str,
    Field(
        max_length=5,
        pattern=r"^[0-9]{1,2}\.[0-9]{1,2}$",
        json_schema_extra=in_words("must be a compute capability, major.minor, such as 8.0 or 9.0"),
    ),
]
CudaVersion = Annotated[
    str,
    Field(
        max_length=7,
        pattern=r"^[0-9]{2}\.[0-9]{1,2}$",
        json_schema_extra=in_words("must be a CUDA version, major.minor, such as 12.8 or 13.0"),
    ),
]
ShortText = Annotated[str, Field(max_length=256)]
_QUANTITY: dict[str, Any] = {
    "x-kubernetes-int-or-string": True,
    "maxLength": 32,
    "pattern": r"^[0-9]+(\.[0-9]+)?([EPTGMK]i|[mkMGTPE])?$",
    PATTERN_WORDS: "must be a Kubernetes quantity that is not negative, such as 500m, 2, 1.5Gi or 200M",
}
Quantity = Annotated[int | str, Field(json_schema_extra=_QUANTITY)]


class Switch(StrEnum):
    """An enum and not a boolean, so that a third way can be added."""

    ENABLED = "Enabled"
    DISABLED = "Disabled"


class SecretRef(Model):
    """A Secret of the service's namespace."""

    name: ObjectName
    """Name of the Secret."""


class SecretKeyRef(Model):
    """One key of a Secret of the service's namespace."""

    name: ObjectName
    """Name of the Secret."""
    key: Annotated[
        str,
        Field(
            min_length=1,
            max_length=253,
            pattern=r"^[-._a-zA-Z0-9]+$",
            json_schema_extra=in_words("must be a key of a Secret: letters, digits, '-', '_' and '.'"),
        ),
    ] = "api-key"
    """Key inside the Secret."""
