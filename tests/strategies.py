"""Random well-typed graphs, and inputs for them, for property tests."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from lynx.ir import (
    Builder,
    DType,
    Graph,
    Location,
    Mutation,
    Op,
    Operand,
    ScalarType,
    TensorType,
    Value,
    print_graph,
)
from lynx.ir import ops as o
from tests.samples.inputs import random_tensor

FLOATS = (DType.F32, DType.F64, DType.BF16)
DTYPES = (*FLOATS, DType.I64, DType.BOOL)
MAX_ELEMENTS = 2000
NUMBERS: dict[DType, tuple[Any, ...]] = {
    DType.I64: (0, 1, -1, 2, -3),
    DType.BOOL: (True, False),
    **dict.fromkeys(FLOATS, (0.0, -0.0, 1.0, -1.0, 0.5, 2, 3.0, 0.1, math.inf, math.nan)),
}

Step: TypeAlias = Callable[[DrawFn, list[Value]], "Op | None"]
"""Draws an op over values of the pool; None if none of them fits."""


class ShownGraph(Graph):
    """A graph that a failing test shows as its text."""

    def __repr__(self) -> str:
        return f"\n{print_graph(self)}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))


def sizes() -> SearchStrategy[int]:
    """Return sizes of dimensions: mostly small and often equal, sometimes 0."""
    return st.sampled_from((2, 3, 1, 4, 5, 2, 3, 0))


def tensor_types(max_rank: int = 3) -> SearchStrategy[TensorType]:
    """Return types of inputs."""
    shapes = st.lists(sizes(), max_size=max_rank).map(tuple)
    return st.builds(TensorType, st.sampled_from(DTYPES), shapes)


@st.composite
def graphs(draw: DrawFn, max_ops: int = 12, mutations: bool = True) -> Graph:
    """Draw a graph of up to `max_ops` ops, each over any values before it, so that many are shared.

    All shapes are static. Values that overflow or are no numbers occur. No op is random, divides
    integers, or converts floats to integers, since torch leaves that undefined.
    """
    builder = Builder("random")
    pool: list[Value] = []
    for index in range(draw(st.integers(1, 3))):
        pool.append(builder.input(f"x{index}", draw(tensor_types())))
    for line in range(draw(st.integers(0, max_ops))):
        builder.loc = Location("random.py", line + 1, draw(st.sampled_from(("", "block.0"))))
        op = draw(st.sampled_from(STEPS))(draw, pool)
        if op is not None and all(_is_small(result) for result in op.results):
            pool.extend(builder.add(op).results)
    # Late values come first, so that small examples keep what was computed.
    outputs = tuple(draw(st.lists(st.sampled_from(pool[::-1]), min_size=1, max_size=3)))
    changed = draw(_mutations(builder.inputs, pool)) if mutations else ()
    graph = builder.build(outputs, mutations=changed)
    return ShownGraph(graph.name, graph.inputs, graph.ops, outputs, mutations=changed)


def inputs_for(graph: Graph, seed: int = 0) -> list[Any]:
    """Return a contiguous tensor for each input, and 2 for each that is a number."""
    generator = torch.Generator().manual_seed(seed)
    return [
        2 if isinstance(value.type, ScalarType) else random_tensor(value.tensor_type, generator)
        for value in graph.inputs
    ]


@st.composite
def _mutations(draw: DrawFn, inputs: list[Value], pool: list[Value]) -> tuple[Mutation, ...]:
    chosen: list[Mutation] = []
    for target in inputs:
        fitting = [value for value in pool[::-1] if value.type == target.type]
        if draw(st.integers(0, 3)) == 3:
            chosen.append(Mutation(target, draw(st.sampled_from(fitting))))
    return tuple(chosen)


def _is_small(value: Value) -> bool:
    numel = value.tensor_type.numel
    return isinstance(numel, int) and numel <= MAX_ELEMENTS


def _pick(draw: DrawFn, pool: list[Value], fits: Callable[[TensorType], bool]) -> Value | None:
    fitting = [value for value in pool[::-1] if fits(value.tensor_type)]
    return draw(st.sampled_from(fitting)) if fitting else None


def _shape(value: Value) -> tuple[int, ...]:
    return tuple(int(size) for size in value.shape)


def _dtype(value: Value) -> DType:
    return value.tensor_type.dtype


def _broadcasts(a: TensorType, b: TensorType) -> bool:
    pairs = zip(reversed(a.shape), reversed(b.shape), strict=False)
    return all(m == n or 1 in (m, n) for m, n in pairs)


def _partner(draw: DrawFn, pool: list[Value], x: Value, dtype: DType | None = None) -> Operand:
    """Draw a tensor that broadcasts with `x`, or a number."""
    dtype = dtype or _dtype(x)
    if draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from(NUMBERS[dtype]))  # type: ignore[no-any-return]  # a number
    found = _pick(draw, pool, lambda t: t.dtype is dtype and _broadcasts(t, x.tensor_type))
    return found if found is not None else NUMBERS[dtype][0]  # type: ignore[no-any-return]


UNARY: dict[str, tuple[type[Any], ...]] = {
    "f": (o.Exp, o.Tanh, o.Sigmoid, o.Sqrt, o.Rsqrt, o.Negate, o.Absolute, o.Relu, o.Gelu,
          o.Silu, o.Sin, o.Floor, o.Sign, o.IsNan, o.Reciprocal, o.Copy, o.LogicalNot),
    "i": (o.Negate, o.Absolute, o.Relu, o.Sign, o.Square, o.BitwiseNot, o.Copy, o.LogicalNot),
    "b": (o.LogicalNot, o.BitwiseNot, o.Copy),
}  # fmt: skip
BINARY: dict[str, tuple[type[Any], ...]] = {
    "f": (o.Add, o.Subtract, o.Multiply, o.Divide, o.Maximum, o.Minimum, o.Power),
    "i": (o.Add, o.Subtract, o.Multiply, o.Maximum, o.Minimum, o.BitwiseAnd, o.BitwiseXor),
    "b": (o.LogicalAnd, o.LogicalOr, o.BitwiseXor, o.Maximum),
}
COMPARISONS: tuple[type[Any], ...] = (o.Equal, o.NotEqual, o.Less, o.GreaterEqual)


def _category(value: Value) -> str:
    dtype = _dtype(value)
    return "b" if dtype is DType.BOOL else "i" if dtype.is_integer else "f"


def unary(draw: DrawFn, pool: list[Value]) -> Op | None:
    x = draw(st.sampled_from(pool[::-1]))
    op: Op = draw(st.sampled_from(UNARY[_category(x)]))(x)
    return op


def binary(draw: DrawFn, pool: list[Value]) -> Op | None:
    x = draw(st.sampled_from(pool[::-1]))
    y = _partner(draw, pool, x)
    pair = (y, x) if draw(st.booleans()) else (x, y)
    op: Op = draw(st.sampled_from(BINARY[_category(x)]))(*pair)
    return op


def comparison(draw: DrawFn, pool: list[Value]) -> Op | None:
    x = draw(st.sampled_from(pool[::-1]))
    op: Op = draw(st.sampled_from(COMPARISONS))(x, _partner(draw, pool, x))
    return op


def where(draw: DrawFn, pool: list[Value]) -> Op | None:
    condition = _pick(draw, pool, lambda t: t.dtype is DType.BOOL)
    if condition is None:
        return None
    x = _pick(draw, pool, lambda t: _broadcasts(t, condition.tensor_type))
    if x is None:
        return None
    y = _partner(draw, [v for v in pool if _broadcasts(v.tensor_type, condition.tensor_type)], x)
    shapes = [_shape(v) for v in (condition, x, y) if isinstance(v, Value)]
    # Pairs that broadcast need not do so together.
    return o.Where(condition, x, y) if _common(shapes) else None


def _common(shapes: list[tuple[int, ...]]) -> bool:
    try:
        torch.broadcast_shapes(*shapes)
    except RuntimeError:
        return False
    return True


def cast(draw: DrawFn, pool: list[Value]) -> Op | None:
    x = draw(st.sampled_from(pool[::-1]))
    targets = [t for t in DTYPES if not (t.is_integer and _dtype(x).is_floating)]
    return o.Cast(x, draw(st.sampled_from(targets)))


def reduction(draw: DrawFn, pool: list[Value]) -> Op | None:
    x = draw(st.sampled_from(pool[::-1]))
    rank = len(_shape(x))
    dims: tuple[int, ...] = ()
    if rank:
        some = st.lists(st.integers(0, rank - 1), min_size=1, unique=True)
        dims = tuple(sorted(draw(some)))
    kinds: list[type[Any]] = [o.Sum, o.AnyNonzero, o.AllNonzero]
    if all(_shape(x)[dim] > 0 for dim in dims):
        kinds += [o.Amax, o.Amin]
        kinds += [o.MaxWithIndex, o.ArgMax] if len(dims) == 1 and _category(x) != "b" else []
    kinds += [o.Mean, o.VarianceAndMean] if _category(x) == "f" else []
    op: Op = draw(st.sampled_from(kinds))(x, dims, draw(st.booleans()))
    return op


def softmax(draw: DrawFn, pool: list[Value]) -> Op | None:
    x = _pick(draw, pool, lambda t: t.dtype.is_floating and t.rank > 0)
    if x is None:
        return None
    op: Op = draw(st.sampled_from((o.Softmax, o.LogSoftmax)))(
        x, draw(st.integers(0, len(x.shape) - 1))
    )
    return op


def permute(draw: DrawFn, pool: list[Value]) -> Op | None:
    x = draw(st.sampled_from(pool[::-1]))
    return o.Permute(x, tuple(draw(st.permutations(range(len(x.shape))))))


def reshape(draw: DrawFn, pool: list[Value]) -> Op | None:
    x = draw(st.sampled_from(pool[::-1]))
    shape = _shape(x)
    numel = math.prod(shape)
    choices: list[tuple[int, ...]] = [(numel,), (1, *shape), (*shape, 1)]
    choices += [
        (*shape[:i], shape[i] * shape[i + 1], *shape[i + 2 :]) for i in range(len(shape) - 1)
    ]
    choices += [(2, numel // 2)] if numel and numel % 2 == 0 else []
    choices += [tuple(size for size in shape if size != 1)]
    return o.Reshape(x, draw(st.sampled_from(choices)))


def broadcast(draw: DrawFn, pool: list[Value]) -> Op | None:
    x = draw(st.sampled_from(pool[::-1]))
    lead = draw(st.lists(sizes(), max_size=1))
    return o.Broadcast(x, (*lead, *(draw(sizes()) if n == 1 else n for n in _shape(x))))


def unsqueeze(draw: DrawFn, pool: list[Value]) -> Op | None:
    x = draw(st.sampled_from(pool[::-1]))
    return o.Unsqueeze(x, draw(st.integers(0, len(x.shape))))


def slice_(draw: DrawFn, pool: list[Value]) -> Op | None:
    x = _pick(draw, pool, lambda t: t.rank > 0)
    if x is None:
        return None
    dim = draw(st.integers(0, len(x.shape) - 1))
    start, stop = sorted(draw(st.tuples(*[st.integers(0, _shape(x)[dim])] * 2)))
    return o.Slice(x, dim, start, stop, draw(st.integers(1, 2)))


def select(draw: DrawFn, pool: list[Value]) -> Op | None:
    x = _pick(draw, pool, lambda t: any(size != 0 for size in t.shape))
    if x is None:
        return None
    dim = draw(st.sampled_from([i for i, size in enumerate(_shape(x)) if size]))
    return o.Select(x, dim, draw(st.integers(0, _shape(x)[dim] - 1)))


def flip(draw: DrawFn, pool: list[Value]) -> Op | None:
    x = _pick(draw, pool, lambda t: t.rank > 0)
    return None if x is None else o.Flip(x, (draw(st.integers(0, len(x.shape) - 1)),))


def pad(draw: DrawFn, pool: list[Value]) -> Op | None:
    x = _pick(draw, pool, lambda t: t.rank > 0)
    if x is None:
        return None
    low, high = (tuple(draw(st.integers(0, 2)) for _ in x.shape) for _ in range(2))
    return o.Pad(x, draw(st.sampled_from(NUMBERS[_dtype(x)][:3])), low, high)


def concatenate(draw: DrawFn, pool: list[Value]) -> Op | None:
    x = _pick(draw, pool, lambda t: t.rank > 0)
    if x is None:
        return None
    dim = draw(st.integers(0, len(x.shape) - 1))

    def rest(shape: tuple[Any, ...]) -> tuple[Any, ...]:
        return shape[:dim] + shape[dim + 1 :]

    def fits(t: TensorType) -> bool:
        same = t.dtype is _dtype(x) and t.rank == len(x.shape)
        return same and rest(t.shape) == rest(x.shape)

    others = [_pick(draw, pool, fits) for _ in range(draw(st.integers(0, 2)))]
    return o.Concatenate((x, *(value for value in others if value is not None)), dim)


def matmul(draw: DrawFn, pool: list[Value]) -> Op | None:
    x = _pick(draw, pool, lambda t: t.rank in (2, 3) and t.dtype is not DType.BOOL)
    if x is None:
        return None

    def fits(t: TensorType) -> bool:
        same = t.dtype is _dtype(x) and t.rank == len(x.shape) and t.shape[:-2] == x.shape[:-2]
        return same and t.shape[-2] == x.shape[-1]

    y = _pick(draw, pool, fits)
    if y is None:
        return None
    return o.Matmul(x, y) if len(x.shape) == 2 else o.BatchMatmul(x, y)


def full(draw: DrawFn, pool: list[Value]) -> Op | None:
    type_ = draw(st.sampled_from(pool)).tensor_type
    number = draw(st.sampled_from(NUMBERS[type_.dtype]))
    return o.Full(number, type_.shape, type_.dtype)


STEPS: tuple[Step, ...] = (
    unary, binary, binary, comparison, where, cast, reduction, softmax, permute, reshape,
    broadcast, unsqueeze, slice_, select, flip, pad, concatenate, matmul, full,
)  # fmt: skip
