"""What an op is but for the values that it uses: equal ops in repeated layers have one structure.

Whatever is derived from an op alone, such as its iteration space and how its results lie on a mesh,
is derived once for all ops of a structure.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, ClassVar, Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary

from .shard_rules import ShardingError, result_shardings
from .sharding import Mesh, Sharding
from .space import IterationSpace
from .types import OpaqueType, ScalarType, TensorType, Type

_MOST = 1 << 12


class Structure:
    """What ops share that differ in the values that they use, and places, alone.

    Compared by identity: there is one as long as an op has it. It remembers what was derived of
    one of these ops, for all of them.
    """

    __slots__ = ("__weakref__", "has_space", "shardings", "space")

    def __init__(self) -> None:
        self.space: IterationSpace | None = None
        self.has_space = False
        self.shardings: dict[Hashable, tuple[Sharding, ...] | None] = {}


_STRUCTURES: WeakValueDictionary[Hashable, Structure] = WeakValueDictionary()
_REGIONS: WeakKeyDictionary[Any, Hashable] = WeakKeyDictionary()


class Typed:
    """Something with a type that ops use: values are of this kind."""

    __slots__ = ("__weakref__", "type")

    type: Type


class Iterating(Protocol):
    """What is asked of an op here."""

    is_view: ClassVar[Any]
    is_random: ClassVar[Any]
    is_uniform: ClassVar[Any]
    operand_fields: ClassVar[Any]
    attribute_fields: ClassVar[Any]
    region_fields: ClassVar[Any]

    @property
    def operands(self) -> Sequence[Typed]:
        """The values that the op uses."""

    @property
    def results(self) -> Sequence[Typed]:
        """The values that the op defines."""

    @property
    def structure(self) -> Structure | None:
        """What `structure_of` gives, found once."""

    def space(self) -> IterationSpace | None:
        """Return the iteration space."""


def structure_of(op: Iterating) -> Structure | None:
    """Return the structure of an op, whose operands count by their types alone.

    How operands lie on a mesh is left out. None where an attribute cannot be a part of a key.
    """
    key = _key(op)
    try:
        found = _STRUCTURES.get(key)
    except TypeError:
        return None
    if found is None:
        found = _STRUCTURES[key] = Structure()
    return found


def _key(op: Iterating) -> Hashable:
    return (
        type(op),
        tuple([_of(getattr(op, name)) for name in op.operand_fields]),
        tuple([_typed(getattr(op, name)) for name in op.attribute_fields]),
        tuple([_of_region(getattr(op, name)) for name in op.region_fields]),
    )


def _of(item: Any) -> Any:
    if isinstance(item, Typed):
        type_ = item.type
        if isinstance(type_, TensorType):
            return type_.dtype, type_.shape, type_.device
        return type_
    if isinstance(item, tuple):
        return tuple([_of(part) for part in item])
    return _typed(item)


def _typed(item: Any) -> Any:
    """Return a number with its kind, since 1 and true are equal otherwise."""
    return (type(item), item) if isinstance(item, bool | int | float) else item


def _of_region(region: Any) -> Hashable:
    if region is None:
        return None
    known = _REGIONS.get(region)
    if known is None:
        numbers = {value: index for index, value in enumerate(region.parameters)}
        ops: list[Any] = []
        for op in region.ops:
            used = tuple([numbers.get(operand, -1) for operand in op.operands])
            ops.append((_key(op), used))
            for result in op.results:
                numbers[result] = len(numbers)
        parameters = tuple([_of(value) for value in region.parameters])
        results = tuple([numbers.get(value, -1) for value in region.results])
        known = _REGIONS[region] = (parameters, tuple(ops), results)
    return known


def shared_space(op: Iterating) -> IterationSpace | None:
    """Return the iteration space of an op; it is made once for a structure."""
    structure = op.structure
    if structure is None:
        return op.space()
    if not structure.has_space:
        structure.space, structure.has_space = op.space(), True
    return structure.space


def derived_shardings(op: Iterating) -> tuple[Sharding, ...] | None:
    """Return how the results of an op lie where its operands lie as their types say.

    None if each device has the whole of them. `ShardingError` where the op cannot run on the parts
    of its operands.
    """
    given = tuple([_lies(operand.type) for operand in op.operands])
    mesh = next((one.mesh for one in given if one is not None and one.mesh is not None), None)
    structure = op.structure
    if structure is None:
        return _derived(op, given, mesh)
    key = (given, mesh)
    if key not in structure.shardings:
        if len(structure.shardings) >= _MOST:
            structure.shardings.clear()
        structure.shardings[key] = _derived(op, given, mesh)
    return structure.shardings[key]


def _derived(
    op: Iterating, given: tuple[Sharding | None, ...], mesh: Mesh | None
) -> tuple[Sharding, ...] | None:
    found = result_shardings(
        shared_space(op),
        given,
        mesh,
        moves=op.is_view,
        random=op.is_random,
        uniform=op.is_uniform,
        empty=frozenset(n for n, result in enumerate(op.results) if _is_empty(result.type)),
    )
    for result, sharding in zip(op.results, found or (), strict=bool(found)):
        if isinstance(result.type, ScalarType) and not sharding.is_replicated:
            raise ShardingError("needs-whole", f"a number cannot be {sharding.partial}")
    return found


def _lies(type_: Type) -> Sharding | None:
    return type_.sharding if isinstance(type_, TensorType) else None


def _is_empty(type_: Type) -> bool:
    """Whether a value of the type holds no elements."""
    return 0 in type_.shape if isinstance(type_, TensorType) else isinstance(type_, OpaqueType)
