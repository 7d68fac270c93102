"""The table of reference rules: for each op class, the call of torch that is its meaning."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from lynx.ir.call import Call
from lynx.ir.core import Op, Value
from lynx.ir.errors import InternalError
from lynx.ir.types import TensorType

from .torch_internals import has_kernel

_O = TypeVar("_O", bound=Op)
_RULES: dict[type[Op], Callable[[Any], Call]] = {}


def means(*kinds: type[_O]) -> Callable[[Callable[[_O], Call]], Callable[[_O], Call]]:
    """Register a function as the rule of these op classes (not of their subclasses)."""

    def register(rule: Callable[[_O], Call]) -> Callable[[_O], Call]:
        for kind in kinds:
            _RULES[kind] = rule
        return rule

    return register


def call_of(op: Op) -> Call:
    """Return how torch computes the op; `InternalError` if its class has no rule."""
    rule = _RULES.get(type(op))
    if rule is None:
        raise InternalError("no-reference-rule", f"'{op.name}' has no reference rule", op.loc)
    return rule(op)


def covered() -> frozenset[type[Op]]:
    """Return the op classes that have a rule."""
    return frozenset(_RULES)


def aten(name: str, *arguments: Any, overload: str = "default", **keywords: Any) -> Call:
    """Return the call of `torch.ops.aten.<name>.<overload>`, with its `out` form if there is one.

    An `out` form counts only where torch has a kernel for it: many are generated and copy.
    """
    packet = getattr(torch.ops.aten, name)
    function = getattr(packet, overload)
    out = out_variant(packet, function, _device_of(arguments))
    names = ("out",) if out is None else _out_names(out)
    return Call(function, arguments, keywords, out, names)


def _device_of(arguments: tuple[Any, ...]) -> str:
    """Return the type of the device of the first tensor that is not on the CPU, or the CPU's."""
    for item in arguments:
        if isinstance(item, Value) and isinstance(item.type, TensorType):
            device = item.type.device.partition(":")[0]
            if device != "cpu":
                return device
    return "cpu"


@functools.cache
def out_variant(packet: Any, function: Any, device: str = "cpu") -> Any | None:
    """Return the overload with the arguments of `function` plus outputs, if torch has a kernel."""
    wanted = [(a.name, str(a.type)) for a in function._schema.arguments]
    for overload in packet.overloads():
        candidate = getattr(packet, overload)
        arguments = candidate._schema.arguments
        given = [(a.name, str(a.type)) for a in arguments if not a.is_out]
        if len(given) < len(arguments) and given == wanted and has_kernel(candidate, device):
            return candidate
    return None


@functools.cache
def _out_names(out: Any) -> tuple[str, ...]:
    return tuple(a.name for a in out._schema.arguments if a.is_out)
