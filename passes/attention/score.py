"""The kernel of a score function: what a model does to the product of a query and a key."""

from __future__ import annotations

from collections.abc import Sequence

from lynx.ir.dims import Dim
from lynx.ir.errors import CompileError
from lynx.ir.kernel import (
    Buffer,
    Index,
    Instruction,
    Kernel,
    KernelBuilder,
    Load,
    Reduce,
    Scalar,
    Store,
    Term,
)
from lynx.ir.ops.fusion import Region
from lynx.ir.program import extent
from lynx.ir.types import DType, TensorType
from lynx.passes.fusion.coordinates import ZERO, Coordinates, position_of
from lynx.passes.fusion.emit import Emitter, why_not
from lynx.passes.fusion.naming import AxisNames

Strides = tuple[Dim, ...]

AXES = ("b", "h", "q", "k")
"""Batch, head, query and key: the axes of a score kernel."""

DOT = "dot"
"""The buffer of products of queries and keys."""

SCORE = "score"
"""The buffer of scores."""


def score_kernel(region: Region, strides: Sequence[Strides | None]) -> Kernel:
    """Return the kernel of a score function over `AXES`.

    The first parameter of the region is the product; `strides` are those of the other parameters,
    in elements, None where one is no tensor. The buffers are `DOT`, then the operands that are
    read, named `x<index>` from 0, then `SCORE`. Product and scores are dense.

    `CompileError` if an op has no kernel rule, or a score depends on the product of another pair.
    """
    for op in region.ops:
        reason = why_not(op)
        if reason:
            raise CompileError("no-kernel", f"'{op.name}' {reason}", op.loc)
    dot, *operands = region.parameters
    builder = KernelBuilder()
    at = _coordinates(builder, dot.shape)
    dense = row_major(dot.shape)
    products = Buffer(DOT, dot.tensor_type.dtype, extent(dot.shape, dense))
    sources = {dot: (products, dense)}
    for index, (operand, own) in enumerate(zip(operands, strides, strict=True)):
        if isinstance(operand.type, TensorType):
            assert own is not None, operand
            reach = extent(operand.shape, own)
            sources[operand] = (Buffer(f"x{index}", operand.type.dtype, reach), own)
    emitter = Emitter(builder, AxisNames(region), sources, contracts=False)
    (result,) = region.results
    score = emitter.element(result, at)
    place = position_of(at, dense)
    _check(builder.body, products, place)
    builder.loc = result.op.loc if result.op is not None else builder.loc
    written = Buffer(SCORE, score.dtype, products.extent, is_written=True)
    builder.store(written, place, score)
    read = {i.buffer for i in builder.body if isinstance(i, Load)}
    used = [buffer for buffer, _ in sources.values() if buffer in read]
    builder.buffers = [*used, written]
    return builder.build("score")


def plain_score(dtype: DType, shape: tuple[Dim, ...]) -> Kernel:
    """Return the kernel of scores that are the products themselves."""
    builder = KernelBuilder()
    place = position_of(_coordinates(builder, shape), row_major(shape))
    reach = extent(shape, row_major(shape))
    products = builder.buffer(DOT, dtype, reach)
    written = builder.buffer(SCORE, dtype, reach, is_written=True)
    builder.store(written, place, builder.load(products, place))
    return builder.build("score")


def row_major(shape: Sequence[Dim]) -> Strides:
    """Return the strides of a dense tensor."""
    strides: list[Dim] = []
    stride: Dim = 1
    for size in reversed(shape):
        strides.append(stride)
        stride = stride * size
    return tuple(reversed(strides))


def score_of(kernel: Kernel) -> Scalar:
    """Return what a score kernel stores."""
    stored = [i.value for i in kernel.body if isinstance(i, Store) and i.buffer.name == SCORE]
    assert len(stored) == 1, kernel
    return stored[0]


def dot_of(kernel: Kernel) -> Scalar | None:
    """Return the product that a score kernel reads, None if it reads none."""
    found = [i.out for i in kernel.body if isinstance(i, Load) and i.buffer.name == DOT]
    return found[0] if found else None


def _coordinates(builder: KernelBuilder, shape: tuple[Dim, ...]) -> Coordinates:
    for name, size in zip(AXES, shape, strict=True):
        builder.axis(name, size)
    return tuple(
        ZERO if isinstance(size, int) and size == 1 else Index((Term(name),))
        for name, size in zip(AXES, shape, strict=True)
    )


def _check(body: list[Instruction], products: Buffer, place: Index) -> None:
    for instruction in body:
        match instruction:
            case Load() if instruction.buffer is products:
                if instruction.index != place or instruction.mask is not None:
                    raise CompileError(
                        "no-kernel", "a score depends on another pair's product", instruction.loc
                    )
            case Reduce():
                raise CompileError("no-kernel", "a score depends on a reduction", instruction.loc)
