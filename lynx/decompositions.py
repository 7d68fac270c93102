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


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the table for AOTAutograd: only exact ones, whose parts Lynx can optimize better."""
    table = dict(get_decompositions(_OPERATORS))
    table[torch.ops.aten._efficientzerotensor.default] = _zeros
    return table
