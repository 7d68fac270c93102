"""Evaluate score functions and their derivatives in plain torch, whole or some rows at a time."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lynx.ir.core import Value
from lynx.ir.dims import symbol
from lynx.ir.ops.fusion import Region
from lynx.ir.ops.parts import CannotCut, How, part_of
from lynx.passes.attention.derivative import derivative_of

from .evaluate import run

_ROWS = 2
"""The dimension of queries in products and scores."""

_START, _COUNT = "row_start", "row_count"


def evaluate_region(
    region: Region, inputs: Sequence[Any], symbols: Mapping[str, int] | None = None
) -> list[torch.Tensor]:
    """Return the results of a region; autograd sees what computes them."""
    values: dict[Value, Any] = dict(zip(region.parameters, inputs, strict=True))
    for op in region.ops:
        values.update(zip(op.results, run(op, values, symbols or {}, {}), strict=True))
    return [values[result] for result in region.results]


class RowProgram:
    """Runs a region for some rows of products and scores, if it has such parts.

    `rowwise` are the parameters that are given for these rows only. `results` says how what comes
    out belongs to the results for all rows.
    """

    def __init__(self, region: Region, rowwise: tuple[int, ...]) -> None:
        self.region, self.rowwise = region, rowwise
        cut = dict.fromkeys(rowwise, _ROWS)
        part = part_of(region, cut, symbol(_START), symbol(_COUNT))
        self.part = None if isinstance(part, CannotCut) or part.results[0] != _ROWS else part
        whole: tuple[How, ...] = tuple("whole" for _ in region.results)
        self.results: tuple[How, ...] = whole if self.part is None else self.part.results

    def run(
        self,
        inputs: Sequence[torch.Tensor],
        rows: slice,
        symbols: Mapping[str, int],
        *,
        all_rows: bool,
    ) -> list[torch.Tensor]:
        """Return the results for some rows, or for all, in order."""
        if all_rows:
            return evaluate_region(self.region, inputs, symbols)
        assert self.part is not None
        count = rows.stop - rows.start
        parts = [
            inputs[index]
            if dim is None or index in self.rowwise
            else inputs[index].narrow(dim, rows.start, count)
            for index, dim in self.part.parameters
        ]
        return evaluate_region(
            self.part.region, parts, {**symbols, _START: rows.start, _COUNT: count}
        )


@functools.lru_cache(maxsize=256)
def rows_of(score: Region) -> RowProgram:
    """Return how scores are computed."""
    return RowProgram(score, (0,))


@functools.lru_cache(maxsize=256)
def derivative_rows(score: Region, wanted: tuple[int, ...]) -> RowProgram:
    """Return how gradients of the product and of some operands are computed."""
    derivative = derivative_of(score, wanted)
    return RowProgram(derivative, (0, len(derivative.parameters) - 1))
