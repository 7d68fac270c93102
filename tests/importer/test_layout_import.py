"""Layout operators import to structured ops that mean the same, for static and symbolic sizes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lynx.backends.reference import run
from lynx.importer.layout_slicing import bounds
from lynx.importer.ranges import is_nonnegative
from lynx.ir.core import Value
from lynx.ir.dims import Dim, FloorDiv, SymbolRange, evaluate, is_equal, product, symbol
from lynx.ir.errors import CompileError
from lynx.ir.ops.layout import AsStrided, Permute, Reshape, Squeeze
from lynx.ir.ops.layout_slicing import Concatenate, Pad, Select, Slice
from lynx.ir.space import Factor, FactorKind, IterationSpace
from lynx.ir.types import DType, TensorType
from tests.importer.functions import aten, check, declined, numbers, traced
from tests.ir.test_iteration_spaces import part

x234 = numbers(2, 3, 4)
x34 = numbers(3, 4)
vector = numbers(5)
scalar = numbers()

UNARY: list[tuple[Callable[[torch.Tensor], Any], torch.Tensor]] = [
    (lambda x: aten.view.default(x, [6, -1]), x234),
    (lambda x: aten.view.default(x, [2, 3, 4]), x234),
    (lambda x: aten.view.default(x, [1]), scalar),
    (lambda x: aten.reshape.default(x, [4, 6]), x234.permute(2, 1, 0)),
    (lambda x: aten.view.dtype(x, torch.int32), x34),
    (lambda x: aten.permute.default(x, [-1, 0, 1]), x234),
    (lambda x: aten.permute.default(x, []), scalar),
    (lambda x: aten.transpose.int(x, -1, 0), x234),
    (lambda x: aten.transpose.int(x, 0, -1), scalar),
    (lambda x: aten.t.default(x), x34),
    (lambda x: aten.t.default(x), vector),
    (lambda x: aten.alias.default(x), x34),
    (lambda x: aten.expand.default(x, [2, -1, 4]), numbers(3, 1)),
    (lambda x: aten.expand.default(x, [0, 3]), numbers(1, 3)),
    (lambda x: aten.expand.default(x, [2, 2]), scalar),
    (lambda x: aten.unsqueeze.default(x, -1), x34),
    (lambda x: aten.unsqueeze.default(x, -3), x34),
    (lambda x: aten.unsqueeze.default(x, 0), scalar),
    (lambda x: aten.squeeze.default(x), numbers(1, 3, 1)),
    (lambda x: aten.squeeze.dim(x, -1), numbers(1, 3, 1)),
    (lambda x: aten.squeeze.dim(x, 1), numbers(1, 3, 1)),
    (lambda x: aten.squeeze.dim(x, -1), scalar),
    (lambda x: aten.squeeze.dims(x, [-1, 1, 0]), numbers(1, 3, 1)),
    (lambda x: aten.squeeze.dims(x, [0]), scalar),
    (lambda x: aten.slice.Tensor(x, 1, 1, 3), x234),
    (lambda x: aten.slice.Tensor(x, -1, -3, 100, 2), x234),
    (lambda x: aten.slice.Tensor(x, 0, 4, 2), vector),
    (lambda x: aten.slice.Tensor(x, 0, 7, 9), vector),
    (lambda x: aten.slice.Tensor(x, 0, -9, -1, 3), vector),
    (lambda x: aten.slice.Tensor(x), vector),
    (lambda x: aten.slice.Tensor(x, 0, None, None, 10), vector),
    (lambda x: aten.select.int(x, -2, -1), x234),
    (lambda x: aten.select.int(x, 0, 3), vector),
    (lambda x: aten.split.Tensor(x, 2, 0), vector),
    (lambda x: aten.split.Tensor(x, 10, -1), x34),
    (lambda x: aten.split_with_sizes.default(x, [1, 0, 3], -1), x34),
    (lambda x: aten.split_with_sizes.default(x, split_sizes=[1, 0, 3], dim=-1), x34),
    (lambda x: aten.unsafe_chunk.default(x, 3, 0), vector),
    (lambda x: aten.unbind.int(x, -2), x234),
    (lambda x: aten.constant_pad_nd.default(x, [1, 2], 0.5), x34),
    (lambda x: aten.constant_pad_nd.default(x, [-1, 2, 1, -1]), x234),
    (lambda x: aten.constant_pad_nd.default(x, [-1, -4], 3), vector),
    (lambda x: aten.constant_pad_nd.default(x, [0, 0]), vector),
    (lambda x: aten.constant_pad_nd.default(x, [1, 1, 0, 0], -0.0), x34),
    (lambda x: aten.constant_pad_nd.default(x, [2, 0], True), numbers(3, dtype=torch.bool)),
    (lambda x: aten.constant_pad_nd.default(x, [2, 0], -7), numbers(3, dtype=torch.int64)),
    (lambda x: aten.constant_pad_nd.default(x, [2, 0], float("-inf")), x34.bfloat16()),
    (lambda x: aten.flip.default(x, [-1, 0]), x234),
    (lambda x: aten.flip.default(x, [0]), scalar),
    (lambda x: aten.flip.default(x, []), x34),
    (lambda x: aten.roll.default(x, [7]), x34),
    (lambda x: aten.roll.default(x, [-1, 2, 5], [0, -1, 0]), x34),
    (lambda x: aten.repeat.default(x, [2, 3]), x34),
    (lambda x: aten.repeat.default(x, [2, 1, 0]), x34),
    (lambda x: aten.repeat.default(x, [2, 3]), numbers(1, 4)),
    (lambda x: aten.repeat.default(x, [2, 3]), scalar),
    (lambda x: aten.repeat.default(x, []), scalar),
    (lambda x: aten.repeat_interleave.self_int(x, 3, -2), x34),
    (lambda x: aten.repeat_interleave.self_int(x, 2), x34),
    (lambda x: aten.diagonal.default(x, 1, -1, 0), x234),
    (lambda x: aten.diagonal.default(x, -5), x34),
    (lambda x: aten.tril.default(x, -1), x234),
    (lambda x: aten.triu.default(x, 2), x34.bfloat16()),
    (lambda x: aten.triu.default(x), numbers(3, 3, dtype=torch.bool)),
    (lambda x: aten.unfold.default(x, -1, 2, 2), x34),
    (lambda x: aten.unfold.default(x, 0, 3, 1), vector),
]


@pytest.mark.parametrize("index", range(len(UNARY)))
def test_one_operand(index: int) -> None:
    function, x = UNARY[index]
    spread = x.new_zeros([2 * size for size in x.shape])[
        tuple(slice(None, None, 2) for _ in x.shape)
    ]
    spread.copy_(x)
    if "view" in function.__code__.co_names:
        spread = x.clone()
    check(function, x, others=((spread,),))


def test_scattering() -> None:
    check(lambda x, y: aten.select_scatter.default(x, y, 1, -1), x234, numbers(2, 4))
    check(lambda x, y: aten.slice_scatter.default(x, y, 1, -3, 10, 2), x34, numbers(3, 2, seed=1))
    check(lambda x, y: aten.slice_scatter.default(x, y, 1), x34, numbers(3, 4, seed=1))
    check(lambda x, y: aten.slice_scatter.default(x, y, 0, 9), x34, numbers(0, 4))
    check(lambda x: aten._unsafe_view.default(x, [24]), x234)


def test_reading_other_layouts_leaves_reshape_right() -> None:
    graph = traced(lambda x: aten.view.default(x, [12]), x34)
    other = x34.t().contiguous().t()
    (actual,) = run(graph.ops[0], {graph.inputs[0]: other}, {}, {})
    assert torch.equal(actual, x34.reshape(12))


@pytest.mark.parametrize(
    "tensors",
    [
        (x34, numbers(2, 4)),
        (x34, torch.zeros(0), numbers(1, 4)),
        (x34, torch.zeros(0, dtype=torch.float64)),
        (torch.zeros(0), torch.zeros(0, 4)),
        (torch.zeros(0),),
        (numbers(3), torch.zeros(0), numbers(2, dtype=torch.int64)),
        (numbers(2, 3, dtype=torch.int32), numbers(2, 3).bfloat16(), numbers(1, 3)),
        (numbers(2, dtype=torch.bool), numbers(2, dtype=torch.uint8)),
    ],
)
def test_concatenation(tensors: tuple[torch.Tensor, ...]) -> None:
    check(lambda *parts: aten.cat.default(parts, 0), *tensors)


def test_concatenation_along_other_dimensions() -> None:
    check(lambda a, b: aten.cat.default([a, b], -1), x34, numbers(3, 2))
    check(lambda a, b: aten.cat.default([a, b], 1), torch.zeros(0), x34)
    check(lambda a, b: aten.stack.default([a, b], -1), x34, numbers(3, 4, seed=1))
    check(lambda a, b: aten.stack.default([a, b]), scalar, numbers(seed=1))


def dense_layouts() -> list[torch.Tensor]:
    base = numbers(40)
    return [
        numbers(3, 4),
        numbers(4, 3).t(),
        base[7:19].view(3, 4),
        base[2:14].view(4, 3).t(),
        numbers(3, 1, 4).transpose(0, 1).squeeze(0),
    ]


@pytest.mark.parametrize("index", range(5))
@pytest.mark.parametrize(
    ("size", "stride", "skip"),
    [((2, 3), (1, 2), 1), ((12,), (1,), 0), ((3, 3), (0, 4), 2), ((), (), 5), ((0, 3), (5, 1), 3)],
)
def test_reading_by_strides_follows_the_traced_layout(
    index: int, size: tuple[int, ...], stride: tuple[int, ...], skip: int
) -> None:
    x = dense_layouts()[index]
    offset = x.storage_offset() + skip

    def read(x: torch.Tensor) -> torch.Tensor:
        return aten.as_strided.default(x, size, stride, offset)

    graph = traced(read, x)
    assert not declined(graph), declined(graph)
    environment = dict(zip(graph.inputs, (x,), strict=True))
    moved = torch.empty_strided((3, 4), (9, 2)).copy_(x)
    for tensor in (x, moved, x.contiguous()):
        values: dict[Value, Any] = {**environment, graph.inputs[0]: tensor}
        for op in graph.ops:
            values.update(zip(op.results, run(op, values, {}, {}), strict=True))
        assert torch.equal(values[graph.outputs[0]], read(x))  # type: ignore[index]


def test_reading_from_the_own_offset() -> None:
    x = dense_layouts()[2]
    check(lambda x: aten.as_strided.default(x, [2, 2], [4, 1]), x, others=((x.clone(),),))


@pytest.mark.parametrize("index", range(5))
def test_writing_by_strides_follows_the_traced_layout(index: int) -> None:
    x, source = dense_layouts()[index], numbers(2, 3, seed=3)
    offset = x.storage_offset() + 1

    def write(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return aten.as_strided_scatter.default(x, source, [2, 3], [6, 2], offset)

    graph = traced(write, x, source)
    assert not declined(graph)
    expected = write(x, source)
    for tensor in (x, x.contiguous()):
        values: dict[Value, Any] = dict(zip(graph.inputs, (tensor, source), strict=True))
        for op in graph.ops:
            values.update(zip(op.results, run(op, values, {}, {}), strict=True))
        assert torch.equal(values[graph.outputs[0]], expected)  # type: ignore[index]


@pytest.mark.parametrize(
    ("x", "size", "offset"),
    [
        (numbers(40)[10:22].view(3, 4), (20,), 10),
        (numbers(40)[10:22].view(3, 4), (4,), 9),
        (numbers(3, 8)[:, ::2], (3,), 0),
        (numbers(3, 1).expand(3, 4), (3,), 0),
    ],
)
def test_reading_other_memory_is_declined(
    x: torch.Tensor, size: tuple[int, ...], offset: int
) -> None:
    graph = traced(lambda x: aten.as_strided.default(x, size, [1] * len(size), offset), x)
    assert declined(graph)


DYNAMIC: list[tuple[Callable[[torch.Tensor], Any], str]] = [
    (
        lambda x: aten.view.default(x, [x.shape[0] * x.shape[1], x.shape[2]]),
        "d0 d1 d2 -> (d0 d1) d2",
    ),
    (
        lambda x: aten.view.default(x, [x.shape[0], x.shape[1], 2, 2, -1]),
        "d0 d1 (d2 d3 d4) -> d0 d1 d2 d3 d4",
    ),
    (lambda x: aten.slice.Tensor(x, 0, 1), ""),
    (lambda x: aten.slice.Tensor(x, 0, -2), ""),
    (lambda x: aten.slice.Tensor(x, 0, 0, -1), ""),
    (lambda x: aten.slice.Tensor(x, 1, 1, -1, 2), ""),
    (lambda x: aten.slice.Tensor(x, 0, 0, 2**63 - 1), ""),
    (lambda x: aten.slice.Tensor(x, 2, 0, 4), ""),
    (lambda x: aten.slice.Tensor(x, 0, x.shape[0] - 2, x.shape[0] - 1), ""),
    (lambda x: aten.select.int(x, 1, -1), ""),
    (lambda x: aten.select.int(x, 0, 2), ""),
    (lambda x: aten.cat.default([x, x, x[1:]]), ""),
    (lambda x: aten.stack.default([x, x]), ""),
    (lambda x: aten.split.Tensor(x, 3, -1), ""),
    (lambda x: aten.constant_pad_nd.default(x, [1, -1, 2, 0]), ""),
    (lambda x: aten.expand.default(x.unsqueeze(0), [3, -1, -1, -1]), ""),
    (lambda x: aten.expand.default(x[:1], [x.shape[1], -1, -1]), ""),
    (lambda x: aten.repeat.default(x, [2, 1, 3]), ""),
    (lambda x: aten.repeat_interleave.self_int(x, 2, 1), ""),
    (lambda x: aten.roll.default(x, [1]), ""),
    (lambda x: aten.flip.default(x, [0]), ""),
    (lambda x: aten.tril.default(x), ""),
    (lambda x: aten.unfold.default(x, 1, 2, 1), ""),
    (lambda x: aten.slice_scatter.default(x, x[2:], 0, 2), ""),
    (lambda x: aten.select_scatter.default(x, x[0], 0, -1), ""),
    (lambda x: aten.as_strided.default(x, x.shape, x.stride()), ""),
    (lambda x: aten.squeeze.default(x.unsqueeze(1)), ""),
]


@pytest.mark.parametrize("index", range(len(DYNAMIC)))
def test_symbolic_sizes(index: int) -> None:
    function, space = DYNAMIC[index]
    graph = check(
        function, numbers(5, 6, 8), dynamic=True, others=((numbers(7, 9, 8),), (numbers(4, 3, 8),))
    )
    if space:
        assert str(graph.ops[-1].space()) == space


RANGES = {"s0": SymbolRange("s0", 2, None), "s1": SymbolRange("s1", 0, 100)}


def test_bounds_of_symbolic_dimensions() -> None:
    size, bound = symbol("s0"), symbol("u0")
    assert bounds(size, 1, None, 1, size - 1, RANGES) == (1, size)
    assert bounds(size, -3, None, 1, 3, RANGES) == (size - 3, size)
    assert bounds(size, None, bound, 1, bound, RANGES) == (0, bound)
    assert bounds(size, bound, None, 1, size - bound, RANGES) == (bound, size)
    assert bounds(10, bound, None, 1, -bound, RANGES) == (bound + 10, 10)
    assert bounds(size, None, 100, 1, size, RANGES) == (0, size)
    start = symbol("s1")
    assert bounds(size, start, start + 3, 1, 3, RANGES) == (start, start + 3)


def test_sign_of_symbolic_integers() -> None:
    s0, s1 = symbol("s0"), symbol("s1")
    for dim in (0, s0, s0 - 2, s0 * s1, 2 * s0 + s1 - 4, 200 - 2 * s1, FloorDiv(s0, 2) - 1):
        assert is_nonnegative(dim, RANGES)
    for dim in (-1, s0 - 3, s1 - s0, 199 - 2 * s1, symbol("u0"), sympy.Min(s0, s1)):
        assert not is_nonnegative(dim, RANGES)


@pytest.mark.parametrize(
    ("size", "start", "end", "length"),
    [
        (symbol("s0"), 1, None, symbol("s0")),
        (symbol("s0"), symbol("u0"), symbol("u1"), symbol("u1") - symbol("u0")),
        (symbol("s0"), None, symbol("s1"), sympy.Min(symbol("s0"), symbol("s1"))),
        (symbol("s0"), None, symbol("u0"), symbol("u1")),
    ],
)
def test_bounds_that_cannot_be_told(size: Dim, start: Dim, end: Dim, length: Dim) -> None:
    assert bounds(size, start, end, 1, length, RANGES) is None


@given(
    size=st.integers(0, 8),
    start=st.none() | st.integers(-10, 10),
    end=st.none() | st.integers(-10, 10),
    step=st.integers(1, 4),
)
def test_static_bounds_are_pythons(
    size: int, start: int | None, end: int | None, step: int
) -> None:
    items = list(range(size))[start:end:step]
    found = bounds(size, start, end, step, len(items), {})
    assert found is not None
    assert list(range(size))[found[0] : found[1] : step] == items
    assert 0 <= found[0] <= found[1] <= size


def tensor(*shape: Dim, dtype: DType = DType.F32) -> Value:
    return Value(TensorType(dtype, shape))


def check_refinement(space: IterationSpace, source: Any, target: Any) -> None:
    """Check that any part of a parallel factor, or all of them at once, reads what it should."""
    for factor in space.of_kind(FactorKind.PARALLEL):
        size = int(factor.size)
        for start, length in {(0, 1), (size // 2, size - size // 2), (size - 1, 1)}:
            if size == 0:
                continue
            cut = Factor(factor.name, length, combine=str(start))
            read = part(source, space.operands[0], space, cut)
            written = part(target, space.results[0], space, cut)
            assert torch.equal(read.reshape(-1), written.reshape(-1))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_reshapes_factor_soundly(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.sampled_from([0, 1, 2, 2, 3, 4, 5]), max_size=5))
    grouped = data.draw(grouping(sizes))
    if data.draw(st.booleans()):
        total = int(torch.Size(sizes).numel())
        grouped = tuple(data.draw(st.sampled_from(factorizations(total))))
    x = torch.arange(torch.Size(sizes).numel()).reshape(sizes)
    op = Reshape(tensor(*sizes), grouped)
    space = op.space()
    for shape, maps in ((sizes, space.operands[0]), (grouped, space.results[0])):
        for size, axis in zip(shape, maps, strict=True):
            assert product(space.factor(name).size for name in axis) == size
    check_refinement(space, x, x.reshape(grouped))


def factorizations(total: int) -> list[tuple[int, ...]]:
    """Return shapes with this number of elements."""
    if total == 0:
        return [(0,), (0, 3), (2, 0), (3, 0, 2)]
    found = [(total,)]
    for first in range(2, min(total, 9)):
        if total % first == 0:
            found.append((first, total // first))
            found += [(first, *rest) for rest in factorizations(total // first)[:3]]
    return found


@st.composite
def grouping(draw: st.DrawFn, sizes: list[Any]) -> tuple[Dim, ...]:
    """Merge runs of neighbouring dimensions, and put in some of size 1."""
    shape: list[Dim] = []
    index = 0
    while index < len(sizes):
        count = draw(st.integers(1, 3))
        shape.append(product(sizes[index : index + count]))
        index += count
        if draw(st.integers(0, 4)) == 0:
            shape.append(1)
    return tuple(shape)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_symbolic_reshapes_factor_completely(data: st.DataObject) -> None:
    symbols = [symbol("s0"), symbol("s1"), symbol("s0") + 1]
    sizes = data.draw(st.lists(st.sampled_from([2, 3, 4, *symbols]), min_size=1, max_size=5))
    source, target = data.draw(grouping(sizes)), data.draw(grouping(sizes))
    space = Reshape(tensor(*source), target).space()
    assert not space.of_kind(FactorKind.OPAQUE)
    for shape, maps in ((source, space.operands[0]), (target, space.results[0])):
        for size, axis in zip(shape, maps, strict=True):
            assert is_equal(product(space.factor(name).size for name in axis), size)
    values = {"s0": 3, "s1": 5}
    x = torch.arange(evaluate(product(sizes), values))
    static = IterationSpace(
        tuple(Factor(f.name, evaluate(f.size, values), f.kind) for f in space.factors),
        space.operands,
        space.results,
    )
    shapes = [[evaluate(size, values) for size in shape] for shape in (source, target)]
    check_refinement(static, x.reshape(shapes[0]), x.reshape(shapes[1]))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_compositions(data: st.DataObject) -> None:
    steps = data.draw(st.lists(st.sampled_from(["slice", "permute", "expand", "view"]), max_size=5))
    x = torch.arange(60.0).reshape(3, 1, 4, 5)
    program: list[Callable[[torch.Tensor], torch.Tensor]] = []
    for step in steps:
        function = drawn_step(data, step, x)
        program.append(function)
        x = function(x)

    def composed(x: torch.Tensor) -> torch.Tensor:
        for function in program:
            x = function(x)
        return x

    check(composed, torch.arange(60.0).reshape(3, 1, 4, 5))


def drawn_step(
    data: st.DataObject, step: str, x: torch.Tensor
) -> Callable[[torch.Tensor], torch.Tensor]:
    rank = x.dim()
    if step == "slice" and rank:
        dim = data.draw(st.integers(-rank, rank - 1))
        start, end = data.draw(st.integers(-6, 6)), data.draw(st.integers(-6, 6))
        by = data.draw(st.integers(1, 3))
        return lambda x: aten.slice.Tensor(x, dim, start, end, by)
    if step == "permute":
        order = data.draw(st.permutations(range(rank)))
        return lambda x: aten.permute.default(x, order)
    if step == "expand":
        sizes = [data.draw(st.sampled_from([2, 3])) if size == 1 else -1 for size in x.shape]
        return lambda x: aten.expand.default(x, [2, *sizes]) if rank < 5 else x
    shape = (*x.shape[: rank // 2], int(torch.Size(x.shape[rank // 2 :]).numel()))
    return lambda x: aten.reshape.default(x, shape)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Reshape(tensor(3, 4), (5, 2)),
        lambda: Permute(tensor(3, 4), (0, 0)),
        lambda: Squeeze(tensor(3, 1), (0,)),
        lambda: Slice(tensor(3), 0, 2, 1),
        lambda: Slice(tensor(symbol("s0")), 0, symbol("s0") - 1, symbol("s0") + 1),
        lambda: Select(tensor(3), 0, 3),
        lambda: Pad(tensor(3), 0, (-2,), (-2,)),
        lambda: Concatenate((tensor(3), tensor(3, dtype=DType.I64)), 0),
        lambda: Concatenate((tensor(3, 4), tensor(3, 5)), 0),
        lambda: AsStrided(tensor(3, 4), (2, 7), (6, 1)),
    ],
)
def test_wrong_ops_cannot_be_built(build: Callable[[], Any]) -> None:
    with pytest.raises(CompileError):
        build()


def test_gradients_of_triangles_shift() -> None:
    for rows, columns in itertools.product((2, 5), (3, 4)):
        check(lambda x: aten.tril.default(x, 1), numbers(rows, columns))
