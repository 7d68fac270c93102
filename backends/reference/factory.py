"""What factory ops mean."""

from __future__ import annotations

from typing import Any

import torch

from lynx.ir.call import Call
from lynx.ir.ops.factory import Empty, Full, Iota

from .dtypes import torch_dtype
from .registry import means


def _full(size: list[int], value: Any, dtype: torch.dtype, device: str) -> torch.Tensor:
    return torch.full(size, value, dtype=dtype, device=device)


def _full_out(
    size: list[int], value: Any, dtype: torch.dtype, device: str, *, out: torch.Tensor
) -> torch.Tensor:
    return out.fill_(value)


@means(Full)
def full(op: Full) -> Call:
    """Call `full`."""
    return Call(_full, (op.shape, op.value, torch_dtype(op.dtype), op.device), out=_full_out)


def _empty(size: list[int], dtype: torch.dtype, device: str) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device=device)


def _empty_out(
    size: list[int], dtype: torch.dtype, device: str, *, out: torch.Tensor
) -> torch.Tensor:
    return out


@means(Empty)
def empty(op: Empty) -> Call:
    """Call `empty`; given memory is left as it is."""
    return Call(_empty, (op.shape, torch_dtype(op.dtype), op.device), out=_empty_out)


def _end(start: Any, step: Any, length: int) -> Any:
    """Return an end for which `arange` counts exactly `length` elements.

    The end has no influence on the elements. For floats it lies half a step before the next one,
    out of reach of rounding.
    """
    if isinstance(start, int) and isinstance(step, int):
        return start + length * step
    return start + max(length - 0.5, 0) * step


def _iota(start: Any, step: Any, length: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    return torch.arange(start, _end(start, step, length), step, dtype=dtype, device=device)


def _iota_out(
    start: Any, step: Any, length: int, dtype: torch.dtype, device: str, *, out: torch.Tensor
) -> torch.Tensor:
    return torch.arange(start, _end(start, step, length), step, out=out)


@means(Iota)
def iota(op: Iota) -> Call:
    """Call `arange`."""
    arguments = (op.start, op.step, op.length, torch_dtype(op.dtype), op.device)
    return Call(_iota, arguments, out=_iota_out)
