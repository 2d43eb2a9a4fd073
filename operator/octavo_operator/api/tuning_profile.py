"""TuningProfile: what a calibration measured for one kind of accelerator and one shape of model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .base import ATOMIC, Capability, CudaVersion, Model, ShortText, keyed_by
from .engine_section import CacheDType, DType

KIND = "TuningProfile"
PLURAL = "tuningprofiles"

BlockSize = Literal[8, 16, 32, 64, 128, 256]


class ModelShape(Model):
    """What the kernels see of a model."""

    layers: Annotated[int, Field(ge=1, le=100_000)]
    """Attention layers."""
    query_heads: Annotated[int, Field(ge=1, le=100_000)]
    """Query heads per layer."""
    kv_heads: Annotated[int, Field(ge=1, le=100_000)]
    """Key/value heads per layer."""
    head_size: Annotated[int, Field(ge=1, le=4096)]
    """Elements per head."""
    dtype: DType
    """Number format of activations."""
    cache_dtype: CacheDType
    """Number format of the KV cache."""


class TuningProfileSpec(Model):
    """The key: what the measurement is valid for."""

    product: Annotated[str, Field(min_length=1, max_length=63)]
    """Product of the accelerator as the node label spells it."""
    compute_capability: Capability | None = None
    """Compute capability, such as 9.0; absent for a CPU."""
    driver_cuda: CudaVersion | None = None
    """Highest CUDA version that the driver supports; absent for a CPU."""
    shape: ModelShape
    """What the kernels see of the model."""
    kernels_version: Annotated[str, Field(min_length=1, max_length=64)]
    """Version of octavo_kernels."""
    triton_version: Annotated[str, Field(min_length=1, max_length=64)]
    """Version of Triton."""


class BlockSizeResult(Model):
    """What one block size was measured to do."""

    block_size: BlockSize
    """Tokens per block."""
    decode_microseconds: Annotated[int, Field(ge=0)] | None = None
    """Time of one decode step of all attention layers."""
    prefill_microseconds: Annotated[int, Field(ge=0)] | None = None
    """Time of one prefill step of all attention layers."""
    prefix_hit_percent: Annotated[int, Field(ge=0, le=100)] | None = None
    """Share of the prompt tokens that the prefix cache answered."""
    launch: Annotated[str, Field(max_length=1024)] = ""
    """Launch configuration that was faster than the default, in words; empty = none was found, or looked for."""


class CalibrationFailure(Model):
    """A calibration that gave no result."""

    time: Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]
    """When."""
    reason: ShortText
    """CamelCase word for programs."""
    message: Annotated[str, Field(max_length=1024)] = ""
    """What went wrong."""


class TuningProfileStatus(Model):
    """The result."""

    block_size: BlockSize | None = None
    """Chosen block size in tokens; absent until a calibration succeeded."""
    summary: ShortText = ""
    """Why this block size: speeds and prefix hits beside another one."""
    launch_table: Annotated[str, Field(max_length=4096)] = ""
    """Launch configurations of the chosen block size, as the server's --launch-table reads them."""
    results: Annotated[tuple[BlockSizeResult, ...], Field(max_length=16, json_schema_extra=keyed_by("blockSize"))] = ()
    """Measurements by block size."""
    failures: Annotated[tuple[CalibrationFailure, ...], Field(max_length=10, json_schema_extra=ATOMIC)] = ()
    """The last failures, oldest first."""
    retry_after: Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})] | None = None
    """No calibration starts before this time."""
    measured_at: Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})] | None = None
    """When the result was measured."""
    duration_seconds: Annotated[int, Field(ge=0)] | None = None
    """How long the calibration took."""
    image: Annotated[str, Field(max_length=512)] = ""
    """Image that measured."""


class TuningProfile(Model):
    """What a calibration measured for one kind of accelerator and one shape of model."""

    spec: TuningProfileSpec
    """The key: what the measurement is valid for."""
    status: TuningProfileStatus | None = None
    """The result."""
