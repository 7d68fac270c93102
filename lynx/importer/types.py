"""From torch's dtypes, devices and traced values to Lynx types, and constants to arguments."""

from __future__ import annotations

from typing import Any

import torch

from lynx.backends.reference.dtypes import dtype_from_torch
from lynx.compat import OpOverload, is_plain_fake
from lynx.ir.core import Foreign
from lynx.ir.dims import Dim
from lynx.ir.types import OpaqueType, ScalarType, TensorType, Type

from .dims import DimReader

ABSENT = OpaqueType("none")
"""The type of a result that an operator leaves out."""


def type_of(value: Any, dims: DimReader) -> Type:
    """Return the Lynx type of a traced value."""
    if value is None:
        return ABSENT
    if isinstance(value, bool | torch.SymBool):
        return ScalarType("bool")
    if isinstance(value, int | torch.SymInt):
        return ScalarType("int", dims.read(value))
    if isinstance(value, float | torch.SymFloat):
        return ScalarType("float")
    if is_plain_fake(value) and (dtype := dtype_from_torch(value.dtype)):
        shape = tuple(dims.read(size) for size in value.shape)
        return TensorType(dtype, shape, str(value.device))
    if isinstance(value, torch.Tensor):
        return OpaqueType("tensor")
    return OpaqueType("object")


def strides_of(value: Any, dims: DimReader) -> tuple[Dim, ...] | None:
    """Return the strides of a traced dense tensor, None for anything else."""
    if not is_plain_fake(value):
        return None
    return tuple(dims.read(stride) for stride in value.stride())


def constant(item: Any) -> Any:
    """Turn a constant argument of an operator into one of the IR.

    `NotImplemented` if it is none that text can express.
    """
    if item is None or isinstance(item, bool | int | float | complex | str):
        return item
    if isinstance(item, torch.dtype):
        return dtype_from_torch(item) or Foreign("dtype", str(item).removeprefix("torch."))
    if isinstance(item, torch.device):
        return Foreign("device", str(item))
    if isinstance(item, torch.layout):
        return Foreign("layout", str(item).removeprefix("torch."))
    if isinstance(item, torch.memory_format):
        return Foreign("memory_format", str(item).removeprefix("torch."))
    if isinstance(item, OpOverload):
        return Foreign("operator", str(item))
    return NotImplemented
