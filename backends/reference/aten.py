"""Reference rules for ops that run through torch as they are, and for literals."""

from __future__ import annotations

import builtins
import functools
import importlib
from collections.abc import Iterator
from typing import Any

import torch

from lynx.ir.call import Call
from lynx.ir.core import Foreign
from lynx.ir.errors import CompileError
from lynx.ir.ops.aten import Aten, Resource, Symbolic
from lynx.ir.types import DType, OpaqueType

from .dtypes import torch_dtype
from .registry import means
from .torch_internals import HigherOrderOperator, OpOverload


@means(Aten)
def call_aten(op: Aten) -> Call:
    """Call the operator that the name stands for."""
    function = _IN_OWN_MEMORY.get(op.target) or target_function(op.target)
    if op.sequences:
        function = functools.partial(_call_restored, function, op.sequences)
    if len(op.types) != 1:
        function = functools.partial(_call_flat, function)
    elif op.types[0] != OpaqueType("object") and _may_return_sequence(function):
        function = functools.partial(_call_single, function)
    return Call(
        function,
        tuple(_argument(a) for a in op.arguments),
        {name: _argument(a) for name, a in op.keywords},
    )


def _diagonal_scatter(
    x: torch.Tensor, source: torch.Tensor, *places: int, **named: int
) -> torch.Tensor:
    result = x.clone()
    result.diagonal(*places, **named).copy_(source)
    return result


_IN_OWN_MEMORY = {"aten.diagonal_scatter.default": _diagonal_scatter}
"""What operators mean that would copy all of the memory in which their operand lies."""


@means(Symbolic)
def give_symbolic(op: Symbolic) -> Call:
    """Pass on the number that the runtime computes from the symbols."""
    return Call(_identity, (op.expr,))


@means(Resource)
def read_resource(op: Resource) -> Call:
    """Pass on the tensor that the graph holds."""
    return Call(_identity, (Foreign("resource", op.key),))


def target_function(target: str) -> Any:
    """Return what the name of an `aten` op calls; `CompileError` if there is nothing of this name.

    Names are `namespace.operator.overload`, `higher_order.name`, or `python.module.function`.
    """
    kind, _, rest = target.partition(".")
    try:
        if kind == "higher_order":
            return getattr(torch.ops.higher_order, rest)
        if kind == "python":
            return _python_function(rest)
        name, _, overload = rest.rpartition(".")
        return getattr(getattr(getattr(torch.ops, kind), name), overload)
    except (AttributeError, ImportError) as error:
        raise CompileError("unknown-operator", f"torch has no operator {target}") from error


def _python_function(path: str) -> Any:
    module_name, _, name = path.rpartition(".")
    module = builtins if module_name == "" else importlib.import_module(module_name)
    return getattr(module, name)


def _argument(item: Any) -> Any:
    """Turn a constant of the IR into the object that torch expects."""
    if isinstance(item, DType):
        return torch_dtype(item)
    if isinstance(item, tuple):
        return tuple(_argument(part) for part in item)
    if isinstance(item, Foreign):
        return _foreign(item)
    return item


def _foreign(item: Foreign) -> Any:
    match item.kind:
        case "device":
            return torch.device(item.text)
        case "dtype" | "layout" | "memory_format":
            return getattr(torch, item.text)
        case "operator":
            return target_function(item.text)
        case _:
            return item  # a resource: the evaluator and the runtime look it up


def _identity(item: Any) -> Any:
    return item


def _call_restored(
    function: Any, sequences: tuple[str, ...], *arguments: Any, **keywords: Any
) -> Any:
    """Call with sequences of the kinds that the operator was traced with."""
    kinds = iter(sequences)
    restored = [_restored(item, kinds) for item in arguments]
    return function(*restored, **{name: _restored(v, kinds) for name, v in keywords.items()})


def _restored(item: Any, kinds: Iterator[str]) -> Any:
    if not isinstance(item, tuple | list):
        return item
    kind, *keys = next(kinds).split(" ")
    parts = [_restored(part, kinds) for part in item]
    if kind == "dict":
        return dict(zip(keys, parts, strict=True))
    return tuple(parts) if kind == "tuple" else parts


def _call_flat(function: Any, *arguments: Any, **keywords: Any) -> Any:
    """Call and give nested results as one flat tuple; no result is the empty tuple."""
    result = function(*arguments, **keywords)
    if result is None:
        return ()
    return tuple(_flat(result)) if isinstance(result, tuple | list) else result


def _may_return_sequence(function: Any) -> bool:
    """Whether a call may give its only result in a sequence of one."""
    if isinstance(function, functools.partial):
        return True
    if isinstance(function, OpOverload):
        return any(
            "[]" in str(result.type) or "List" in str(result.type)
            for result in function._schema.returns
        )
    return isinstance(function, HigherOrderOperator)


def _call_single(function: Any, *arguments: Any, **keywords: Any) -> Any:
    """Call and give the only result, out of a sequence of one."""
    result = function(*arguments, **keywords)
    if isinstance(result, tuple | list):
        (result,) = _flat(result)
    return result


def _flat(results: Any) -> list[Any]:
    flat: list[Any] = []
    for result in results:
        flat.extend(_flat(result) if isinstance(result, tuple | list) else [result])
    return flat
