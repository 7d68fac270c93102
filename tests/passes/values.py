"""Inputs with all special values, and comparison bit for bit, for tests of passes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from lynx.backends.reference import run
from lynx.backends.reference.dtypes import torch_dtype
from lynx.ir.core import Graph, Value
from lynx.ir.dims import evaluate as evaluate_dim
from lynx.ir.types import DType, TensorType

_FLOATS = [
    0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 0.1, -2.5, 3.0, 65504.0, -3e38, 1e300,
    1e-45, -1e-310, 16777217.0, 255.0, 256.5, -129.0, 2147483648.0, -9.3e18,
]  # fmt: skip


def special(dtype: DType, count: int, shift: int = 0) -> torch.Tensor:
    """Return a vector of special values of an element type, starting at the given one."""
    if dtype is DType.BOOL:
        values: list[Any] = [False, True]
    elif dtype.is_integer:
        info = torch.iinfo(torch_dtype(dtype))
        numbers = [0, 1, -1, info.min, info.max, 2, 127, -128, 128, 255, 40000, -40001]
        values = [n for n in numbers if info.min <= n <= info.max]
    elif dtype.is_complex:
        values = [complex(a, b) for a in _FLOATS[:9] for b in _FLOATS[:9]]
    else:
        values = _FLOATS
    chosen = [values[(index + shift) % len(values)] for index in range(count)]
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.tensor(chosen, dtype=wide if dtype.is_floating or dtype.is_complex else None).to(
        torch_dtype(dtype)
    )


def inputs_of(graph: Graph, symbols: dict[str, int] | None = None, shift: int = 0) -> list[Any]:
    """Return an input of special values for each input of a graph."""
    result: list[Any] = []
    for index, value in enumerate(graph.inputs):
        assert isinstance(value.type, TensorType), value
        shape = [evaluate_dim(dim, symbols or {}) for dim in value.type.shape]
        numbers = special(value.type.dtype, math.prod(shape), shift + 3 * index)
        result.append(numbers.reshape(shape))
    return result


def same_bits(a: Any, b: Any) -> bool:
    """Whether tensors are equal, the signs of zeros included; any NaN equals any other."""
    if a is None or b is None or not isinstance(a, torch.Tensor):
        return type(a) is type(b) and bool(a == b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.numel() == 0:
        return True
    if a.is_complex():
        return same_bits(torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj()))
    same = _bytes(a) == _bytes(b)
    if a.is_floating_point():
        same = same.all(-1) | (a.isnan() & b.isnan())
    return bool(same.all())


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    dense = tensor.contiguous().unsqueeze(-1)
    return dense.view(torch.uint8)


def assert_same_values(
    before: Graph, after: Graph, inputs: Sequence[Any], symbols: dict[str, int] | None = None
) -> None:
    """Fail unless both graphs give the same outputs and mutations, bit for bit."""
    expected = evaluate_dense(before, inputs, symbols)
    for a, b in zip(expected, evaluate_dense(after, inputs, symbols), strict=True):
        assert same_bits(a, b), f"expected {a}, got {b}"


def evaluate_dense(
    graph: Graph, inputs: Sequence[Any], symbols: dict[str, int] | None = None
) -> list[Any]:
    """Return outputs and mutations, with every result laid out densely.

    Kernels may add up in another order for another layout; this way a pass that moves or drops ops
    without changing values changes no bit.
    """
    values: dict[Value, Any] = dict(zip(graph.inputs, inputs, strict=True))
    for op in graph.ops:
        results = run(op, values, symbols or {}, graph.resources)
        dense = (r.contiguous() if isinstance(r, torch.Tensor) else r for r in results)
        values.update(zip(op.results, dense, strict=True))
    return [values[value] for value in graph.uses]
