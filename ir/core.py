"""Values, ops and graphs: an immutable program in static single assignment form."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias, TypeVar, dataclass_transform

import sympy

from .dims import Dim, SymbolRange, product
from .errors import CompileError
from .location import UNKNOWN, Location
from .shard_rules import ShardingError
from .sharding import Mesh, Sharding
from .space import IterationSpace
from .structure import Structure, Typed, derived_shardings, structure_of
from .types import TensorType, Type, is_alike, unsharded

Number: TypeAlias = bool | int | float | complex | sympy.Expr
"""A literal operand, kept in full precision; an expression is a symbolic integer."""

_O = TypeVar("_O", bound="Op")


@dataclass(frozen=True, slots=True)
class Foreign:
    """A constant argument that only torch understands, such as a memory format.

        #memory_format("channels_last")

    `kind` says how `text` is turned back into an object; kind `resource` looks it up in
    `Graph.resources`.
    """

    kind: str
    text: str

    def __str__(self) -> str:
        return f'#{self.kind}("{self.text}")'


class Value(Typed):
    """One result of an op, or an input of a graph (then `op` is None). Compared by identity."""

    __slots__ = ("index", "name", "op")

    def __init__(self, type: Type, op: Op | None = None, index: int = 0, name: str = "") -> None:  # noqa: A002 - the field's natural name
        self.type = type
        self.op = op
        self.index = index
        self.name = name

    def __repr__(self) -> str:
        origin = f"%{self.name}" if self.op is None else f"{self.op.name}#{self.index}"
        return f"<{origin}: {self.type}>"

    @property
    def tensor_type(self) -> TensorType:
        """The type, for a value that must be a tensor."""
        if not isinstance(self.type, TensorType):
            loc = self.op.loc if self.op is not None else UNKNOWN
            raise CompileError("not-a-tensor", f"expected a tensor, got {self.type}", loc)
        return self.type

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The shape, for a value that must be a tensor."""
        return self.tensor_type.shape

    def defined_by(self, kind: type[_O]) -> _O | None:
        """Return the defining op if it is of this kind."""
        return self.op if isinstance(self.op, kind) else None


Operand: TypeAlias = Value | Number
"""An elementwise operand: a tensor, or a number that is not rounded to the tensor's type."""

Argument: TypeAlias = Any
"""An argument of an `aten` op: value, number, text, None, `DType`, `Foreign`, or nested tuples."""


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
@dataclass(frozen=True, eq=False, repr=False)
class Op:
    """Base of all ops. A subclass declares its operands and attributes as typed fields.

    Fields whose annotation mentions `Value`, `Operand` or `Argument` hold operands (values,
    numbers, None, or tuples of them), those that mention `Region` ops of their own; all others are
    attributes. The constructor runs `infer`, so that an ill-typed op cannot be built. Ops are
    compared by identity.

    Class attributes: `name` is the op's name in text; `is_random` marks ops that draw from a
    random generator (kept in order, never merged or removed); `is_view` those whose result may
    share memory with their first operand; `is_elementwise` those that may write over an operand
    of the result's type; `changes_sharding` marks collectives; `is_uniform` ops whose parts
    differ from them in operands and shapes alone; `infers_from_types` those whose `infer` asks
    operands for their types alone; `shape_attributes` names the attributes that hold the shape of
    result 0.
    """

    name: ClassVar[str] = ""
    is_random: ClassVar[bool] = False
    is_view: ClassVar[bool] = False
    is_elementwise: ClassVar[bool] = False
    changes_sharding: ClassVar[bool] = False
    shape_attributes: ClassVar[tuple[str, ...]] = ()
    registry: ClassVar[dict[str, type[Op]]] = {}
    is_uniform: ClassVar[bool] = True
    infers_from_types: ClassVar[bool] = True
    operand_fields: ClassVar[tuple[str, ...]] = ()
    attribute_fields: ClassVar[tuple[str, ...]] = ()
    region_fields: ClassVar[tuple[str, ...]] = ()

    loc: Location = field(default=UNKNOWN, kw_only=True)
    operands: tuple[Value, ...] = field(init=False, repr=False)
    results: tuple[Value, ...] = field(init=False, repr=False)

    def __init_subclass__(cls, name: str = "", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclass(frozen=True, eq=False, repr=False)(cls)
        own = [f for f in dataclasses.fields(cls) if f.name not in ("loc", "operands", "results")]
        cls.operand_fields = tuple(f.name for f in own if _holds_operands(str(f.type)))
        cls.region_fields = tuple(f.name for f in own if "Region" in str(f.type))
        others = (*cls.operand_fields, *cls.region_fields)
        cls.attribute_fields = tuple(f.name for f in own if f.name not in others)
        plain = cls.localized is Op.localized and cls.local_fields is Op.local_fields
        cls.is_uniform = plain
        if name:
            if name in Op.registry:
                raise TypeError(f"two ops are called {name!r}")
            cls.name = name
            Op.registry[name] = cls

    def __post_init__(self) -> None:
        operands: list[Value] = []
        for name in self.operand_fields:
            _collect(getattr(self, name), operands)
        object.__setattr__(self, "operands", tuple(operands))
        types = _tuple(self.infer())
        results = tuple(Value(type_, self, index) for index, type_ in enumerate(types))
        object.__setattr__(self, "results", results)
        if self.changes_sharding or any(_lies(operand.type) for operand in self.operands):
            for result, type_ in zip(results, self._sharded(types), strict=True):
                result.type = type_

    def infer(self) -> Type | tuple[Type, ...]:
        """Check the op and return the types of its results; raise `CompileError` if ill-typed."""
        raise NotImplementedError(type(self).__name__)

    def result_types(self) -> tuple[Type, ...]:
        """Return the types of the results, with how they lie on the mesh if an operand says so."""
        types = _tuple(self.infer())
        if self.changes_sharding or any(_lies(operand.type) for operand in self.operands):
            return self._sharded(types)
        return types

    def _sharded(self, types: tuple[Type, ...]) -> tuple[Type, ...]:
        shardings = self.derive_shardings() or (None,) * len(types)
        return tuple(
            dataclasses.replace(type_, sharding=sharding)
            if isinstance(type_, TensorType)
            else type_
            for type_, sharding in zip(types, shardings, strict=True)
        )

    def derive_shardings(self) -> tuple[Sharding, ...] | None:
        """Return how the results lie on the mesh; None if each device has the whole of them.

        `CompileError` where the op cannot run on the parts of its operands.
        """
        try:
            return derived_shardings(self)
        except ShardingError as error:
            raise self.error(error.code, f"cannot run on parts: {error.reason}") from None

    def space(self) -> IterationSpace | None:
        """Return the iteration space, or None for an op that has none (an `aten` op)."""
        return None

    @functools.cached_property
    def structure(self) -> Structure | None:
        """What the op is but for the values that it uses, shared by all ops that are alike."""
        return structure_of(self)

    def __getstate__(self) -> dict[str, Any]:
        """Return what is written of an op: structures are found anew."""
        return {name: item for name, item in self.__dict__.items() if name != "structure"}

    @property
    def out(self) -> Value:
        """The result of an op with exactly one."""
        (result,) = self.results
        return result

    @property
    def is_removable(self) -> bool:
        """Whether the op may be removed when nothing uses its results."""
        return not self.is_random

    @property
    def regions(self) -> dict[str, Any]:
        """The regions that the op holds by name, in declaration order."""
        held = {name: getattr(self, name) for name in self.region_fields}
        return {name: region for name, region in held.items() if region is not None}

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes by name, in declaration order."""
        return {name: getattr(self, name) for name in self.attribute_fields}

    def replace_operands(self: _O, mapping: Mapping[Value, Value]) -> _O:
        """Return the op with operands replaced; the op itself if none of them is in `mapping`."""
        if not any(operand in mapping for operand in self.operands):
            return self
        return self.with_operands(tuple([mapping.get(v, v) for v in self.operands]))

    def with_operands(self: _O, operands: tuple[Value, ...], **changed: Any) -> _O:
        """Return the op with other operands, in the order of `Op.operands`, and other fields."""
        parts = iter(operands)
        filled = {name: _refill(getattr(self, name), parts) for name in self.operand_fields}
        if not changed and self.infers_from_types and self._fits(operands):
            return self._twin(operands, filled)
        return dataclasses.replace(self, **(filled | changed))

    def _fits(self, operands: tuple[Value, ...]) -> bool:
        """Whether other operands are of the types of the op's own, wherever they lie."""
        return len(operands) == len(self.operands) and all(
            is_alike(old.type, new.type) for old, new in zip(self.operands, operands, strict=True)
        )

    def _twin(self: _O, operands: tuple[Value, ...], filled: dict[str, Any]) -> _O:
        """Return the op over operands of the same types, for which nothing is inferred anew."""
        made = object.__new__(type(self))
        known, state = self.__dict__, made.__dict__
        for name in (*self.attribute_fields, *self.region_fields, "loc"):
            state[name] = known[name]
        state |= filled
        if "structure" in known:
            state["structure"] = known["structure"]
        state["operands"] = operands
        types = [result.type for result in self.results]
        moved = any(
            old.type is not new.type for old, new in zip(self.operands, operands, strict=True)
        )
        if moved:
            types = [unsharded(type_) for type_ in types]
        results = state["results"] = tuple(
            [Value(type_, made, index) for index, type_ in enumerate(types)]
        )
        if moved and (self.changes_sharding or any(_lies(operand.type) for operand in operands)):
            for result, type_ in zip(results, made._sharded(tuple(types)), strict=True):
                result.type = type_
        return made

    def localized(self, operands: tuple[Value, ...], factor: str, start: Dim, size: Dim) -> Op:
        """Return the op restricted to the iterations `start <= i < start + size` of a factor.

        `operands` are the parts of the operands that these iterations read, in the order of
        `Op.operands`. An op whose attributes depend on the extent or the position in another way
        than `shape_attributes` says overrides this.
        """
        changed: dict[str, Any] = {}
        if self.shape_attributes:
            shape = self._local_shape(factor, size)
            changed |= dict.fromkeys(self.shape_attributes, shape)
        return self.with_operands(operands, **changed, **self.local_fields(factor, start, size))

    def local_fields(self, factor: str, start: Dim, size: Dim) -> dict[str, Any]:
        """Return other fields that `localized` changes, such as regions."""
        return {}

    def _local_shape(self, factor: str, size: Dim) -> tuple[Dim, ...]:
        """Return the shape of result 0 where one factor has another size."""
        space = self.space()
        if space is None:
            raise self.error("no-space", f"has no iteration space to cut along '{factor}'")
        shape: list[Dim] = []
        for dim, axis in zip(self.results[0].shape, space.results[0], strict=True):
            if isinstance(axis, tuple) and factor in axis:
                sizes = (size if name == factor else space.factor(name).size for name in axis)
                shape.append(product(sizes))
            else:
                shape.append(dim)
        return tuple(shape)

    def error(self, code: str, message: str) -> CompileError:
        """Return the error to raise when this op is wrong."""
        return CompileError(code, f"'{self.name}' {message}", self.loc)

    def __repr__(self) -> str:
        types = ", ".join(str(result.type) for result in getattr(self, "results", ()))
        return f"<{self.name}: {types}>"

    @classmethod
    def summary(cls) -> str:
        """Return the first line of the docstring."""
        return inspect.getdoc(cls).splitlines()[0] if cls.__doc__ else ""  # type: ignore[union-attr]


def _tuple(types: Type | tuple[Type, ...]) -> tuple[Type, ...]:
    return types if isinstance(types, tuple) else (types,)


def _lies(type_: Type) -> Sharding | None:
    return type_.sharding if isinstance(type_, TensorType) else None


def _holds_operands(annotation: str) -> bool:
    return any(word in annotation for word in ("Value", "Operand", "Argument"))


def _collect(item: Any, into: list[Value]) -> None:
    if isinstance(item, Value):
        into.append(item)
    elif isinstance(item, tuple):
        for part in item:
            _collect(part, into)


def flatten(item: Any) -> Iterator[Value]:
    """Yield the values in an argument, in order: a value, a literal, or nested tuples."""
    found: list[Value] = []
    _collect(item, found)
    yield from found


def _refill(item: Any, parts: Iterator[Value]) -> Any:
    """Replace each value in an operand field by the next of `parts`, by position."""
    if isinstance(item, Value):
        return next(parts)
    if isinstance(item, tuple):
        return tuple(_refill(part, parts) for part in item)
    return item


def substitute(item: Any, mapping: Mapping[Value, Value]) -> Any:
    """Replace values in an operand field: a value, a literal, or nested tuples."""
    if isinstance(item, Value):
        return mapping.get(item, item)
    if isinstance(item, tuple):
        return tuple(substitute(part, mapping) for part in item)
    return item


@dataclass(frozen=True, slots=True)
class InputSpec:
    """What the caller promises of an input.

    `strides` are its strides in elements (None: unknown), `offset` its storage offset; `is_static`
    marks parameters and buffers, whose address stays the same from call to call.
    """

    strides: tuple[Dim, ...] | None = None
    offset: Dim = 0
    is_static: bool = False


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """What the caller expects of an output.

    `strides` are the strides it must have (None: any). A `fresh` output shares no memory with an
    input, nor with an output of another group; group -1 is a group of its own. A `saved` output is
    kept for backward and never seen by the user. `sharding` is how it lies on the mesh (None:
    nothing is promised).
    """

    strides: tuple[Dim, ...] | None = None
    fresh: bool = True
    saved: bool = False
    group: int = -1
    sharding: Sharding | None = None


@dataclass(frozen=True, slots=True)
class Mutation:
    """When the graph has run, `target` (an input) holds `value`; reads inside see the old one."""

    target: Value
    value: Value


@dataclass(frozen=True, eq=False)
class Graph:
    """An immutable program: inputs, ops in order of execution, outputs, and what happens to inputs.

    `outputs` may hold None (a gradient that does not exist). `symbols` are the symbols of all
    dimensions with their ranges. `resources` holds what text cannot (large constants, submodules)
    by name; `Foreign("resource", name)` and the `resource` op refer to it. `mesh` is the mesh whose
    axes shardings in the graph name.
    """

    name: str
    inputs: tuple[Value, ...]
    ops: tuple[Op, ...]
    outputs: tuple[Value | None, ...]
    input_specs: tuple[InputSpec, ...] = ()
    output_specs: tuple[OutputSpec, ...] = ()
    mutations: tuple[Mutation, ...] = ()
    symbols: tuple[SymbolRange, ...] = ()
    resources: Mapping[str, Any] = field(default_factory=dict)
    mesh: Mesh | None = None

    def __post_init__(self) -> None:
        if not self.input_specs:
            object.__setattr__(self, "input_specs", (InputSpec(),) * len(self.inputs))
        if not self.output_specs:
            object.__setattr__(self, "output_specs", (OutputSpec(),) * len(self.outputs))
        if len(self.input_specs) != len(self.inputs):
            raise CompileError("spec-count", "a graph needs one input spec for each input")
        if len(self.output_specs) != len(self.outputs):
            raise CompileError("spec-count", "a graph needs one output spec for each output")

    def with_ops(self, ops: tuple[Op, ...], mapping: Mapping[Value, Value]) -> Graph:
        """Return the graph with other ops; outputs and mutations follow `mapping`."""
        return dataclasses.replace(
            self,
            ops=ops,
            outputs=tuple(mapping.get(v, v) if v is not None else None for v in self.outputs),
            mutations=tuple(
                Mutation(m.target, mapping.get(m.value, m.value)) for m in self.mutations
            ),
        )

    @property
    def uses(self) -> Iterator[Value]:
        """Every use at the end of the graph: outputs, then the values of mutations."""
        yield from (value for value in self.outputs if value is not None)
        yield from (mutation.value for mutation in self.mutations)


class Builder:
    """Appends ops to a graph under construction.

    `loc` is the location given to ops that are added without one.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.loc = UNKNOWN
        self.inputs: list[Value] = []
        self.input_specs: list[InputSpec] = []
        self.ops: list[Op] = []
        self.resources: dict[str, Any] = {}

    def input(self, name: str, type: Type, spec: InputSpec = InputSpec()) -> Value:  # noqa: A002 - specs are immutable
        """Add an input."""
        value = Value(type, name=name)
        self.inputs.append(value)
        self.input_specs.append(spec)
        return value

    def add(self, op: _O) -> _O:
        """Append an op and return it."""
        if not op.loc.is_known and self.loc.is_known:
            op = dataclasses.replace(op, loc=self.loc)
        self.ops.append(op)
        return op

    def emit(self, op: Op) -> Value:
        """Append an op with one result and return that."""
        return self.add(op).out

    def build(
        self,
        outputs: tuple[Value | None, ...],
        output_specs: tuple[OutputSpec, ...] = (),
        mutations: tuple[Mutation, ...] = (),
        symbols: tuple[SymbolRange, ...] = (),
    ) -> Graph:
        """Return the finished graph."""
        return Graph(
            self.name,
            tuple(self.inputs),
            tuple(self.ops),
            outputs,
            tuple(self.input_specs),
            output_specs,
            mutations,
            symbols,
            dict(self.resources),
        )
