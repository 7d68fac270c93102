"""Element types as Triton and torch name them."""

from __future__ import annotations

import torch

from lynx.ir.errors import CompileError
from lynx.ir.types import DType

_TRITON = {
    DType.BOOL: "int1",
    DType.U8: "uint8",
    DType.U16: "uint16",
    DType.U32: "uint32",
    DType.U64: "uint64",
    DType.I8: "int8",
    DType.I16: "int16",
    DType.I32: "int32",
    DType.I64: "int64",
    DType.F16: "float16",
    DType.BF16: "bfloat16",
    DType.F32: "float32",
    DType.F64: "float64",
}
_POINTER = {
    DType.BOOL: "*i1",
    DType.F16: "*fp16",
    DType.BF16: "*bf16",
    DType.F32: "*fp32",
    DType.F64: "*fp64",
}
_TORCH = {
    DType.BOOL: torch.bool,
    DType.U8: torch.uint8,
    DType.U16: torch.uint16,
    DType.U32: torch.uint32,
    DType.U64: torch.uint64,
    DType.I8: torch.int8,
    DType.I16: torch.int16,
    DType.I32: torch.int32,
    DType.I64: torch.int64,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.F32: torch.float32,
    DType.F64: torch.float64,
}


def is_supported(dtype: DType) -> bool:
    """Whether kernels may hold this type: all but complex numbers and floats of 8 bits."""
    return dtype in _TRITON


def triton_type(dtype: DType) -> str:
    """Return the type as a kernel writes it, `tl.float32`."""
    if dtype not in _TRITON:
        raise CompileError("unsupported-dtype", f"Triton kernels do not compute with {dtype}")
    return f"tl.{_TRITON[dtype]}"


def pointer_type(dtype: DType) -> str:
    """Return the type of a pointer as the signature of a kernel writes it, `*fp32`."""
    triton_type(dtype)
    return _POINTER.get(dtype, f"*{dtype.value}")


def torch_name(dtype: DType) -> str:
    """Return the type as generated Python writes it, `torch.float32`."""
    triton_type(dtype)
    return str(_TORCH[dtype])


def torch_type(dtype: DType) -> torch.dtype:
    """Return torch's object for the type."""
    triton_type(dtype)
    return _TORCH[dtype]


def least(dtype: DType) -> float | int:
    """Return the number below all others: the neutral one of `max`."""
    if dtype is DType.BOOL:
        return 0
    return float("-inf") if dtype.is_floating else _integer_range(dtype)[0]


def greatest(dtype: DType) -> float | int:
    """Return the number above all others: the neutral one of `min`."""
    if dtype is DType.BOOL:
        return 1
    return float("inf") if dtype.is_floating else _integer_range(dtype)[1]


def wrapped(value: int, dtype: DType) -> int:
    """Return an integer as the type holds it, which wraps around."""
    low, high = _integer_range(dtype)
    return (value - low) % (high - low + 1) + low


def _integer_range(dtype: DType) -> tuple[int, int]:
    bits = 8 * dtype.itemsize
    return (
        (0, 2**bits - 1)
        if dtype.value.startswith("u")
        else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    )
