"""Evaluate score functions and their derivatives in plain torch, whole or some rows at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lynx.ir.core import Value
from lynx.ir.ops.fusion import Region

from .evaluate import run


def evaluate_region(
    region: Region, inputs: Sequence[Any], symbols: Mapping[str, int] | None = None
) -> list[torch.Tensor]:
    """Return the results of a region; autograd sees what computes them."""
    values: dict[Value, Any] = dict(zip(region.parameters, inputs, strict=True))
    for op in region.ops:
        values.update(zip(op.results, run(op, values, symbols or {}, {}), strict=True))
    return [values[result] for result in region.results]


class RowProgram:
    """Runs a region, whose results are those of all rows; `dims` says along which rows lie."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.is_split = False
        self.dims: tuple[int | None, ...] = (2, *(None,) * (len(region.results) - 1))

    def run(
        self, inputs: Sequence[torch.Tensor], rows: slice, symbols: Mapping[str, int]
    ) -> list[torch.Tensor]:
        """Return the results for some rows."""
        return evaluate_region(self.region, inputs, symbols)


def rows_of(score: Region) -> RowProgram:
    """Return how scores of some rows are computed."""
    return RowProgram(score)


def derivative_rows(score: Region, wanted: tuple[int, ...]) -> RowProgram:
    """Return how gradients of the product and of operands are computed, some rows at a time."""
    raise NotImplementedError("gradients of scores")
