"""The operator `lynx::constrain`: what `lynx.constrain` becomes in traced graphs."""

from __future__ import annotations

from typing import Any

import torch

_NAME = "lynx::constrain"

torch.library.define(_NAME, "(Tensor x, str sharding, int priority) -> Tensor")


@torch.library.impl(_NAME, "CompositeExplicitAutograd")
def _constrain(x: torch.Tensor, sharding: str, priority: int) -> torch.Tensor:
    del sharding, priority
    return x.clone()


@torch.library.register_fake(_NAME)  # type: ignore[untyped-decorator]
def _fake(x: torch.Tensor, sharding: str, priority: int) -> torch.Tensor:
    del sharding, priority
    return torch.empty_like(x)


def _setup(ctx: Any, inputs: tuple[torch.Tensor, str, int], output: torch.Tensor) -> None:
    del output
    _, ctx.sharding, ctx.priority = inputs


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    return OPERATOR(grad, ctx.sharding, ctx.priority), None, None


torch.library.register_autograd(_NAME, _backward, setup_context=_setup)
OPERATOR = torch.ops.lynx.constrain.default


def constrain(x: torch.Tensor, sharding: str, *, priority: int = -1) -> torch.Tensor:
    """Say, inside a model, how a value lies on the mesh; its gradient lies the same way.

    `sharding` has an entry for each dimension: mesh axes that cut it, `_` for none, `?` where
    propagation may cut further, and `...` for as many `_` as are left. Lower priorities win where
    annotations contend for a mesh axis; unless one is given, axes that cut the first dimension, of
    batches, count as data, and others yield to those of parameters. Outside of `torch.compile`
    nothing happens.
    """
    if not torch.compiler.is_compiling():
        return x
    return OPERATOR(x, sharding, priority)  # type: ignore[no-any-return]
