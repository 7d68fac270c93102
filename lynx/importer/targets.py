"""Names for what an FX node calls, which the reference back end resolves again."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from lynx.compat import HigherOrderOperator, OpOverload
from lynx.ir.core import Foreign


def name_of_target(target: Any, keep: Callable[[str, Any], Foreign]) -> str:
    """Return the name of an operator, higher-order operator or Python function.

    What has no name under which it can be found again is kept as a resource, and named by that.
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
    return f"resource.{keep(f'function_{name or type(target).__name__}', target).text}"
