"""Which ATen operators AOTAutograd takes apart before Lynx sees them.

Almost none: import rules know composites whole, since eager's fused kernels are faster than their
parts and the `decompose` pass can take them apart later. In particular
`core_aten_decompositions()` must not be used: it takes the forward of CPU scaled-dot-product
attention apart but not its backward, which then gets a tensor of another meaning and gives wrong
gradients without an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lynx.compat import get_decompositions

_OPERATORS = (
    torch.ops.aten.select_backward,
    torch.ops.aten.slice_backward,
    torch.ops.aten.diagonal_backward,
)


def _zeros(size: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> torch.Tensor:
    """Return zeros that have memory, which kernels may read."""
    return torch.zeros(size, dtype=dtype, device=device)


_NORMS = (
    torch.ops.aten.native_layer_norm.default,
    torch.ops.aten.native_group_norm.default,
    torch.ops.aten.native_group_norm_backward.default,
    torch.ops.aten.native_batch_norm.default,
    torch.ops.aten._native_batch_norm_legit.default,
    torch.ops.aten._native_batch_norm_legit.no_stats,
    torch.ops.aten._native_batch_norm_legit_functional.default,
)
"""Operators of which the first result has the type of the first operand."""


def _in_f32(operator: Any) -> Callable[..., Any]:
    """Compute a norm of low precision in `f32` where its parameters are of that type.

    So do the kernels of torch on a CPU, and give statistics in `f32`. Its fake tensors say that
    they are of low precision, and that a gradient is not; what is so traced would read garbage.
    """

    def compute(*operands: Any) -> Any:
        dtype = operands[0].dtype
        tensors = [operand for operand in operands if isinstance(operand, torch.Tensor)]
        is_mixed = dtype.itemsize == 2 and any(x.dtype is torch.float32 for x in tensors)
        if not is_mixed or operands[0].device.type != "cpu":
            return NotImplemented
        widened = [
            x.to(torch.float32) if isinstance(x, torch.Tensor) and x.dtype is dtype else x
            for x in operands
        ]
        first, *others = operator(*widened)
        return (None if first is None else first.to(dtype), *others)

    return compute


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the table for AOTAutograd: only exact ones, whose parts Lynx can optimize better."""
    table = dict(get_decompositions(_OPERATORS))
    table[torch.ops.aten._efficientzerotensor.default] = _zeros
    table.update((operator, _in_f32(operator)) for operator in _NORMS)
    return table
