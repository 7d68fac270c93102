"""Samples of every op, from which the generic tests draw: one module per op family."""

from __future__ import annotations

from dataclasses import dataclass, field

from lynx.ir.core import Op


@dataclass(frozen=True)
class Sample:
    """An op over input values of small static shapes.

    `bounds` gives, by operand position, the half-open range of an operand's elements (an index must
    be in range); `positive` the positions of float operands drawn from [0.5, 1.5) and
    not from a normal distribution; `tolerance` the relative error allowed between full and sharded
    runs.
    """

    op: Op
    bounds: dict[int, tuple[int, int]] = field(default_factory=dict)
    positive: tuple[int, ...] = ()
    tolerance: float = 1e-5
