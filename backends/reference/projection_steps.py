"""What a model does to logits between the projection and the loss, as steps that are named in text.

A step is `multiply 0.5`, `divide 30.0`, `tanh` or `convert f32`. Numbers are in the type of the
projection until a step converts them, and each result is rounded to that type, as eager does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lynx.ir.errors import CompileError
from lynx.ir.types import DType

from .dtypes import torch_dtype


@dataclass(frozen=True, slots=True)
class Step:
    """A parsed step: `number` of a product or quotient, `dtype` of a conversion."""

    kind: str
    number: float = 1.0
    dtype: torch.dtype | None = None


def parse_steps(texts: Sequence[str]) -> tuple[Step, ...]:
    """Return the steps that texts name; `CompileError` on one that is none."""
    return tuple(map(_parse, texts))


def _parse(text: str) -> Step:
    kind, _, rest = text.partition(" ")
    try:
        if kind in ("multiply", "divide"):
            return Step(kind, float(rest))
        if kind == "convert":
            return Step(kind, dtype=torch_dtype(DType(rest)))
    except ValueError as error:
        raise CompileError("bad-step", f"no step of a projection: {text!r}") from error
    if text != "tanh":
        raise CompileError("bad-step", f"no step of a projection: {text!r}")
    return Step(kind)


def transform(
    block: torch.Tensor, steps: Sequence[Step], dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    """Apply steps in place to a block that holds values of `dtype`; return what `tanh` gave."""
    kept = []
    round_to(block, dtype)
    for step in steps:
        if step.dtype is not None:
            dtype = step.dtype
        elif step.kind == "multiply":
            block.mul_(step.number)
        elif step.kind == "divide":
            block.div_(step.number)
        else:
            block.tanh_()
        round_to(block, dtype)
        if step.kind == "tanh":
            kept.append(block.clone())
    return tuple(kept)


def differentiate(
    gradient: torch.Tensor, steps: Sequence[Step], kept: Sequence[torch.Tensor]
) -> None:
    """Turn the gradient of the transformed logits, in place, into that of the projection."""
    results = iter(reversed(kept))
    for step in reversed(steps):
        if step.kind == "multiply":
            gradient.mul_(step.number)
        elif step.kind == "divide":
            gradient.div_(step.number)
        elif step.kind == "tanh":
            torch.ops.aten.tanh_backward.grad_input(gradient, next(results), grad_input=gradient)


def apply_steps(logits: torch.Tensor, steps: Sequence[Step]) -> torch.Tensor:
    """Return the transformed logits of a projection, in operators that autograd knows."""
    for step in steps:
        if step.dtype is not None:
            logits = logits.to(step.dtype)
        elif step.kind == "multiply":
            logits = logits * step.number
        elif step.kind == "divide":
            logits = logits / step.number
        else:
            logits = logits.tanh()
    return logits


def round_to(block: torch.Tensor, dtype: torch.dtype) -> None:
    """Round a block in place to a type of lower precision."""
    if dtype.itemsize < block.dtype.itemsize:
        block.copy_(block.to(dtype))
