"""Check that what a text gives for a field of an op is what the field's annotation asks for."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sympy

from .core import Op, Value
from .dims import symbol
from .types import DType

_WORDS: Mapping[Any, str] = {
    Value: "a value",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    complex: "a complex number",
    str: "text in quotes",
    DType: "an element type",
    sympy.Expr: "an expression",
    type(None): "none",
}


@dataclass(frozen=True)
class Field:
    """What a field accepts; `fit` returns the item to store and raises `ValueError`."""

    fit: Callable[[Any], Any]
    words: str
    is_required: bool


_FIELDS: dict[type[Op], Mapping[str, Field]] = {}


def fields_of(kind: type[Op]) -> Mapping[str, Field]:
    """Return the operand, attribute and region fields of an op class."""
    if kind not in _FIELDS:
        hints = typing.get_type_hints(kind)
        declared = {field.name: field for field in dataclasses.fields(kind)}
        _FIELDS[kind] = {
            name: Field(_fitter(hints[name]), _describe(hints[name]), _is_required(declared[name]))
            for name in (*kind.operand_fields, *kind.attribute_fields, *kind.region_fields)
        }
    return _FIELDS[kind]


def _is_required(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def _members(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(part for member in typing.get_args(hint) for part in _members(member))
    return (hint,)


def _fitter(hint: Any) -> Callable[[Any], Any]:
    members = _members(hint)
    classes = tuple(member for member in members if isinstance(member, type))
    classes += (int,) if float in classes else ()
    tuples = [_tuple_fitter(member) for member in members if typing.get_origin(member) is tuple]
    if len(classes) + len(tuples) < len(members):
        return lambda item: item

    def fit(item: Any) -> Any:
        if isinstance(item, classes):
            return item
        if isinstance(item, tuple):
            for fit_tuple in tuples:
                return fit_tuple(item)
        if isinstance(item, DType) and sympy.Expr in classes:
            return symbol(item.value)
        raise ValueError(item)

    return fit


def _tuple_fitter(hint: Any) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    parts = typing.get_args(hint)
    if len(parts) == 2 and parts[1] is Ellipsis:
        fit = _fitter(parts[0])
        return lambda items: tuple([fit(item) for item in items])
    fits = [_fitter(part) for part in parts]
    return lambda items: tuple([f(item) for f, item in zip(fits, items, strict=True)])


def _describe(hint: Any) -> str:
    words: list[str] = []
    for member in _members(hint):
        if typing.get_origin(member) is tuple:
            parts = [part for part in typing.get_args(member) if part is not Ellipsis]
            words.append(f"a list of ({', '.join(_describe(part) for part in parts)})")
        else:
            words.append(_WORDS.get(member, "anything"))
    return " or ".join(dict.fromkeys(words))
