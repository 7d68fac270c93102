"""The private APIs of torch that the runtime needs, each in one small function with a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._ops
from torch._C._dynamo import guards


def storage_use_count(storage: torch.UntypedStorage) -> int:
    """Return how many tensors and storage objects refer to the memory, this object included."""
    return int(torch._C._storage_Use_Count(storage._cdata))


def direct_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what an operator calls, so that a call is one Python frame cheaper."""
    if type(function) is torch._ops.OpOverload:
        inner: Callable[..., Any] = function._op
        return inner
    return function


def is_composite(function: torch._ops.OpOverload) -> bool:
    """Whether an operator is only written in terms of others, which its schema may not reflect."""
    schema = function._schema
    name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"))


def set_grad_enabled(enabled: bool) -> None:
    """Switch the recording of gradients on or off in this thread, without a context manager."""
    torch._C._set_grad_enabled(enabled)


reinterpreted: Callable[[torch.Tensor, Sequence[int], Sequence[int], int], torch.Tensor] = (
    guards._reinterpret_tensor  # type: ignore[attr-defined]
)
"""Return a tensor with a shape and strides, so many elements further on in the memory of another.

It is no view: it has a version counter of its own, and records no gradients.
"""

empty_on_cpu: Callable[[Sequence[int], Sequence[int], torch.dtype], torch.Tensor] = (
    guards._empty_strided_cpu  # type: ignore[attr-defined]
)
"""Return a new tensor with a shape, strides and element type."""
