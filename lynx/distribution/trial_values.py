"""What operators are tried on: values that tell apart what looks alike on ordinary ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from lynx.backends.reference.dtypes import torch_dtype
from lynx.ir.types import DType

Shape = Sequence[int]
_Draw = Callable[[Shape, int | None, torch.Generator], torch.Tensor]
_LARGE = 3e4
"""About the largest number of the smallest floating type that is tried."""


def _normal(shape: Shape, dim: int | None, generator: torch.Generator) -> torch.Tensor:
    del dim
    return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")


def _unit(shape: Shape, dim: int | None, generator: torch.Generator) -> torch.Tensor:
    del dim
    return torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu") * 2 - 1


def _fraction(shape: Shape, dim: int | None, generator: torch.Generator) -> torch.Tensor:
    return _unit(shape, dim, generator).abs() * 0.9 + 0.05


def _small(shape: Shape, dim: int | None, generator: torch.Generator) -> torch.Tensor:
    return _fraction(shape, dim, generator) ** 5


def _magnitudes(shape: Shape, dim: int | None, generator: torch.Generator) -> torch.Tensor:
    return _normal(shape, dim, generator) * 10 ** (3 * _unit(shape, dim, generator))


def _increasing(shape: Shape, dim: int | None, generator: torch.Generator) -> torch.Tensor:
    del dim, generator
    count = torch.Size(shape).numel()
    return torch.arange(count, dtype=torch.float64, device="cpu").reshape(shape) / 4 - 3


def _definite(shape: Shape, dim: int | None, generator: torch.Generator) -> torch.Tensor:
    """Return symmetric matrices with positive eigenvalues, where matrices are square."""
    x = _normal(shape, dim, generator)
    if x.dim() < 2 or x.shape[-1] != x.shape[-2]:
        return x
    return x @ x.mT + x.shape[-1] * torch.eye(x.shape[-1], dtype=x.dtype, device="cpu")


def _alike(shape: Shape, dim: int | None, generator: torch.Generator) -> torch.Tensor:
    """Return one row again and again."""
    x = _fraction(shape, dim, generator)
    return x if dim is None or not shape[dim] else x.select(dim, 0).unsqueeze(dim).expand(shape)


def _with_row(value: float, at: int, inner: _Draw = _normal) -> _Draw:
    """Let one row along the dimension that is to be cut be special."""

    def draw(shape: Shape, dim: int | None, generator: torch.Generator) -> torch.Tensor:
        x = inner(shape, dim, generator)
        if dim is not None and shape[dim]:
            row = x.select(dim, at % shape[dim])
            row.copy_(
                torch.full_like(row, value) if not 0 < abs(value) < torch.inf else row * value
            )
        return x

    return draw


FLOATS: Mapping[str, _Draw] = {
    "ordinary": _normal,
    "increasing": _increasing,
    "definite": _definite,
    "between -1 and 1": _unit,
    "between 0 and 1": _fraction,
    "near 0": _small,
    "of many magnitudes": _magnitudes,
    "with a large first row": _with_row(1e4, 0),
    "with a huge last row": _with_row(-1e12, -1),
    "with a row beyond any": _with_row(1e30, 1),
    "with a definite large row": _with_row(1e3, -1, _definite),
    "with a row of zeros": _with_row(0.0, 1, _fraction),
    "with the same in all rows": _alike,
    "with an infinite row": _with_row(torch.inf, -1),
    "with a row of NaN": _with_row(torch.nan, 0),
}
"""Kinds of values. What a row holds that is not finite must not be seen in the others."""

_IN_ORDER = ("ordinary", "definite", "between 0 and 1", "with a row of zeros")

CHECKED = frozenset(
    {
        "aten._embedding_bag.default",
        "aten._embedding_bag_forward_only.default",
        "aten.bucketize.Tensor",
        "aten.isin.Tensor_Tensor",
        "aten.multi_margin_loss.default",
        "aten.searchsorted.Tensor",
    }
)
"""Operators that say so where the integers that they are given are out of range.

Of others nobody knows what integers mean: kernels that trust them read and write anywhere.
"""


def draw(
    kind: str, dtype: DType, shape: Shape, dim: int | None, below: int, generator: torch.Generator
) -> torch.Tensor:
    """Return values of a kind; integers lie from 0 to `below`, for some kinds in order from 0.

    `dim` is the dimension that is to be cut. What is in order may be offsets.
    """
    target = torch_dtype(dtype)
    if dtype is DType.BOOL or dtype.is_integer:
        x = torch.randint(0, max(below, 1), tuple(shape), generator=generator, device="cpu")
        if dtype is DType.BOOL:
            return x % 2 == 1
        if kind in _IN_ORDER and x.dim() == 1:
            x = x.sort().values
            x[:1] = 0
        return x.to(target)
    x = FLOATS[kind](shape, dim, generator)
    if dtype.is_complex:
        x = torch.complex(x, FLOATS[kind](shape, dim, generator))
    elif dtype.is_floating and dtype.itemsize < 4:
        x = torch.where(x.isfinite(), x.clamp(-_LARGE, _LARGE), x)
    return x.to(target)
