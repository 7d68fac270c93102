"""What random ops mean: they draw from torch's global generator, as eager would.

Eager fills memory in its order, so the order of drawing depends on the layout. Lynx values have
none; the import rules accept only the row-major one, and here all filling is row-major.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lynx.ir.call import Call
from lynx.ir.ops.factory import Factory
from lynx.ir.ops.random import (
    Bernoulli,
    Dropout,
    RandomBernoulli,
    RandomExponential,
    RandomInteger,
    RandomNormal,
    RandomPermutation,
    RandomUniform,
)

from .dtypes import torch_dtype
from .registry import means


def _filling(fill: Callable[..., torch.Tensor]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return a function that makes a filled tensor, and one that fills a given tensor."""

    def make(size: list[int], dtype: torch.dtype, device: str, *numbers: Any) -> torch.Tensor:
        return fill(torch.empty(size, dtype=dtype, device=device), *numbers)

    def into(
        size: list[int], dtype: torch.dtype, device: str, *numbers: Any, out: torch.Tensor
    ) -> torch.Tensor:
        if out.is_contiguous():
            return fill(out, *numbers)
        return out.copy_(make(size, dtype, device, *numbers))

    return make, into


_FILL = {
    RandomUniform: _filling(torch.Tensor.uniform_),
    RandomNormal: _filling(torch.Tensor.normal_),
    RandomInteger: _filling(torch.Tensor.random_),
    RandomExponential: _filling(torch.Tensor.exponential_),
    RandomBernoulli: _filling(torch.Tensor.bernoulli_),
}


@means(RandomUniform, RandomNormal, RandomInteger, RandomExponential, RandomBernoulli)
def random_factory(op: Factory) -> Call:
    """Fill a fresh tensor in place, which is what eager's functional forms do."""
    make, into = _FILL[type(op)]
    type_ = op.out.tensor_type
    numbers = tuple(getattr(op, name) for name in op.operand_fields)
    arguments = (type_.shape, torch_dtype(type_.dtype), type_.device, *numbers)
    return Call(make, arguments, out=into)


def _permutation(length: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    return torch.randperm(length, dtype=dtype, device=device)


@means(RandomPermutation)
def random_permutation(op: RandomPermutation) -> Call:
    """Call `randperm`."""
    return Call(_permutation, (op.length, torch_dtype(op.dtype), op.device))


def _bernoulli(p: torch.Tensor) -> Any:
    return torch.ops.aten.bernoulli.default(p.contiguous())


@means(Bernoulli)
def bernoulli(op: Bernoulli) -> Call:
    """Call `bernoulli` on row-major probabilities."""
    return Call(_bernoulli, (op.x,))


def _dropout(x: torch.Tensor, p: float) -> Any:
    return torch.ops.aten.native_dropout.default(x.contiguous(), p, True)


@means(Dropout)
def dropout(op: Dropout) -> Call:
    """Call `native_dropout` on a row-major operand."""
    return Call(_dropout, (op.x, op.p))
