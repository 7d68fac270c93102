"""Names for what an FX node calls, which the reference back end resolves again."""

from __future__ import annotations

import operator
from typing import Any

from lynx.compat import HigherOrderOperator, OpOverload
from lynx.ir.errors import CompileError


def name_of_target(target: Any) -> str:
    """Return the name of an operator, higher-order operator or Python function.

    `CompileError` for a function that has no name under which it can be found again.
    """
    if isinstance(target, OpOverload):
        return str(target)
    if isinstance(target, HigherOrderOperator):
        return f"higher_order.{target.__name__}"
    module = getattr(target, "__module__", None)
    name = getattr(target, "__qualname__", "")
    if getattr(operator, name, None) is target:
        return f"python.operator.{name}"
    if module and "<" not in name:
        return f"python.{module}.{name}"
    raise CompileError("unknown-operator", f"{target!r} has no name to find it by")
