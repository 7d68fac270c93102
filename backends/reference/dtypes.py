"""The torch names of element types."""

from __future__ import annotations

import torch

from lynx.ir.types import DType

_NAMES = {
    DType.BOOL: "bool", DType.U8: "uint8", DType.U16: "uint16", DType.U32: "uint32",
    DType.U64: "uint64", DType.I8: "int8", DType.I16: "int16", DType.I32: "int32",
    DType.I64: "int64", DType.F8E4M3FN: "float8_e4m3fn", DType.F8E4M3FNUZ: "float8_e4m3fnuz",
    DType.F8E5M2: "float8_e5m2", DType.F8E5M2FNUZ: "float8_e5m2fnuz", DType.F16: "float16",
    DType.BF16: "bfloat16", DType.F32: "float32", DType.F64: "float64", DType.C32: "complex32",
    DType.C64: "complex64", DType.C128: "complex128",
}  # fmt: skip
_TO_TORCH: dict[DType, torch.dtype] = {dtype: getattr(torch, n) for dtype, n in _NAMES.items()}
_FROM_TORCH = {theirs: ours for ours, theirs in _TO_TORCH.items()}


def torch_dtype(dtype: DType) -> torch.dtype:
    """Return torch's object for an element type."""
    return _TO_TORCH[dtype]


def dtype_from_torch(dtype: torch.dtype) -> DType | None:
    """Return our element type, or None for one that Lynx has no name for (quantized types)."""
    return _FROM_TORCH.get(dtype)
