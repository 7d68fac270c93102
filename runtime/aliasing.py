"""Which operators of torch may return memory of their operands."""

from __future__ import annotations

import torch

from lynx.ir.core import Op
from lynx.ir.ops.aten import Aten

from .torch_internals import is_composite

_NAMESPACES = ("aten", "prims")
"""Only torch's own operators are believed: nothing checks the schema of others."""

_SILENT = ("_unsafe_view", "_coalesce", "lift")
"""Operators that may return an operand, or a view of one, although their schema denies it."""


def may_alias(op: Op) -> bool:
    """Whether a result of an op may lie in the memory of an operand, as far as torch tells."""
    if not isinstance(op, Aten):
        return op.is_view
    namespace, _, rest = op.target.partition(".")
    name, _, overload = rest.rpartition(".")
    if namespace not in _NAMESPACES or name in _SILENT:
        return True
    packet = getattr(getattr(torch.ops, namespace), name, None)
    function = getattr(packet, overload, None)
    if function is None or is_composite(function):
        return True
    return any(result.alias_info is not None for result in function._schema.returns)
