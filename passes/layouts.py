"""Strides of results: exact for views, chosen for what is written into memory of our own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from lynx.ir.core import Op, Value
from lynx.ir.dims import Dim, contiguous_strides, is_equal, is_static, product, simplify
from lynx.ir.ops.convolution import (
    Convolution,
    ConvolutionBackwardInput,
    ConvolutionBackwardWeight,
)
from lynx.ir.ops.elementwise_arithmetic import Copy
from lynx.ir.ops.fusion import Fused
from lynx.ir.ops.layout import (
    AsStrided,
    Bitcast,
    Broadcast,
    Permute,
    Reshape,
    Squeeze,
    Unsqueeze,
)
from lynx.ir.ops.layout_slicing import Diagonal, Select, Slice, Unfold
from lynx.ir.program import same_strides
from lynx.ir.types import TensorType
from lynx.ir.writing import is_write, written_into

Strides = tuple[Dim, ...]
Known = Callable[[Value], Strides | None]
"""Gives the strides of a value that is already laid out, None where torch will decide."""

_O = TypeVar("_O", bound=Op)
_RULES: dict[type[Op], Callable[[Any, Strides], Strides | None]] = {}


def lays_out(
    *kinds: type[_O],
) -> Callable[[Callable[[_O, Strides], Strides | None]], Callable[[_O, Strides], Strides | None]]:
    """Register the rule of view ops: from the strides of the operand to those of the result.

    The rule answers None where no view can express the result, so that torch would copy. Strides of
    dimensions of size 1 are torch's too.
    """

    def register(
        function: Callable[[_O, Strides], Strides | None],
    ) -> Callable[[_O, Strides], Strides | None]:
        for kind in kinds:
            _RULES[kind] = function
        return function

    return register


def has_rule(op: Op) -> bool:
    """Whether the layout of a view op's result is known from its operand's."""
    return type(op) in _RULES


def view_strides(op: Op, strides: Strides) -> Strides | None:
    """Return the strides of a view op's result, None if the result cannot be a view."""
    return _RULES[type(op)](op, strides)


def view_offset(op: Op, strides: Strides) -> Dim:
    """Return how many elements after the operand's first a view op's result begins.

    `strides` are the operand's; the view op is one that `view_strides` lays out.
    """
    if isinstance(op, Slice):
        return product((op.start, strides[op.dim]))
    if isinstance(op, Select):
        return product((op.index, strides[op.dim]))
    if isinstance(op, Diagonal):
        along = strides[op.dim2] if op.offset >= 0 else strides[op.dim1]
        return product((abs(op.offset), along))
    return op.offset if isinstance(op, AsStrided) else 0


@lays_out(Permute)
def permute_strides(op: Permute, strides: Strides) -> Strides:
    """Reorder as the dimensions are."""
    return tuple(strides[dim] for dim in op.dims)


@lays_out(Broadcast)
def broadcast_strides(op: Broadcast, strides: Strides) -> Strides:
    """Repeat by a stride of 0; a new dimension of size 1 spans the ones within."""
    x = op.x.shape
    if not x:
        return (0,) * len(op.shape)
    first = len(op.shape) - len(x)
    result: list[Dim] = [0] * len(op.shape)
    for index in reversed(range(len(op.shape))):
        size: Dim = x[index - first] if index >= first else 1
        if index >= first:
            stride = strides[index - first]
        elif index + 1 < len(op.shape):
            stride = product((op.shape[index + 1], result[index + 1]))
        else:
            stride = 1
        repeats = size == 1 and not is_equal(op.shape[index], 1)
        result[index] = 0 if repeats else stride
    return tuple(result)


@lays_out(Unsqueeze)
def unsqueeze_strides(op: Unsqueeze, strides: Strides) -> Strides:
    """Give the new dimension the stride that spans the one it precedes."""
    inserted = product((op.x.shape[op.dim], strides[op.dim])) if op.dim < len(strides) else 1
    return (*strides[: op.dim], inserted, *strides[op.dim :])


@lays_out(Squeeze)
def squeeze_strides(op: Squeeze, strides: Strides) -> Strides:
    """Drop the strides of the removed dimensions."""
    return tuple(stride for index, stride in enumerate(strides) if index not in op.dims)


@lays_out(Slice)
def slice_strides(op: Slice, strides: Strides) -> Strides:
    """Skip elements of the sliced dimension."""
    step = product((strides[op.dim], op.step))
    return (*strides[: op.dim], step, *strides[op.dim + 1 :])


@lays_out(Select)
def select_strides(op: Select, strides: Strides) -> Strides:
    """Drop the stride of the dimension."""
    return (*strides[: op.dim], *strides[op.dim + 1 :])


@lays_out(Diagonal)
def diagonal_strides(op: Diagonal, strides: Strides) -> Strides:
    """Step along both dimensions at once."""
    rest = (s for index, s in enumerate(strides) if index not in (op.dim1, op.dim2))
    return (*rest, simplify(strides[op.dim1] + strides[op.dim2]))


@lays_out(Unfold)
def unfold_strides(op: Unfold, strides: Strides) -> Strides:
    """Step from window to window, and within one as before."""
    step = product((strides[op.dim], op.step))
    return (*strides[: op.dim], step, *strides[op.dim + 1 :], strides[op.dim])


@lays_out(Bitcast)
def bitcast_strides(op: Bitcast, strides: Strides) -> Strides:
    """Keep the strides: the element types have one size."""
    return strides


@lays_out(AsStrided)
def as_strided_strides(op: AsStrided, strides: Strides) -> Strides | None:
    """Take the strides as they are where row-major order is the order in memory."""
    contiguous = contiguous_strides(op.x.shape)
    return op.stride if same_strides(op.x.shape, strides, contiguous) else None


@lays_out(Reshape)
def reshape_strides(op: Reshape, strides: Strides) -> Strides | None:
    """Compute the strides of the view: rows stay rows, whatever their sizes.

    With other layouts and symbolic sizes a view may be missed; copying is right as well.
    """
    found = _strides_by_chunks(op, strides)
    if found is None and all(map(is_equal, strides, contiguous_strides(op.x.shape))):
        return contiguous_strides(op.shape)
    return found


def _strides_by_chunks(op: Reshape, strides: Strides) -> Strides | None:
    """Compute the strides chunk by chunk of contiguous dimensions, as torch does."""
    old, new = op.x.shape, op.shape
    if any(dim == 0 for dim in (*old, *new)):
        same = len(old) == len(new) and all(map(is_equal, old, new))
        return strides if same else contiguous_strides(new)
    result: list[Dim] = [1] * len(new)
    position: int | None = len(new) - 1
    chunk_size: Dim = 1
    stride: Dim = strides[-1] if strides else 1
    for index in reversed(range(len(old))):
        chunk_size = product((chunk_size, old[index]))
        if index > 0 and (
            old[index - 1] == 1 or is_equal(strides[index - 1], product((chunk_size, stride)))
        ):
            continue
        position = _fill_chunk(new, result, position, chunk_size, stride)
        if position is None:
            return None
        if index > 0:
            chunk_size, stride = 1, strides[index - 1]
    if not old:
        position = _fill_chunk(new, result, position, 1, 1)
    return tuple(result) if position == -1 else None


def _fill_chunk(
    new: tuple[Dim, ...], result: list[Dim], position: int | None, size: Dim, stride: Dim
) -> int | None:
    """Lay dimensions of the new shape into one chunk; return the next, None if they do not fit."""
    running: Dim = 1
    if position is None:
        return None
    while position >= 0 and (_is_below(running, size) or new[position] == 1):
        result[position] = product((running, stride))
        running = product((running, new[position]))
        position -= 1
    return position if is_equal(running, size) else None


def _is_below(running: Dim, size: Dim) -> bool:
    if isinstance(running, int) and isinstance(size, int):
        return running < size
    return not is_equal(running, size)


def is_dense(shape: tuple[Dim, ...], strides: Strides) -> bool:
    """Whether the elements fill their memory without gap or overlap, in whatever order."""
    if any(dim == 0 for dim in shape):
        return True
    left = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size != 1]
    running: Dim = 1
    while left:
        found = next((pair for pair in left if is_equal(pair[1], running)), None)
        if found is None:
            return False
        left.remove(found)
        running = product((running, found[0]))
    return True


def chosen_strides(op: Op, type_: TensorType, known: Known, wanted: Strides | None) -> Strides:
    """Return the layout in which an op shall write a result.

    An elementwise op writes what the caller wants, if it is dense, or else the order of dimensions
    of the first operand of the full shape; a copy what its memory format says. A convolution
    writes channels last if its input or its weight is, as torch does. All others write row-major:
    kernels of torch with an `out` form exist that ignore its strides (`log_softmax` on CPU).
    """
    if isinstance(op, Convolution) and any(
        is_channels_last(value.shape, known(value)) for value in (op.x, op.weight)
    ):
        return channels_last_strides(type_.shape)
    if not op.is_elementwise:
        return contiguous_strides(type_.shape)
    if isinstance(op, Copy) and op.memory_format != "preserve_format":
        return _format_strides(type_.shape, op.memory_format)
    if wanted is not None and is_dense(type_.shape, wanted):
        return wanted
    for operand in op.operands:
        strides = _full_strides(operand, type_, known)
        if strides is not None:
            return strides
    return contiguous_strides(type_.shape)


def allocated_strides(op: Op, known: Known) -> tuple[Strides | None, ...]:
    """Return the layouts of results that the back end allocates, None where it does as it likes.

    Gradients of convolutions are channels last if the input or the weight is, else row-major.
    """
    unknown = (None,) * len(op.results)
    if not isinstance(op, ConvolutionBackwardInput | ConvolutionBackwardWeight):
        return unknown
    layouts = [(value.shape, known(value)) for value in (op.x, op.weight)]
    shapes = (*(shape for shape, _ in layouts), *(result.shape for result in op.results))
    if not all(map(is_static, shapes)) or any(strides is None for _, strides in layouts):
        return unknown
    is_last = any(is_channels_last(*layout) for layout in layouts)
    return tuple(
        channels_last_strides(shape) if is_last and len(shape) > 1 else contiguous_strides(shape)
        for shape in shapes[2:]
    )


def fused_strides(
    op: Fused, known: Known, wanted: Callable[[Value], Strides | None]
) -> tuple[Strides, ...]:
    """Return the layouts in which a fused op shall write its results.

    They are those that its ops would give one by one, so that fusion does not change a layout.
    `wanted` gives what the caller wants of a result.
    """
    inner: dict[Value, Strides | None] = {
        parameter: known(given) if isinstance(given.type, TensorType) else None
        for parameter, given in op.bound.items()
    }
    for part in op.body.ops:
        source = inner.get(part.operands[0]) if part.is_view else None
        target = written_into(part) if is_write(part) else None
        into = None if target is None else inner.get(target)
        for result in part.results:
            if part.is_view and has_rule(part) and source is not None:
                inner[result] = view_strides(part, source)
            elif into is not None and is_dense(result.shape, into):
                inner[result] = into
            elif isinstance(result.type, TensorType):
                inner[result] = chosen_strides(part, result.type, inner.get, None)
    chosen = []
    for result, inside in zip(op.results, op.body.results, strict=True):
        shape = result.shape
        strides = wanted(result)
        if strides is None or not is_dense(shape, strides):
            strides = inner[inside]
        if strides is None or not is_dense(shape, strides):
            strides = contiguous_strides(shape)
        chosen.append(strides)
    return tuple(chosen)


def _format_strides(shape: tuple[Dim, ...], memory_format: str) -> Strides:
    """Return the strides of a memory format: row-major, or with the channels innermost."""
    if not memory_format.startswith("channels_last"):
        return contiguous_strides(shape)
    return channels_last_strides(shape)


def channels_last_strides(shape: tuple[Dim, ...]) -> Strides:
    """Return the strides of images with the channels, dimension 1, innermost."""
    batch, channels, *space = shape
    inner_last = contiguous_strides((batch, *space, channels))
    return (inner_last[0], inner_last[-1], *inner_last[1:-1])


def is_channels_last(shape: tuple[Dim, ...], strides: Strides | None) -> bool:
    """Whether images surely have their channels innermost, and are not row-major as well."""
    if strides is None or len(shape) not in (4, 5):
        return False
    is_last = same_strides(shape, strides, channels_last_strides(shape))
    return is_last and not same_strides(shape, strides, contiguous_strides(shape))


def _full_strides(operand: Value, type_: TensorType, known: Known) -> Strides | None:
    if not isinstance(operand.type, TensorType) or operand.type.rank != type_.rank:
        return None
    if not all(map(is_equal, operand.type.shape, type_.shape)):
        return None
    strides = known(operand)
    if strides is None or not is_dense(type_.shape, strides):
        return None
    return tuple(simplify(stride) for stride in strides)


def are_static(type_: TensorType, strides: Strides) -> bool:
    """Whether neither the shape nor the strides depend on symbols."""
    return is_static((*type_.shape, *strides))
