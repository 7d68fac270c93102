"""The operator `lynx::matmul`: products of matrices over several batch axes, without copies.

`torch.matmul` makes one batch axis of several, for which it copies operands whose axes do not lie
one behind the other: queries, keys and values of attention, each time, also for backward. The
library that multiplies needs no such copies.
"""

from __future__ import annotations

from typing import Any

import torch

from lynx.compat import is_transformed

_NAME = "lynx::matmul"

torch.library.define(_NAME, "(Tensor a, Tensor b) -> Tensor")


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the products of two batches of matrices, `[*batch, m, k]` and `[*batch, k, n]`.

    What transforms of `torch.func` see stays `torch.matmul`, and autocast converts as for that.
    """
    if is_transformed(a) or is_transformed(b):
        return torch.matmul(a, b)
    if torch.is_autocast_enabled(a.device.type):
        dtype = torch.get_autocast_dtype(a.device.type)
        a, b = (x if x.dtype == torch.float64 else x.to(dtype) for x in (a, b))
    if a.dtype != b.dtype:
        return torch.matmul(a, b)  # which says what is wrong
    result: torch.Tensor = torch.ops.lynx.matmul.default(a, b)
    return result


@torch.library.impl(_NAME, "CompositeExplicitAutograd")
def _matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.matmul(a, b)


@torch.library.register_fake(_NAME)  # type: ignore[untyped-decorator]
def _fake(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.new_empty((*a.shape[:-1], b.shape[-1]))


def _setup(ctx: Any, inputs: tuple[torch.Tensor, torch.Tensor], output: torch.Tensor) -> None:
    del output
    a, b = inputs
    ctx.save_for_backward(
        a if ctx.needs_input_grad[1] else None, b if ctx.needs_input_grad[0] else None
    )


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    a, b = ctx.saved_tensors
    of_a = None if b is None else torch.ops.lynx.matmul.default(grad, b.transpose(-1, -2))
    of_b = None if a is None else torch.ops.lynx.matmul.default(a.transpose(-1, -2), grad)
    return of_a, of_b


torch.library.register_autograd(_NAME, _backward, setup_context=_setup)
