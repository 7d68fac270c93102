"""Calls of operators as `aten` ops, and operators of a user that look as if they could be cut."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch

from lynx.backends.reference.dtypes import dtype_from_torch
from lynx.ir.core import Value
from lynx.ir.ops.aten import Aten
from lynx.ir.types import OpaqueType, TensorType, Type


def call(operator: Any, *arguments: Any) -> tuple[Aten, list[torch.Tensor]]:
    """Return the op for a call of an operator, and the tensors in the order of its operands.

    Keywords come as a dictionary, last.
    """
    tensors: list[torch.Tensor] = []
    keywords: dict[str, Any] = {}
    if isinstance(arguments[-1], dict):
        keywords, arguments = arguments[-1], arguments[:-1]

    def argument(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            tensors.append(item)
            return Value(type_of(item))
        return tuple(map(argument, item)) if isinstance(item, list) else item

    results = operator(*arguments, **keywords)
    several = results if isinstance(results, tuple | list) else (results,)
    given = tuple(map(argument, arguments))
    named = tuple((name, argument(item)) for name, item in keywords.items())
    return Aten(str(operator), given, named, tuple(map(type_of, several))), tensors


def type_of(item: torch.Tensor | None) -> Type:
    if item is None:
        return OpaqueType("none")
    dtype = dtype_from_torch(item.dtype)
    assert dtype is not None
    return TensorType(dtype, tuple(item.shape))


@torch.library.custom_op("lynx_trials::scaled", mutates_args=())
def scaled(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Each row is computed apart."""
    return torch.tanh(x) * scale


@scaled.register_fake
def _(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _saved(ctx: Any, inputs: Any, output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x, scale = ctx.saved_tensors
    y = torch.tanh(x)
    return grad * scale * (1 - y * y), (grad * y).sum(0)


scaled.register_autograd(_gradients, setup_context=_saved)


@torch.library.custom_op("lynx_trials::correlate", mutates_args=())
def correlate(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Sums over a batch and a sequence."""
    return torch.einsum("bsd,bse->de", x, y)


@torch.library.custom_op("lynx_trials::normalized", mutates_args=())
def normalized(x: torch.Tensor) -> torch.Tensor:
    """Rows depend on all others."""
    return (x - x.mean(0)) / x.std(0, correction=0)


@torch.library.custom_op("lynx_trials::clipped", mutates_args=())
def clipped(x: torch.Tensor) -> torch.Tensor:
    """Rows depend on all others if there is a large number somewhere, infinities left out."""
    largest = x.nan_to_num(0, 0, 0).abs().amax()
    return x / largest if largest > 1e6 else x * 2


@torch.library.custom_op("lynx_trials::of_two", mutates_args=())
def of_two(x: torch.Tensor) -> torch.Tensor:
    """It refuses single rows."""
    if len(x) < 2:
        raise ValueError("expected two rows")
    return x * 2


@torch.library.custom_op("lynx_trials::quantized", mutates_args=())
def quantized(x: torch.Tensor) -> torch.Tensor:
    """One scale for all."""
    scale = x.abs().amax() / 127
    return (x / scale).round() * scale


@torch.library.custom_op("lynx_trials::of_many", mutates_args=())
def of_many(x: torch.Tensor) -> torch.Tensor:
    """Rows depend on all others if there are many."""
    return x * 2 if len(x) < 20 else x - x.mean(0)


@torch.library.custom_op("lynx_trials::first_changed", mutates_args=())
def first_changed(x: torch.Tensor) -> torch.Tensor:
    """One row is special."""
    result = x.clone()
    result[0] += 1
    return result


@torch.library.custom_op("lynx_trials::mirrored", mutates_args=())
def mirrored(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Rows belong to rows elsewhere."""
    return x + y.flip(0)


@torch.library.custom_op("lynx_trials::positive_sum", mutates_args=())
def positive_sum(x: torch.Tensor) -> torch.Tensor:
    """Something is done with a sum."""
    return x.sum(0).relu()


@torch.library.custom_op("lynx_trials::single_sum", mutates_args=())
def single_sum(x: torch.Tensor) -> torch.Tensor:
    """A sum in single precision, of which nobody can tell whether it is nothing but a sum."""
    if x.dtype != torch.float32:
        raise TypeError("expected single precision")
    return x.sum(0)


@torch.library.custom_op("lynx_trials::noisy", mutates_args=())
def noisy(x: torch.Tensor) -> torch.Tensor:
    """It does not say that it draws random numbers."""
    return x + torch.rand(x.shape)


@torch.library.custom_op("lynx_trials::crashing", mutates_args=())
def crashing(x: torch.Tensor) -> torch.Tensor:
    """Fewer columns than it was written for are too much for it."""
    if x.shape[1] < 6:
        os.kill(os.getpid(), signal.SIGFPE)
    return x * 2


@torch.library.custom_op("lynx_trials::looked_up", mutates_args=())
def looked_up(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Nobody says what its integers mean."""
    return x[places]


@torch.library.custom_op("lynx_trials::endless", mutates_args=())
def endless(x: torch.Tensor) -> torch.Tensor:
    """With five rows it never ends."""
    while len(x) == 5:
        time.sleep(0.01)
    return x * 2


OWN = torch.ops.lynx_trials
