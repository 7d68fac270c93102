"""What an op is but for the values that it uses: equal ops in repeated layers have one structure.

Whatever is derived from an op alone, such as its iteration space and how its results lie on a mesh,
is derived once for all ops of a structure.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias
from weakref import WeakKeyDictionary

from .shard_rules import ShardingError, result_shardings
from .sharding import Mesh, Sharding
from .space import IterationSpace
from .types import OpaqueType, ScalarType, TensorType, Type

Structure: TypeAlias = Hashable
"""A key that two ops share if they differ in their values, and places, alone; None: no such key."""

_MOST = 1 << 15
_REGIONS: WeakKeyDictionary[Any, Structure] = WeakKeyDictionary()
_SPACES: dict[Structure, IterationSpace | None] = {}
_SHARDINGS: dict[Hashable, tuple[Sharding, ...] | None] = {}


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

    @property
    def operands(self) -> Sequence[Typed]:
        """The values that the op uses."""

    @property
    def results(self) -> Sequence[Typed]:
        """The values that the op defines."""

    @property
    def regions(self) -> Mapping[str, Any]:
        """The regions of the op by name."""

    def space(self) -> IterationSpace | None:
        """Return the iteration space."""


def structure_of(op: Iterating) -> Structure:
    """Return the structure of an op, whose operands count by their types alone.

    How operands lie on a mesh is left out. None where an attribute cannot be a part of a key.
    """
    key = (
        type(op),
        tuple([_of(getattr(op, name)) for name in op.operand_fields]),
        tuple([_typed(getattr(op, name)) for name in op.attribute_fields]),
        tuple([_of_region(region) for region in op.regions.values()]),
    )
    try:
        hash(key)
    except TypeError:
        return None
    return key


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


def _of_region(region: Any) -> Structure:
    known = _REGIONS.get(region)
    if known is None:
        numbers = {value: index for index, value in enumerate(region.parameters)}
        ops: list[Any] = []
        for op in region.ops:
            used = tuple([numbers.get(operand, -1) for operand in op.operands])
            ops.append((structure_of(op), used))
            for result in op.results:
                numbers[result] = len(numbers)
        parameters = tuple([_of(value) for value in region.parameters])
        results = tuple([numbers.get(value, -1) for value in region.results])
        known = _REGIONS[region] = (parameters, tuple(ops), results)
    return known


def shared_space(op: Iterating, structure: Structure) -> IterationSpace | None:
    """Return the iteration space of an op of a structure; it is made once."""
    if structure is None:
        return op.space()
    if structure not in _SPACES:
        if len(_SPACES) >= _MOST:
            _SPACES.clear()
        _SPACES[structure] = op.space()
    return _SPACES[structure]


def derived_shardings(op: Iterating) -> tuple[Sharding, ...] | None:
    """Return how the results of an op lie where its operands lie as their types say.

    None if each device has the whole of them. `ShardingError` where the op cannot run on the parts
    of its operands.
    """
    given = tuple([_lies(operand.type) for operand in op.operands])
    mesh = next((one.mesh for one in given if one is not None and one.mesh is not None), None)
    structure = structure_of(op)
    key = (structure, given, mesh)
    if structure is not None and key in _SHARDINGS:
        return _SHARDINGS[key]
    found = _derived(op, shared_space(op, structure), given, mesh)
    if structure is not None:
        if len(_SHARDINGS) >= _MOST:
            _SHARDINGS.clear()
        _SHARDINGS[key] = found
    return found


def _derived(
    op: Iterating,
    space: IterationSpace | None,
    given: tuple[Sharding | None, ...],
    mesh: Mesh | None,
) -> tuple[Sharding, ...] | None:
    found = result_shardings(
        space,
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
