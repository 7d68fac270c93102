"""What passes are told of torch: how to run an op, what can be written in place, constants."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import torch

from lynx.backends.reference import call_of, covered, run
from lynx.ir.core import Graph, Op
from lynx.passes import ConstantInfo, PassContext, Target
from lynx.runtime import may_alias

from .distribution.discovery import find_rule
from .generators import target_of


def pass_context(graph: Graph, target: Target | None = None, machine: str = "") -> PassContext:
    """Return the context for compiling a graph, on this machine unless a target is given.

    `machine` names the description of a mesh's machines.
    """
    supported = covered()

    def evaluate(op: Op, operands: Sequence[Any]) -> Sequence[Any]:
        with torch.no_grad():
            values = dict(zip(op.operands, operands, strict=True))
            return run(op, values, {}, graph.resources)

    return PassContext(
        evaluate=evaluate,
        constant_info=constant_info,
        can_write_into=lambda op: call_of(op).out is not None,
        may_alias=may_alias,
        supports=lambda kind: kind in supported,
        target=target_of(graph) if target is None else target,
        find_rule=find_rule,
        machine=machine,
    )


def constant_info(tensor: torch.Tensor) -> ConstantInfo:
    """Describe a concrete tensor: its uniform value if it has one, a digest, and its bytes."""
    dense = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    data = dense.reshape(-1).view(torch.uint8)
    header = f"{dense.dtype} {tuple(dense.shape)} {tensor.device}".encode()
    digest = hashlib.sha256(header + data.numpy().tobytes()).hexdigest()
    return ConstantInfo(_uniform(dense), digest, dense.numel() * dense.element_size())


def _uniform(dense: torch.Tensor) -> bool | int | float | complex | None:
    if dense.numel() == 0:
        return 0
    first: bool | int | float | complex = dense.reshape(-1)[0].item()
    width = dense.element_size()
    rows = dense.reshape(-1).view(torch.uint8).reshape(-1, width)
    if not bool((rows == rows[0]).all()):
        return None
    if isinstance(first, float) and math.isnan(first):
        plain = torch.full((1,), math.nan, dtype=dense.dtype).view(torch.uint8)
        return first if bool((rows[0] == plain).all()) else None
    return first
