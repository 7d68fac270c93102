"""How results lie on a mesh: compound dimensions, units, nested axes, and what is refused."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from lynx.ir import DType, Graph, Mesh, TensorType, Value, parse_graph, print_graph
from lynx.ir.core import Op
from lynx.ir.errors import CompileError, UsageError
from lynx.ir.ops import (
    Add,
    AddMatmul,
    AllGather,
    AllReduce,
    AllToAll,
    Aten,
    Broadcast,
    CumulativeSum,
    Exp,
    LowerTriangle,
    Matmul,
    Permute,
    RandomUniform,
    ReduceScatter,
    Replicate,
    Reshape,
    Shard,
    Softmax,
    Sum,
    Unfold,
)
from lynx.ir.ops.random import Bernoulli
from lynx.ir.shard_rules import ShardingError, dim_split, factor_splits, normal_split
from lynx.ir.sharding import (
    WHOLE,
    Partial,
    Sharding,
    Split,
    parse_sharding,
    replicated,
    sharding_of,
)

MESH = Mesh("m", (("dp", 2), ("tp", 4)))


def tensor(*shape: int, on: str | None = None, partial: tuple[Partial, ...] = (),
           mesh: Mesh = MESH, dtype: DType = DType.F32) -> Value:  # fmt: skip
    """Return a value that lies as a plan says, replicated if it says nothing."""
    given = replicated(len(shape)) if on is None else parse_sharding(on, mesh)
    sharding = sharding_of(given.splits, partial, mesh)
    return Value(TensorType(dtype, shape, sharding=sharding), name="x")


def lies(op: Op, result: int = 0) -> str:
    """Return how a result lies, in text."""
    return str(op.results[result].tensor_type.sharding)


def code(build: Any) -> str:
    with pytest.raises(CompileError) as caught:
        build()
    return caught.value.code


SUM = (Partial("sum", "tp"),)
MAX = (Partial("max", "tp"),)
ROWS, COLUMNS = tensor(6, 8, on="_, tp"), tensor(8, 4, on="tp, _")


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (Matmul(tensor(6, 8, on="dp, _"), tensor(8, 4, on="_, tp")), "(dp, tp)"),
        (Matmul(tensor(6, 8, on="dp, tp"), tensor(8, 4, on="tp, _")), "(dp, _) + partial(sum: tp)"),
        (Matmul(tensor(6, 8, on="_, (dp, tp)"), tensor(8, 4, on="(dp, tp), _")),
         "(_, _) + partial(sum: dp) + partial(sum: tp)"),
        (Sum(tensor(6, 8, on="dp, tp"), (0,)), "(tp) + partial(sum: dp)"),
        (Exp(tensor(6, 8, on="(dp, tp), _")), "((dp, tp), _)"),
        (Add(tensor(6, 8, on="dp, tp"), tensor(8, on="tp")), "(dp, tp)"),
        (Add(tensor(6, 8, partial=SUM), tensor(6, 8, partial=SUM)), "(_, _) + partial(sum: tp)"),
        (Permute(tensor(6, 8, on="dp, tp"), (1, 0)), "(tp, dp)"),
        (Broadcast(tensor(6, 1, on="dp, _"), (3, 6, 5)), "(_, dp, _)"),
        # Heads of 64 elements: evenly, and 6 of them among 4 devices.
        (Reshape(tensor(5, 512, on="_, tp"), (5, 8, 64)), "(_, tp, _)"),
        (Reshape(tensor(5, 8, 64, on="_, tp, _"), (5, 512)), "(_, tp)"),
        (Reshape(tensor(5, 384, on="_, tp by 64"), (5, 6, 64)), "(_, tp, _)"),
        (Reshape(tensor(5, 6, 64, on="_, tp, _"), (5, 384)), "(_, tp by 64)"),
        (Reshape(tensor(5, 384, on="_, (dp, tp) by 64"), (5, 6, 64)), "(_, (dp, tp), _)"),
        (Reshape(tensor(5, 512, on="_, (dp, tp)"), (5, 8, 64)), "(_, (dp, tp), _)"),
        # One device, one outer element: the axes further in cut what is inside.
        (Reshape(tensor(14, on="(dp, tp)"), (2, 7)), "(dp, tp)"),
        (Reshape(tensor(2, 7, on="dp, tp"), (14,)), "((dp, tp))"),
        # Batch and sequence become one.
        (Reshape(tensor(4, 6, 3, on="dp, _, _"), (24, 3)), "(dp, _)"),
        (Reshape(tensor(3, 6, 5, on="dp, _, _"), (18, 5)), "(dp by 6, _)"),
        (Reshape(tensor(18, 5, on="dp by 6, _"), (3, 6, 5)), "(dp, _, _)"),
        # Only the sequence is cut: each device has a piece of each sequence.
        (Reshape(tensor(4, 6, 3, on="_, tp, _"), (24, 3)), "(tp of 4, _)"),
        (Reshape(tensor(24, 3, on="tp of 4, _"), (4, 6, 3)), "(_, tp, _)"),
        (Reshape(tensor(4, 6, 3, on="dp, tp, _"), (24, 3)), "((dp, tp of 4), _)"),
        (Reshape(tensor(24, 3, on="(dp, tp of 4), _"), (4, 6, 3)), "(dp, tp, _)"),
        (Reshape(tensor(24, 3, on="tp of 4, _"), (2, 2, 6, 3)), "(_, _, tp, _)"),
        (Matmul(tensor(24, 8, on="tp of 4, _"), tensor(8, 4)), "(tp of 4, _)"),
        (Matmul(tensor(8, 24, on="_, tp of 4"), tensor(24, 4, on="tp of 4, _")),
         "(_, _) + partial(sum: tp)"),
    ],
)  # fmt: skip
def test_results_lie(op: Op, expected: str) -> None:
    assert lies(op) == expected


def test_replicate_and_shard_name_the_mesh() -> None:
    plain = Value(TensorType(DType.F32, (6, 8)))
    whole = Replicate(plain, ("dp", "tp"), (2, 4)).out
    sharding = whole.tensor_type.sharding
    assert sharding is not None
    assert sharding.is_replicated
    assert sharding.mesh is not None
    assert sharding.mesh.axes == MESH.axes
    assert lies(Shard(Shard(whole, ("dp",), 0).out, ("tp",), 0)) == "((dp, tp), _)"


def test_partial_sums_are_ordered_as_the_mesh() -> None:
    one = Matmul(tensor(6, 8, on="_, tp"), tensor(8, 4, on="tp, _")).out
    both = Matmul(one, tensor(4, 4))
    assert lies(Sum(Exp(tensor(6, 4, on="tp, dp")).out, (0, 1))) == (
        "() + partial(sum: dp) + partial(sum: tp)"
    )
    assert lies(both) == "(_, _) + partial(sum: tp)"


REFUSED: list[tuple[str, Any]] = [
    ("operands-disagree", lambda: Add(tensor(6, on="dp"), tensor(6, on="tp"))),
    ("operands-disagree", lambda: Add(tensor(6, on="dp"), tensor(6))),
    ("operands-disagree", lambda: Matmul(tensor(6, 8, on="_, tp"), tensor(8, 4))),
    ("operands-disagree", lambda: Add(tensor(8, on="tp by 4"), tensor(8, on="tp"))),
    ("needs-whole", lambda: Softmax(tensor(6, 8, on="_, tp"), 1)),
    ("needs-whole", lambda: CumulativeSum(tensor(6, on="tp"), 0)),
    ("needs-whole", lambda: Broadcast(tensor(1, on="tp"), (4,))),
    ("needs-whole", lambda: Bernoulli(tensor(6, on="tp"))),
    ("needs-whole", lambda: Aten("f", (tensor(6, on="tp"),), (), (TensorType(DType.F32, (6,)),))),
    ("needs-whole", lambda: AddMatmul(tensor(4), ROWS, COLUMNS)),
    ("needs-reduction", lambda: Exp(tensor(6, partial=SUM))),
    ("needs-reduction", lambda: Add(tensor(6, partial=SUM), tensor(6))),
    ("needs-reduction", lambda: Add(tensor(6, partial=SUM), 1.0)),
    ("needs-reduction", lambda: Matmul(tensor(6, 8, partial=SUM), tensor(8, 4, partial=SUM))),
    ("needs-reduction", lambda: Add(tensor(6, partial=SUM), tensor(6, partial=MAX))),
    ("needs-reduction", lambda: Sum(tensor(6, partial=MAX), (0,))),
    ("axis-used-twice", lambda: Matmul(tensor(6, 8, on="tp, _"), tensor(8, 4, on="_, tp"))),
    ("axis-used-twice", lambda: Matmul(tensor(6, 8, partial=SUM), tensor(8, 4, on="_, tp"))),
    ("axis-used-twice", lambda: Shard(tensor(6, 8, on="tp, _"), ("tp",), 1)),
    ("axis-used-twice", lambda: Replicate(tensor(6, on="tp"), ("dp", "tp"), (2, 4))),
    ("needs-neighbours", lambda: Unfold(tensor(9, on="tp"), 0, 3, 2)),
    ("pieces-apart", lambda: LowerTriangle(tensor(48, 3, on="tp of 6, _"))),
    ("pieces-apart", lambda: Reshape(tensor(48, on="tp of 6"), (4, 12))),
    ("bad-unit", lambda: Shard(tensor(48), ("tp",), 0, groups=5)),
    ("pieces-apart", lambda: Reshape(tensor(5, 384, on="_, tp"), (5, 6, 64))),
    ("pieces-apart", lambda: Reshape(tensor(10, on="(dp, tp)"), (5, 2))),
    ("bad-unit", lambda: Reshape(tensor(10, on="tp by 4"), (5, 2))),
    ("bad-unit", lambda: Shard(tensor(6, 8), ("tp",), 0, unit=4)),
    ("bad-unit", lambda: Shard(tensor(12, on="dp by 4"), ("tp",), 0, unit=3)),
    ("not-partial", lambda: AllReduce(tensor(6), ("tp",))),
    ("not-partial", lambda: AllReduce(tensor(6, partial=SUM), ("dp",))),
    ("not-partial", lambda: AllReduce(tensor(6, partial=SUM), ("tp",), "max")),
    ("not-partial", lambda: ReduceScatter(tensor(6, partial=SUM), ("tp", "tp"), 0)),
    ("not-cut", lambda: AllGather(tensor(6), ("tp",), 0)),
    ("not-cut", lambda: AllGather(tensor(6, on="(dp, tp)"), ("dp",), 0)),
    ("not-cut", lambda: AllToAll(tensor(6, 8, on="_, tp"), ("tp",), 0, 1)),
    ("bad-dim", lambda: AllGather(tensor(6, on="tp"), ("tp",), 1)),
    ("bad-dim", lambda: AllToAll(tensor(6, on="tp"), ("tp",), 0, 0)),
    ("bad-dim", lambda: Shard(tensor(6), ("tp",), -1)),
    ("no-axes", lambda: AllReduce(tensor(6, partial=SUM), ())),
]  # fmt: skip


@pytest.mark.parametrize(("expected", "build"), REFUSED)
def test_refused(expected: str, build: Any) -> None:
    assert code(build) == expected


def test_the_reason_names_the_operand() -> None:
    with pytest.raises(CompileError, match=r"operand 1 is whole along 'k', needed cut by 'tp'"):
        Matmul(tensor(6, 8, on="_, tp"), tensor(8, 4))


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        ("bad-sharding", "dp tp"),
        ("bad-sharding", "dp, (tp"),
        ("bad-sharding", "dp by x"),
        ("axis-used-twice", "dp, dp"),
        ("axis-used-twice", "(tp, tp)"),
        ("unknown-axis", "pp, _"),
    ],
)
def test_malformed_plans(expected: str, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_sharding(text, MESH)
    assert caught.value.code == expected


def test_units_are_normalised() -> None:
    assert normal_split(Split(("tp",), 64), 512, MESH) == Split(("tp",))
    assert normal_split(Split(("tp",), 64), 384, MESH) == Split(("tp",), 64)
    assert normal_split(Split((), 64), 384, MESH) == WHOLE
    gathered = AllGather(tensor(384, on="(dp, tp) by 64"), ("tp",), 0)
    assert lies(gathered) == "(dp)"


def test_random_ops_make_whole_tensors() -> None:
    drawn = RandomUniform(0.0, 1.0, (4,), DType.F32).out
    assert drawn.tensor_type.sharding is None


# properties

sizes = st.integers(0, 13)
meshes = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(
    lambda counts: Mesh("m", tuple((f"a{n}", count) for n, count in enumerate(counts)))
)


@st.composite
def splits_of(draw: st.DrawFn, mesh: Mesh, unit: int | None = None) -> Split:
    axes = draw(st.permutations(mesh.names))
    count = draw(st.integers(0, len(axes)))
    return Split(tuple(axes[:count]), draw(st.integers(1, 4)) if unit is None else unit)


def places(mesh: Mesh) -> list[dict[str, int]]:
    return [mesh.coordinates(number) for number in range(mesh.device_count)]


@settings(deadline=None)
@given(st.data(), meshes, sizes)
def test_parts_cover_each_index_once(data: st.DataObject, mesh: Mesh, count: int) -> None:
    split = data.draw(splits_of(mesh))
    size = count * split.unit
    parts: dict[tuple[int, ...], tuple[int, int]] = {}
    for place in places(mesh):
        key = tuple(place[axis] for axis in split.axes)
        part = split.part(size, mesh, place)
        assert parts.setdefault(key, part) == part  # other axes replicate
    reached = 0
    for key in sorted(parts):  # in order, without gaps
        start, length = parts[key]
        assert start == reached
        assert length % split.unit == 0
        reached += length
    assert reached == size


@settings(deadline=None)
@given(st.data(), meshes, sizes)
def test_normalising_keeps_every_part(data: st.DataObject, mesh: Mesh, count: int) -> None:
    split = data.draw(splits_of(mesh))
    normal = normal_split(split, count * split.unit, mesh)
    for place in places(mesh):
        size = count * split.unit
        assert normal.part(size, mesh, place) == split.part(size, mesh, place)


def test_blocks_lie_in_blocks() -> None:
    mesh = Mesh("m", (("a", 1), ("b", 2)))
    with pytest.raises(ShardingError, match="cuts through blocks"):
        normal_split(Split(("a", "b"), 1, (2, 3)), 6, mesh)


@settings(max_examples=300, deadline=None)
@given(st.data(), meshes, st.lists(st.integers(1, 6), min_size=1, max_size=3))
def test_factors_and_dimensions_are_cut_alike(
    data: st.DataObject, mesh: Mesh, factor_sizes: list[int]
) -> None:
    """Where a cut of a dimension is one of its factors, it is the same cut, part by part."""
    names = [f"f{n}" for n in range(len(factor_sizes))]
    total = math.prod(factor_sizes)
    unit = data.draw(st.sampled_from([n for n in range(1, total + 1) if total % n == 0]))
    split = normal_split(data.draw(splits_of(mesh, unit)), total, mesh)
    found = factor_splits(names, factor_sizes, split, mesh)
    if found is None:
        return
    check_parts(names, factor_sizes, found, split, mesh)
    back = dim_split(names, factor_sizes, found, mesh)
    assert back is not None
    for place in places(mesh):
        assert held(back, total, mesh, place) == held(split, total, mesh, place)


@settings(max_examples=300, deadline=None)
@given(st.data(), meshes, st.lists(st.integers(1, 6), min_size=2, max_size=4))
def test_cuts_within_blocks_go_to_factors_and_back(
    data: st.DataObject, mesh: Mesh, factor_sizes: list[int]
) -> None:
    names = [f"f{n}" for n in range(len(factor_sizes))]
    axes = list(data.draw(st.permutations(mesh.names)))
    given_splits = {}
    for name in names:
        count = data.draw(st.integers(0, len(axes)))
        if count:
            given_splits[name] = Split(tuple(axes[:count]))
            axes = axes[count:]
    split = dim_split(names, factor_sizes, given_splits, mesh)
    if split is None:
        return
    check_parts(names, factor_sizes, given_splits, split, mesh)
    found = factor_splits(names, factor_sizes, split, mesh)
    assert found is not None
    check_parts(names, factor_sizes, found, split, mesh)


@settings(max_examples=300, deadline=None)
@given(st.data(), meshes, st.lists(st.integers(1, 6), min_size=1, max_size=3))
def test_dimensions_and_factors_are_cut_alike(
    data: st.DataObject, mesh: Mesh, factor_sizes: list[int]
) -> None:
    names = [f"f{n}" for n in range(len(factor_sizes))]
    axes = data.draw(st.permutations(mesh.names))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(axes)), min_size=len(names) - 1,
                                     max_size=len(names) - 1)))  # fmt: skip
    given_splits = {
        name: Split(tuple(axes[low:high]))
        for name, (low, high) in zip(names, itertools.pairwise([0, *cuts, len(axes)]), strict=True)
        if high > low
    }
    split = dim_split(names, factor_sizes, given_splits, mesh)
    if split is not None:
        check_parts(names, factor_sizes, given_splits, split, mesh)


@st.composite
def grouped(draw: st.DrawFn, axes: list[str], size: int, mesh: Mesh) -> Split:
    """Draw a cut of a dimension by these axes, of blocks and in units."""
    divisors = [n for n in range(1, size + 1) if size % n == 0]
    groups = sorted(draw(st.sampled_from(divisors)) for _ in axes)
    split = Split(tuple(axes), draw(st.sampled_from(divisors)), tuple(groups))
    try:
        return normal_split(split, size, mesh)
    except ShardingError:
        reject()


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), meshes, st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), min_size=1, max_size=3))
def test_blocks_of_factors_go_to_dimensions(
    data: st.DataObject, mesh: Mesh, factor_sizes: list[int]
) -> None:
    names = [f"f{n}" for n in range(len(factor_sizes))]
    axes = list(data.draw(st.permutations(mesh.names)))
    given_splits = {}
    for name, size in zip(names, factor_sizes, strict=True):
        count = data.draw(st.integers(0, len(axes)))
        if count:
            given_splits[name] = data.draw(grouped(axes[:count], size, mesh))
            axes = axes[count:]
    split = dim_split(names, factor_sizes, given_splits, mesh)
    if split is not None:
        check_parts(names, factor_sizes, given_splits, split, mesh)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), meshes, st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), min_size=1, max_size=3))
def test_blocks_of_dimensions_go_to_factors(
    data: st.DataObject, mesh: Mesh, factor_sizes: list[int]
) -> None:
    names = [f"f{n}" for n in range(len(factor_sizes))]
    total = math.prod(factor_sizes)
    axes = list(data.draw(st.permutations(mesh.names)))
    split = data.draw(grouped(axes[: data.draw(st.integers(1, len(axes)))], total, mesh))
    found = factor_splits(names, factor_sizes, split, mesh)
    if found is not None:
        check_parts(names, factor_sizes, found, split, mesh)


def check_parts(
    names: list[str], factor_sizes: list[int], factors: dict[str, Split], split: Split, mesh: Mesh
) -> None:
    """The part of the dimension holds exactly the products of the parts of the factors."""
    for place in places(mesh):
        ranges = [
            held(factors.get(name, WHOLE), size, mesh, place)
            for name, size in zip(names, factor_sizes, strict=True)
        ]
        indices = []
        for index in itertools.product(*ranges):
            flat = 0
            for one, size in zip(index, factor_sizes, strict=True):
                flat = flat * size + one
            indices.append(flat)
        assert indices == held(split, math.prod(factor_sizes), mesh, place)


def held(split: Split, size: int, mesh: Mesh, place: dict[str, int]) -> list[int]:
    """Return the elements that a device holds, in order."""
    pieces = split.blocks(size, mesh, place)
    return [n for start, length in pieces for n in range(start, start + length)]


@settings(deadline=None)
@given(st.data(), meshes)
def test_types_survive_their_text(data: st.DataObject, mesh: Mesh) -> None:
    axes = list(data.draw(st.permutations(mesh.names)))
    dims = []
    for _ in range(data.draw(st.integers(0, 3))):
        taken = [axes.pop() for _ in range(data.draw(st.integers(0, len(axes))))]
        dims.append(Split(tuple(taken), data.draw(st.integers(1, 64))) if taken else WHOLE)
    reductions = st.sampled_from(["sum", "product", "max", "min", "and", "or"])
    partial = tuple(Partial(data.draw(reductions), axis) for axis in axes[:1])
    sharding = sharding_of(tuple(dims), partial, mesh)
    shape = tuple(data.draw(st.integers(0, 3)) * split.unit for split in dims)
    x = Value(TensorType(DType.F32, shape, sharding=sharding), name="x")
    graph = Graph("g", (x,), (), (x,), mesh=mesh)
    text = print_graph(graph)
    (read,) = parse_graph(text).inputs
    assert read.type == x.type
    assert print_graph(parse_graph(text)) == text
    assert parse_sharding(sharding.spec, mesh).splits == sharding.splits


def test_names_that_are_no_words_survive_text() -> None:
    mesh = Mesh("my mesh", (("data axis", 2),))
    sharding = Sharding((("data axis",),), mesh=mesh)
    x = Value(TensorType(DType.F32, (4,), sharding=sharding), name="x")
    text = print_graph(Graph("g", (x,), (), (), mesh=mesh))
    (read,) = parse_graph(text).inputs
    assert read.type == x.type
    assert dataclasses.replace(sharding) == read.tensor_type.sharding
