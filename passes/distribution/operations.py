"""How much an op computes and moves: arithmetic operations and bytes, from its iteration space."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from lynx.ir.core import Op, Value
from lynx.ir.dims import Dim
from lynx.ir.ops.attention import AttentionBackward, Scoring
from lynx.ir.ops.attention_pieces import AttentionPartBackward
from lynx.ir.ops.convolution import (
    Convolution,
    ConvolutionBackwardInput,
    ConvolutionBackwardWeight,
)
from lynx.ir.ops.fusion import Fused
from lynx.ir.ops.indexing import Embedding, Gather, Index, IndexSelect, Take
from lynx.ir.ops.layout_slicing import Diagonal, Select, Slice
from lynx.ir.ops.loss_linear import LinearCrossEntropy, LinearCrossEntropyBackward
from lynx.ir.space import FactorKind, IterationSpace
from lynx.ir.types import TensorType

UNKNOWN_SIZE = 64
"""What a symbolic size counts as: it is known only when the program runs."""

_POWER = 8
"""What an exponential of a score counts as, with the comparison and the sum around it."""

_PICKS = (Embedding, Gather, Index, IndexSelect, Take, Diagonal, Select, Slice)
"""Ops that read no more elements of their first operand than they have results."""


def operations(op: Op) -> float:
    """Return the arithmetic operations of an op: two for each term of a product, else one each."""
    match op:
        case Fused():
            return sum(map(operations, op.body.ops))
        case Scoring():
            return _of_attention(op)
        case Convolution() | ConvolutionBackwardInput() | ConvolutionBackwardWeight():
            return _of_convolution(op)
        case LinearCrossEntropy() | LinearCrossEntropyBackward():
            return _of_projected_loss(op)
    space = None if op.is_view else op.space()
    if space is None:
        return 0.0
    if _is_product(space):
        return 2.0 * elements(factor.size for factor in space.factors)
    values = op.results if isinstance(op, _PICKS) else (*op.operands, *op.results)
    return float(max((elements_of(value) for value in values), default=0))


def moved_bytes(op: Op) -> int:
    """Return the bytes that an op reads and writes, each tensor once."""
    read = {value: bytes_of(value) for value in op.operands}
    if isinstance(op, Fused):
        for parameter, value in op.bound.items():
            read[value] = min(read[value], _picked(parameter, op.body.ops))
    elif isinstance(op, _PICKS):
        read[op.operands[0]] = min(read[op.operands[0]], _result_bytes(op))
    return sum(read.values()) + _result_bytes(op)


def bytes_of(value: Value) -> int:
    """Return the bytes of a tensor, 0 for anything else."""
    if not isinstance(value.type, TensorType):
        return 0
    return elements(value.type.shape) * value.type.dtype.itemsize


def elements_of(value: Value) -> int:
    """Return the number of elements of a tensor, 0 for anything else."""
    return elements(value.type.shape) if isinstance(value.type, TensorType) else 0


def elements(shape: Iterable[Dim]) -> int:
    """Return the number of elements of a shape."""
    sizes = (size if isinstance(size, int) else UNKNOWN_SIZE for size in shape)
    return functools.reduce(lambda a, b: a * b, sizes, 1)


def _is_product(space: IterationSpace) -> bool:
    """Whether operands are multiplied, and the products added up along a factor."""
    factors = {position for positions in space.linear for position in positions}
    sums = any(f.kind in (FactorKind.REDUCTION, FactorKind.OPAQUE) for f in space.factors)
    return len(factors) > 1 and len(space.linear) > 1 and sums


def _of_attention(op: Scoring) -> float:
    """Return the operations of two products over all scores, or of five in backward.

    Dao et al. 2022, section 3.1: backward multiplies queries by keys once more, and gradients by
    values, by scores (twice) and by keys.
    """
    scores = elements(op.dot_type.shape)
    depth, wide = elements(op.q.shape[3:]), elements(op.v.shape[3:])
    scoring = op.scoring()
    around = _POWER + (len(scoring.ops) if scoring is not None else 0)
    if isinstance(op, AttentionBackward | AttentionPartBackward):
        return scores * (6.0 * depth + 4.0 * wide + 2 * around)
    return scores * (2.0 * depth + 2.0 * wide + around)


def _of_convolution(
    op: Convolution | ConvolutionBackwardInput | ConvolutionBackwardWeight,
) -> float:
    """Return the operations of a product for each weight and each place at which windows stand."""
    written = op.results[0] if isinstance(op, Convolution) else op.grad
    windows = op.x if op.transposed else written
    places = elements((windows.shape[0], *windows.shape[2:]))
    return 2.0 * places * elements_of(op.weight)


def _of_projected_loss(op: LinearCrossEntropy | LinearCrossEntropyBackward) -> float:
    """Return the operations of the logits, and of the products with their gradients."""
    products = 1 + len({"x", "weight"} & set(op.gradients))
    return 2.0 * products * elements_of(op.target) * elements_of(op.weight)


def _result_bytes(op: Op) -> int:
    return sum(map(bytes_of, op.results))


def _picked(parameter: Value, ops: Iterable[Op]) -> int:
    """Return how many bytes of a parameter are read: all, unless all that read it pick."""
    readers = [op for op in ops if parameter in op.operands]
    if any(not isinstance(op, _PICKS) or op.operands[0] is not parameter for op in readers):
        return bytes_of(parameter)
    return sum(map(_result_bytes, readers))
