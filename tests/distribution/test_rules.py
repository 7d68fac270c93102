"""Every way in which an iteration space lets a mesh cut an op, checked by running it so.

Each sample runs on meshes of 2, 3 and 2 x 2 devices, cut along each factor that can be cut, and
pairs of them, evenly and unevenly, down to empty parts; what comes together must be what the whole
op gives. Operands in which an op is linear are partial sums as well.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from lynx.backends.reference import run, run_on_mesh
from lynx.ir.core import Graph, Op, Value
from lynx.ir.errors import CompileError
from lynx.ir.ops.collective import AllReduce, Collective, Replicate, Shard
from lynx.ir.shard_rules import COMBINES, axis_split
from lynx.ir.sharding import Mesh, Partial, Sharding, Split, sharding_of
from lynx.ir.space import Axis, FactorKind, IterationSpace, Window
from lynx.ir.types import DType, TensorType
from lynx.ir.verifier import verify
from tests.samples import Sample
from tests.samples.inputs import SAMPLES, draw
from tests.tools.sharding_table import PAGE, updated

TWO = Mesh("mesh", (("tp", 2),))
THREE = Mesh("mesh", (("tp", 3),))
SQUARE = Mesh("mesh", (("dp", 2), ("tp", 2)))

REFUSALS = frozenset(
    {"needs-whole", "needs-neighbours", "pieces-apart", "operands-disagree", "needs-reduction"}
)
"""Why a type may say that an op cannot run on parts."""

Splits = dict[str, Split]


class RefusedError(Exception):
    """The types say that the op cannot run so."""


def cases() -> Iterator[Any]:
    """Each sample whose op has a space and the same values whenever it runs."""
    for key, sample in SAMPLES.items():
        op = sample.op
        if op.is_random or op.name == "empty" or isinstance(op, Collective):
            continue
        if op.space() is not None:
            yield pytest.param(key, id=key)


def factors(op: Op) -> list[str]:
    """The factors of an op that operands may cut, as its space says."""
    space = op.space()
    assert space is not None
    read = {name for index_map in space.operands for axis in index_map for name in named(axis)}
    made_of_nothing = not any(isinstance(operand.type, TensorType) for operand in op.operands)
    return [
        factor.name
        for factor in space.factors
        if (made_of_nothing or factor.name in read)
        and (
            factor.kind is FactorKind.PARALLEL
            or (factor.kind is FactorKind.REDUCTION and factor.combine in COMBINES)
        )
    ]


def named(axis: Axis) -> tuple[str, ...]:
    return (axis.position, axis.offset) if isinstance(axis, Window) else axis


def in_double(op: Op) -> Op:
    """Return the op over other values, f64 ones where it has such a form."""
    for low in (False, True):
        types = [
            operand.type
            if low or not isinstance(operand.type, TensorType) or not operand.type.dtype.is_floating
            else operand.type.with_dtype(DType.F64)
            for operand in op.operands
        ]
        try:
            return op.with_operands(tuple(map(Value, types)))
        except CompileError:
            continue
    raise AssertionError(op)


def resized(op: Op, name: str, size: int) -> Op | None:
    """Return the op with another size of a factor, None if there is none."""
    space = op.space()
    assert space is not None
    operands = []
    for operand, index_map in zip(op.operands, space.operands, strict=True):
        if not isinstance(operand.type, TensorType):
            operands.append(operand)
            continue
        shape = []
        for dim, axis in zip(operand.shape, index_map, strict=True):
            if isinstance(axis, Window):
                if name in (axis.position, axis.offset):
                    return None
                shape.append(dim)
            else:
                count = 1
                for entry in axis:
                    count *= size if entry == name else int(space.factor(entry).size)
                shape.append(count if axis else dim)
        operands.append(Value(operand.type.with_shape(tuple(shape))))
    try:
        return op.localized(tuple(operands), name, 0, size)
    except CompileError:
        return None


def lying(value: Value, index_map: tuple[Axis, ...], space: IterationSpace, splits: Splits,
          mesh: Mesh, partial: tuple[Partial, ...] = ()) -> Value:  # fmt: skip
    """Return an input that is cut as factors are; `RefusedError` if it has no such pieces."""
    type_ = value.type
    if not isinstance(type_, TensorType):
        return Value(type_, name="n")
    dims = [axis_split(space, axis, splits, mesh) for axis in index_map]
    if None in dims:
        raise RefusedError("pieces-apart")
    sharding = sharding_of(tuple(dim for dim in dims if dim is not None), partial, mesh)
    return Value(dataclasses.replace(type_, sharding=sharding), name="x")


def on_mesh(op: Op, splits: Splits, mesh: Mesh, partial: dict[int, Partial]) -> Op:
    """Return the op over operands that lie so; `RefusedError` if its types do not allow it."""
    space = op.space()
    assert space is not None
    operands = tuple(
        lying(value, index_map, space, splits, mesh, (partial[n],) if n in partial else ())
        for n, (value, index_map) in enumerate(zip(op.operands, space.operands, strict=True))
    )
    try:
        return op.with_operands(operands)
    except CompileError as error:
        if error.code not in REFUSALS:
            raise
        raise RefusedError(error.code) from error


def sharded_factory(op: Op, splits: Splits, mesh: Mesh) -> tuple[list[Op], Value]:
    """Return the ops that cut what an op makes of nothing."""
    space = op.space()
    assert space is not None
    made: list[Op] = [op]
    axes = mesh.names
    made.append(Replicate(op.out, axes, tuple(mesh.size(axis) for axis in axes)))
    for dim, axis in enumerate(space.results[0]):
        for name in axis if isinstance(axis, tuple) else ():
            for mesh_axis in splits.get(name, Split()).axes:
                made.append(Shard(made[-1].results[0], (mesh_axis,), dim))
    return made, made[-1].results[0]


def whole(value: Value, ops: list[Op]) -> Value:
    """Reduce what is partial, and append the collectives to the ops."""
    sharding = value.type.sharding if isinstance(value.type, TensorType) else None
    for partial in sharding.partial if sharding is not None else ():
        ops.append(AllReduce(value, (partial.axis,), partial.reduction))
        value = ops[-1].results[0]
    return value


def check(op: Op, values: dict[Value, Any], expected: tuple[Any, ...], splits: Splits, mesh: Mesh,
          tolerance: float, partial: dict[int, Partial] | None = None) -> None:  # fmt: skip
    """Run an op cut along factors, and compare with what it gives as a whole."""
    if not op.results or not any(isinstance(v.type, TensorType) for v in op.operands):
        ops, result = sharded_factory(op, splits, mesh)
        inputs, outputs = op.operands, (result,)
    else:
        local = on_mesh(op, splits, mesh, partial or {})
        check_types(op, local, splits, mesh, partial or {})
        ops = [local]
        inputs, outputs = local.operands, tuple(whole(r, ops) for r in local.results)
    graph = Graph("g", tuple(inputs), tuple(ops), outputs, mesh=mesh)
    verify(graph)
    actual = run_on_mesh(graph, [values[operand] for operand in op.operands])
    for one, other, value in zip(actual, expected, op.results, strict=True):
        compare(one, other, value, tolerance)


def check_types(op: Op, local: Op, splits: Splits, mesh: Mesh, partial: dict[int, Partial]) -> None:
    """Results are cut where their maps have a cut factor, and partial where they lack one."""
    space = op.space()
    assert space is not None
    for result, index_map in zip(local.results, space.results, strict=True):
        if not isinstance(result.type, TensorType):
            continue
        sharding = result.type.sharding
        assert isinstance(sharding, Sharding)
        mentioned = {name for axis in index_map for name in named(axis)}
        empty = 0 in result.type.shape
        lacking = [name for name in splits if name not in mentioned and not empty]
        pending = {Partial(space.factor(n).combine, a) for n in lacking for a in splits[n].axes}
        assert set(sharding.partial) == pending | set(partial.values())
        used = [axis for dim in sharding.dims for axis in dim]
        cut = [a for name, split in splits.items() if name in mentioned for a in split.axes]
        assert sorted(used) == sorted(a for a in cut)


def compare(actual: Any, expected: Any, value: Value, tolerance: float) -> None:
    if not isinstance(expected, torch.Tensor):
        assert actual == expected
        return
    assert isinstance(value.type, TensorType)
    if not (expected.is_floating_point() or expected.is_complex()):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)
        return
    error = 1e-9 if value.type.dtype is DType.F64 else tolerance
    if value.type.dtype.is_low_precision:
        error = max(error, torch.finfo(expected.dtype).eps * 4)
    torch.testing.assert_close(actual, expected, rtol=error, atol=error, equal_nan=True)


def execute(op: Op, values: dict[Value, Any]) -> tuple[Any, ...]:
    return run(op, values, {}, {})


def variants(sample: Sample) -> Iterator[tuple[Op, list[tuple[Splits, Mesh]]]]:
    """Yield the op in several sizes, with the ways to cut each."""
    op = in_double(sample.op)
    names = factors(op)
    space = op.space()
    assert space is not None
    full: list[tuple[Splits, Mesh]] = []
    for name in names:
        full += [({name: Split(("tp",))}, TWO), ({name: Split(("tp",))}, THREE)]
        full += [({name: Split(("dp", "tp"))}, SQUARE)]
    pairs = itertools.permutations if len(names) < 4 else itertools.combinations
    for one, other in pairs(names, 2):
        full.append(({one: Split(("dp",)), other: Split(("tp",))}, SQUARE))
    yield op, full
    for name in names:
        size = int(space.factor(name).size)
        for other_size in sorted({max(size - 1, 0), min(size, 1)} - {size}):
            other_op = resized(op, name, other_size)
            if other_op is not None and name in factors(other_op):
                yield other_op, [({name: Split(("tp",))}, TWO)]


@pytest.mark.parametrize("key", cases())
def test_parts_make_the_whole(key: str) -> None:
    sample = SAMPLES[key]
    for op, ways in variants(sample):
        values = draw(key, dataclasses.replace(sample, op=op))
        try:
            expected = execute(op, values)
        except (IndexError, RuntimeError):
            assert len(ways) == 1
            continue  # fewer rows than indices ask for
        for splits, mesh in ways:
            with contextlib.suppress(RefusedError):
                check(op, values, expected, splits, mesh, sample.tolerance)


def test_ways_that_are_missing_are_listed() -> None:
    """Print, with `-s` or `-rP`, where an op cannot be cut, or its types refuse it; never fail."""
    for case in cases():
        (key,) = case.values
        op, ways = next(variants(SAMPLES[key]))
        space = op.space()
        assert space is not None
        for factor in space.factors:
            if factor.name not in factors(op) and factor.size != 1:
                print(f"{key}: {factor.name} is {factor.kind.value} {factor.combine}, in {space}")
        for splits, mesh in (way for way in ways if len(way[0]) == 1):
            texts = ", ".join(f"{name} by {split}" for name, split in splits.items())
            try:
                on_mesh(op, splits, mesh, {})
            except RefusedError as error:
                print(f"{key}: {texts} of {mesh.device_count}: {error}, in {space}")


def linear_cases() -> Iterator[Any]:
    """Each set of operands in which a sample is linear, where numbers can be added."""
    for case in cases():
        (key,) = case.values
        op = in_double(SAMPLES[key].op)
        space = op.space()
        for positions in space.linear if space is not None else ():
            types = [op.operands[position].type for position in positions]
            if all(isinstance(t, TensorType) and t.dtype is not DType.BOOL for t in types):
                yield pytest.param(key, positions, id=f"{key}-{positions}")


@pytest.mark.parametrize(("key", "positions"), linear_cases())
def test_partial_sums_flow_through_linear_operands(key: str, positions: tuple[int, ...]) -> None:
    sample = SAMPLES[key]
    op = distinct(in_double(sample.op))
    values = draw(key, dataclasses.replace(sample, op=op))
    expected = execute(op, values)
    pending = Partial("sum", "tp")
    ways: list[tuple[Splits, Mesh]] = [({}, TWO), ({}, THREE)]
    ways += [({name: Split(("dp",))}, SQUARE) for name in factors(op)]
    for splits, mesh in ways:
        try:
            check(
                op,
                values,
                expected,
                splits,
                mesh,
                sample.tolerance,
                dict.fromkeys(positions, pending),
            )
        except RefusedError:
            if not splits:
                raise


def distinct(op: Op) -> Op:
    """Return the op over values that are all different."""
    return op.with_operands(tuple(Value(operand.type) for operand in op.operands))


@pytest.mark.parametrize("reduction", ["max", "min", "product"])
@pytest.mark.parametrize(
    "key", [case.values[0] for case in cases() if SAMPLES[case.values[0]].op.is_view]
)
def test_any_partial_values_flow_through_moves(key: str, reduction: str) -> None:
    sample = SAMPLES[key]
    op = in_double(sample.op)
    space = op.space()
    assert space is not None
    values = draw(key, dataclasses.replace(sample, op=op))
    for positions in space.linear:
        partial = dict.fromkeys(positions, Partial(reduction, "tp"))
        check(op, values, execute(op, values), {}, THREE, 0, partial)


def test_the_page_of_rules_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == updated(page), "run python -m tests.tools.sharding_table"
