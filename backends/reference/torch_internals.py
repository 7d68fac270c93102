"""The private APIs of torch that the reference back end needs, each with a test."""

from __future__ import annotations

from typing import Any

import torch
import torch._ops

OpOverload = torch._ops.OpOverload
HigherOrderOperator = torch._ops.HigherOrderOperator


def has_cpu_kernel(function: Any) -> bool:
    """Whether torch has a kernel of an operator for CPUs; one made of other operators is none."""
    schema = function._schema
    name = f"{schema.name}.{schema.overload_name}"
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU"))
