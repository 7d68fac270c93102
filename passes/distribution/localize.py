"""Turn a program over a mesh into the program of one device, over its own parts of the tensors.

Each op runs over the iterations that its operands' parts belong to, collectives become
communication, and a device's own piece of a whole tensor a slice. What has no iterations on a
device is filled with what a reduction of nothing gives, so that every device takes part in every
communication whatever it holds.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from lynx.ir.core import Graph, InputSpec, Mutation, Number, Op, OutputSpec, Value
from lynx.ir.dims import Dim, contiguous_strides, product
from lynx.ir.errors import CompileError, InternalError
from lynx.ir.location import UNKNOWN, Location
from lynx.ir.ops.collective import (
    AllGather,
    AllReduce,
    AllToAll,
    Collective,
    ReduceScatter,
    Replicate,
    Shard,
)
from lynx.ir.ops.communication import (
    LocalAllGather,
    LocalAllReduce,
    LocalAllToAll,
    LocalReduceScatter,
)
from lynx.ir.ops.factory import Empty, Full, Iota
from lynx.ir.ops.layout import Reshape
from lynx.ir.ops.layout_slicing import Slice
from lynx.ir.shard_rules import op_splits
from lynx.ir.sharding import Mesh, Sharding, Split
from lynx.ir.space import IndexMap, IterationSpace, Window
from lynx.ir.types import DType, OpaqueType, TensorType, Type, is_same_type

Part = tuple[int, int]
"""The start and the length of a piece of a dimension, or of a factor."""

_NOTHING = OpaqueType("none")
"""The type of a gradient that nobody asked for."""

_EXACT = 2**24
"""Up to here `f32` counts without rounding."""


def localize(graph: Graph, coordinates: Mapping[str, int]) -> Graph:
    """Return the program of the device that stands at `coordinates` of the graph's mesh.

    Its inputs and outputs are the device's parts, in the order of the graph's. `CompileError`
    where a cut dimension is symbolic (`symbolic-shard`), or an op has no form for a part
    (`no-local-form`).
    """
    mesh = graph.mesh
    if mesh is None:
        used = next((v for v in graph.inputs if _sharding(v.type) is not None), None)
        if used is not None:
            raise CompileError("unknown-axis", f"graph '{graph.name}' is sharded and has no mesh")
        mesh = Mesh("mesh", ())
    return _Localizer(graph, mesh, dict(coordinates)).run()


@dataclass
class _Localizer:
    graph: Graph
    mesh: Mesh
    coordinates: dict[str, int]

    def __post_init__(self) -> None:
        self.local: dict[Value, Value] = {}
        self.ops: list[Op] = []
        # Factory ops of which smaller ones were made; they go if nothing else needs them.
        self.cut: dict[Op, None] = {}

    def run(self) -> Graph:
        graph = self.graph
        inputs = tuple(self._input(value) for value in graph.inputs)
        input_specs = tuple(map(self._input_spec, graph.inputs, graph.input_specs))
        for op in graph.ops:
            self._add(op)
        output_specs = tuple(map(self._output_spec, graph.outputs, graph.output_specs))
        outputs = tuple(map(self._output, graph.outputs))
        mutations = tuple(
            Mutation(self.local[m.target], self.local[m.value]) for m in graph.mutations
        )
        uses = {operand for op in self.ops for operand in op.operands}
        uses |= {value for value in outputs if value is not None} | {m.value for m in mutations}
        ops = tuple(op for op in self.ops if op not in self.cut or not uses.isdisjoint(op.results))
        return dataclasses.replace(
            graph,
            inputs=inputs,
            ops=ops,
            outputs=outputs,
            input_specs=input_specs,
            output_specs=output_specs,
            mutations=mutations,
        )

    # types

    def _type(self, type_: Type, loc: Location, what: str) -> Type:
        """Return the type of the device's part of a value."""
        if not isinstance(type_, TensorType) or type_.sharding is None:
            return type_
        parts = self._parts(type_, loc, what)
        return type_.with_shape(tuple(size for _, size in parts))

    def _parts(self, type_: TensorType, loc: Location, what: str) -> list[tuple[Dim, Dim]]:
        """Return the start and the length of the device's part along each dimension."""
        assert type_.sharding is not None
        parts: list[tuple[Dim, Dim]] = []
        for size, split in zip(type_.shape, type_.sharding.splits, strict=True):
            parts.append(self._part(size, split, loc, f"{what} of type {type_}"))
        return parts

    def _part(self, size: Dim, split: Split, loc: Location, what: str) -> tuple[Dim, Dim]:
        if not split.axes:
            return 0, size
        if not isinstance(size, int):
            message = f"{what} is cut by '{split}' along a dimension of the symbolic size {size}"
            raise CompileError("symbolic-shard", message, loc)
        return split.part(size, self.mesh, self.coordinates)

    # inputs and outputs

    def _input(self, value: Value) -> Value:
        type_ = self._type(value.type, UNKNOWN, f"input '{value.name}'")
        self.local[value] = Value(type_, name=value.name)
        return self.local[value]

    def _input_spec(self, value: Value, spec: InputSpec) -> InputSpec:
        if not _is_cut(value.type):
            return spec
        strides = self._strides(spec.strides, value)
        return dataclasses.replace(spec, strides=strides, offset=0)

    def _output(self, value: Value | None) -> Value | None:
        if value is None or (value.type == _NOTHING and value not in self.local):
            return None
        return self.local[value]

    def _output_spec(self, value: Value | None, spec: OutputSpec) -> OutputSpec:
        if value is None or not _is_cut(value.type):
            return dataclasses.replace(spec, sharding=None)
        strides = self._strides(spec.strides, value)
        return dataclasses.replace(spec, strides=strides, sharding=None)

    def _strides(self, strides: tuple[Dim, ...] | None, value: Value) -> tuple[Dim, ...] | None:
        """Return dense strides of the part with dimensions in the same order."""
        if strides is None:
            return None
        return local_strides(strides, value.shape, self.local[value].shape)

    # ops

    def _add(self, op: Op) -> None:
        if isinstance(op, Collective):
            self.local[op.out] = self._collective(op)
        else:
            operands = tuple(self.local[operand] for operand in op.operands)
            self._run(op, operands)
        for result in op.results:
            if result not in self.local:
                continue
            wanted = self._type(result.type, op.loc, f"the result of '{op.name}'")
            actual = self.local[result].type
            if not is_same_type(actual, wanted):
                message = f"'{op.name}' gives {actual} on a device, expected {wanted}"
                raise InternalError("bad-local-type", message, op.loc)

    def _place(self, op: Op, local: Op) -> None:
        """Let an op of the device stand for an op."""
        self.ops.append(local)
        self.local.update(zip(op.results, local.results, strict=True))

    def _emit(self, op: Op) -> Value:
        self.ops.append(op)
        return op.results[0]

    def _run(self, op: Op, operands: tuple[Value, ...]) -> None:
        """Add what computes the device's parts of the results."""
        given = [_sharding(operand.type) for operand in op.operands]
        if not any(one is not None and any(one.dims) for one in given):
            self._place(op, op.with_operands(operands) if operands else op)
            return
        space = op.space()
        assert space is not None
        splits = op_splits(space, given, self.mesh)
        parts: dict[str, Part] = {}
        for factor in space.factors:
            if factor.name in splits:
                what = f"'{factor.name}' of '{op.name}'"
                start, size = self._part(factor.size, splits[factor.name], op.loc, what)
                assert isinstance(start, int)
                assert isinstance(size, int)
                parts[factor.name] = start, size
        empty = next((name for name, (_, size) in parts.items() if size == 0), None)
        if empty is not None:
            self._fill(op, space.factor(empty).combine)
        else:
            self._place(op, restrict(op, space, operands, parts))

    def _fill(self, op: Op, combine: str) -> None:
        """Let the identity of its reduction stand for an op without iterations.

        Nothing stands for results that are no tensors: gradients that nobody asked for.
        """
        for result in op.results:
            type_ = self._type(result.type, op.loc, f"the result of '{op.name}'")
            if isinstance(type_, TensorType):
                value = identity(combine, type_.dtype)
                full = Full(value, type_.shape, type_.dtype, type_.device, loc=op.loc)
                self.local[result] = self._emit(full)

    # collectives

    def _collective(self, op: Collective) -> Value:
        x = self.local[op.x]
        match op:
            case Replicate():
                return x
            case Shard():
                return self._shard(op, x)
            case AllReduce():
                made = LocalAllReduce(x, op.axes, op.reduction, bucket=op.bucket, loc=op.loc)
                return self._emit(made)
            case AllGather():
                return self._all_gather(op, x)
            case ReduceScatter():
                return self._reduce_scatter(op, x)
            case AllToAll():
                return self._all_to_all(op, x)
        raise InternalError("no-local-form", f"'{op.name}' has no local form", op.loc)

    def _all_gather(self, op: AllGather, x: Value) -> Value:
        blocks = self._blocks(op.x, op.dim)
        sizes, index = self._sizes(op, op.x, op.dim), self._index(op.axes)
        x, dim = self._apart(x, op.dim, blocks, op.loc)
        made = LocalAllGather(x, op.axes, dim, sizes, index, bucket=op.bucket, loc=op.loc)
        return self._together(self._emit(made), op.dim, blocks, op.loc)

    def _reduce_scatter(self, op: ReduceScatter, x: Value) -> Value:
        blocks = self._blocks(op.out, op.dim)
        sizes, index = self._sizes(op, op.out, op.dim), self._index(op.axes)
        x, dim = self._apart(x, op.dim, blocks, op.loc)
        made = LocalReduceScatter(
            x, op.axes, dim, sizes, index, op.reduction, bucket=op.bucket, loc=op.loc
        )
        return self._together(self._emit(made), op.dim, blocks, op.loc)

    def _all_to_all(self, op: AllToAll, x: Value) -> Value:
        source, target = self._sizes(op, op.x, op.source), self._sizes(op, op.out, op.target)
        apart = {
            op.source: self._blocks(op.x, op.source),
            op.target: self._blocks(op.out, op.target),
        }
        places = {}
        for dim in sorted(apart, reverse=True):
            x, places[dim] = self._apart(x, dim, apart[dim], op.loc)
        shift = apart[min(apart)] > 1  # the blocks of the first dimension are one more before it
        first, last = min(apart), max(apart)
        places[last] += int(shift)
        index = self._index(op.axes)
        made = LocalAllToAll(
            x, op.axes, places[op.source], places[op.target], source, target, index, loc=op.loc
        )
        result = self._emit(made)
        for dim in (first, last):
            result = self._together(result, dim, apart[dim], op.loc)
        return result

    def _blocks(self, value: Value, dim: int) -> int:
        """Return how many blocks of a dimension lie on the device, each of which `op` cuts."""
        type_ = value.tensor_type
        assert type_.sharding is not None
        split, size = type_.sharding.splits[dim], type_.shape[dim]
        if not split.groups or not isinstance(size, int):
            return 1
        # Axes of the same blocks cut inside of them, those of fewer blocks cut between them.
        outer = split.first(sum(count < split.groups[-1] for count in split.groups))
        _, length = outer.part(size, self.mesh, self.coordinates)
        return max(length // (size // split.groups[-1]), 1)

    def _apart(self, x: Value, dim: int, blocks: int, loc: Location) -> tuple[Value, int]:
        """Return the value with a dimension of its own for blocks, and where their rows are."""
        if blocks == 1:
            return x, dim
        size = x.shape[dim]
        assert isinstance(size, int)
        shape = (*x.shape[:dim], blocks, size // blocks, *x.shape[dim + 1 :])
        return self._emit(Reshape(x, shape, loc=loc)), dim + 1

    def _together(self, x: Value, dim: int, blocks: int, loc: Location) -> Value:
        """Return the value with blocks and their rows in one dimension again."""
        if blocks == 1:
            return x
        shape = (*x.shape[:dim], product(x.shape[dim : dim + 2]), *x.shape[dim + 2 :])
        return self._emit(Reshape(x, shape, loc=loc))

    def _index(self, axes: tuple[str, ...]) -> int:
        """Return the device's number in its group."""
        place = 0
        for axis in axes:
            place = place * self.mesh.size(axis) + self.coordinates[axis]
        return place

    def _sizes(self, op: Op, value: Value, dim: int) -> tuple[int, ...]:
        """Return the length of each member's piece of a value along a dimension."""
        type_ = value.tensor_type
        assert type_.sharding is not None
        axes = op.attributes["axes"]
        split, size = type_.sharding.splits[dim], type_.shape[dim]
        if not isinstance(size, int):
            message = f"'{op.name}' moves pieces of the symbolic size {size}"
            raise CompileError("symbolic-shard", message, op.loc)
        members = itertools.product(*(range(self.mesh.size(axis)) for axis in axes))
        places = (self.coordinates | dict(zip(axes, member, strict=True)) for member in members)
        blocks = self._blocks(value, dim)
        return tuple(split.part(size, self.mesh, place)[1] // blocks for place in places)

    def _shard(self, op: Shard, x: Value) -> Value:
        """Return the device's piece: a smaller factory op if there is one, or a slice."""
        if self._blocks(op.out, op.dim) > 1:
            return self._shard_blocks(op, x)
        dim, before, after = op.dim, op.x.tensor_type, op.out.tensor_type
        outer: tuple[Dim, Dim] = (0, before.shape[dim])
        if before.sharding is not None:
            outer = self._parts(before, op.loc, "the operand of 'shard'")[dim]
        start, size = self._parts(after, op.loc, "the result of 'shard'")[dim]
        assert isinstance(outer[0], int)
        assert isinstance(start, int)
        assert isinstance(size, int)
        start -= outer[0]
        if x.shape[dim] == size:
            return x
        if x.op is not None and _can_shrink(x.op):
            self.cut[x.op] = None
            loc = x.op.loc if x.op.loc.is_known else op.loc
            made = x.op.localized(x.op.operands, f"d{dim}", start, size)
            return self._emit(dataclasses.replace(made, loc=loc))
        return self._emit(Slice(x, dim, start, start + size, loc=op.loc))

    def _shard_blocks(self, op: Shard, x: Value) -> Value:
        """Return the device's piece of each block."""
        blocks, index = self._blocks(op.out, op.dim), self._index(op.axes)
        sizes = self._sizes(op, op.out, op.dim)
        x, dim = self._apart(x, op.dim, blocks, op.loc)
        start = sum(sizes[:index])
        piece = self._emit(Slice(x, dim, start, start + sizes[index], loc=op.loc))
        return self._together(piece, op.dim, blocks, op.loc)


def restrict(
    op: Op, space: IterationSpace, operands: tuple[Value, ...], parts: Mapping[str, Part]
) -> Op:
    """Return the op restricted to parts of several factors; `operands` are cut so already."""
    names = list(parts)
    try:
        if _is_plain(op):
            shape = _cut_shape(op.results[0], space.results[0], space, parts)
            return op.with_operands(operands, **dict.fromkeys(op.shape_attributes, shape))
        local = op
        for count, name in enumerate(names, 1):
            given = operands
            if count < len(names):
                cut = {known: parts[known] for known in names[:count]}
                given = tuple(
                    _cut_value(operand, index_map, space, cut)
                    for operand, index_map in zip(op.operands, space.operands, strict=True)
                )
            local = local.localized(given, name, *parts[name])
        return local
    except CompileError as error:
        texts = ", ".join(f"'{name}' from {start}, {n}" for name, (start, n) in parts.items())
        message = f"'{op.name}' cannot run on a part along {texts}: {error.message}"
        raise CompileError(error.code, message, op.loc) from error


def _is_plain(op: Op) -> bool:
    """Whether a part differs from the op in operands and shapes alone."""
    kind = type(op)
    return kind.localized is Op.localized and kind.local_fields is Op.local_fields


def _cut_shape(
    value: Value, index_map: IndexMap, space: IterationSpace, parts: Mapping[str, Part]
) -> tuple[Dim, ...]:
    """Return the shape of a value where some factors are cut."""
    if not isinstance(value.type, TensorType):
        return ()
    shape: list[Dim] = []
    for dim, axis in zip(value.shape, index_map, strict=True):
        if isinstance(axis, Window):
            shape.append(axis.rows(*parts[axis.position])[1] if axis.position in parts else dim)
        elif parts.keys().isdisjoint(axis):
            shape.append(dim)
        else:
            sizes = (parts[n][1] if n in parts else space.factor(n).size for n in axis)
            shape.append(product(sizes))
    return tuple(shape)


def _cut_value(
    value: Value, index_map: IndexMap, space: IterationSpace, parts: Mapping[str, Part]
) -> Value:
    if not isinstance(value.type, TensorType):
        return value
    return Value(value.type.with_shape(_cut_shape(value, index_map, space, parts)))


def _can_shrink(op: Op) -> bool:
    """Whether a smaller factory op gives exactly the elements of a part."""
    if isinstance(op, Full | Empty):
        return True
    if not isinstance(op, Iota) or op.operands or not isinstance(op.length, int):
        return False
    if not isinstance(op.start, int) or not isinstance(op.step, int):
        return False
    last = op.start + op.step * op.length
    return op.dtype.is_integer or max(abs(op.start), abs(last)) <= _EXACT


def local_strides(
    strides: tuple[Dim, ...], shape: tuple[Dim, ...], local: tuple[Dim, ...]
) -> tuple[Dim, ...] | None:
    """Return dense strides of a part that keep the order of dimensions; None where unknown.

    Dimensions of stride 0 keep it.
    """
    if strides == contiguous_strides(shape):
        return contiguous_strides(local)
    if not all(isinstance(stride, int) for stride in strides):
        return None
    repeated = [dim for dim, stride in enumerate(strides) if stride == 0]
    order = sorted(range(len(shape)), key=lambda dim: strides[dim], reverse=True)
    dense = [dim for dim in order if dim not in repeated]
    placed = dict(zip(dense, contiguous_strides(tuple(local[d] for d in dense)), strict=True))
    return tuple(placed.get(dim, 0) for dim in range(len(shape)))


def identity(reduction: str, dtype: DType) -> Number:
    """Return what changes nothing when it is combined by a reduction; 0 for no reduction."""
    if reduction in ("max", "min"):
        low, high = _range(dtype)
        return low if reduction == "max" else high
    if dtype is DType.BOOL:
        return reduction in ("and", "product")
    # Of other types `and` and `or` ask whether elements are zero.
    return 1 if reduction in ("and", "product") else 0


def _range(dtype: DType) -> tuple[Number, Number]:
    """Return the least and the greatest element of a type."""
    if dtype is DType.BOOL:
        return False, True
    if not dtype.is_integer:
        return -math.inf, math.inf
    bits = dtype.itemsize * 8
    if dtype.value.startswith("u"):
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def _sharding(type_: Type) -> Sharding | None:
    return type_.sharding if isinstance(type_, TensorType) else None


def _is_cut(type_: Type) -> bool:
    sharding = _sharding(type_)
    return sharding is not None and any(sharding.dims)
