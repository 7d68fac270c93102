"""What the kernels of attention for GPUs do not compute."""

from __future__ import annotations

from lynx.ir.dims import Dim
from lynx.ir.errors import CompileError
from lynx.ir.kernel import Index, Kernel, Store
from lynx.ir.ops.attention import Attending, AttentionBackward
from lynx.ir.score import is_plain
from lynx.ir.types import DType, TensorType
from lynx.passes.layouts import is_dense
from lynx.passes.target import Target

from .differentiate import GRAD_DOT, derivative_kernel
from .score import row_major, score_kernel

ELEMENTS = (DType.F32, DType.BF16, DType.F16)
"""The types of queries, keys and values."""

MOST_DEPTH = 256
"""A tile of queries as deep as this fits into registers, just so."""


def why_not_on_device(op: Attending, target: Target) -> str:
    """Return why kernels for a GPU do not compute an attention, empty if they do."""
    reason = why_not_such_operands(op.q.tensor_type.dtype, (op.q.shape[3], op.v.shape[3]))
    if reason:
        return reason
    score = op.scoring()
    if score is None or is_plain(score):
        return ""
    given = (value.type for value in op.inputs)
    strides = [row_major(t.shape) if isinstance(t, TensorType) else None for t in given]
    try:
        score_kernel(score, strides)
        if isinstance(op, AttentionBackward):
            wanted = [n for n, want in enumerate(op.wanted[4:]) if want]
            derivative = derivative_kernel(score, strides, wanted)
            if target.is_deterministic and not all_apart(derivative):
                return "gradients of operands would be added up in any order"
    except CompileError as error:
        return error.message
    return ""


def why_not_such_operands(dtype: DType, depths: tuple[Dim, Dim]) -> str:
    """Return why there is no kernel for operands of a type and depths, empty if there is one."""
    if dtype not in ELEMENTS:
        return f"kernels for GPUs attend to no {dtype}"
    for depth in depths:
        if isinstance(depth, int) and not 0 < depth <= MOST_DEPTH:
            return f"kernels for GPUs attend to depths from 1 to {MOST_DEPTH}, not to {depth}"
    return ""


def all_apart(derivative: Kernel) -> bool:
    """Whether all that is added to gradients of operands is added to places of its own."""
    stores = [one for one in derivative.body if isinstance(one, Store)]
    return all(is_apart(one, derivative) for one in stores if one.buffer.name != GRAD_DOT)


def is_apart(store: Store, derivative: Kernel) -> bool:
    """Whether each pair of a query and a key stores to a place of its own, and only once."""
    stores = [one for one in derivative.body if isinstance(one, Store)]
    if sum(one.buffer is store.buffer for one in stores) > 1:
        return False
    return _are_apart(store.index, derivative.sizes)


def _are_apart(index: Index, sizes: dict[str, Dim]) -> bool:
    """Whether an index is another one for each combination of positions along the axes."""
    axes: list[str] = []
    for term in index.terms:
        if not isinstance(term.of, str) or term.divisor != 1 or term.modulus is not None:
            return False
        axes.append(term.of)
    if any(size != 1 and axes.count(axis) != 1 for axis, size in sizes.items()):
        return False
    return is_dense(tuple(sizes[axis] for axis in axes), tuple(t.stride for t in index.terms))
