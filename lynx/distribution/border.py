"""The way of tensors into a distributed program and out of it, with their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Placement

from lynx.ir.sharding import Sharding

from .gathering import piece, whole
from .groups import Groups
from .meshes import placements_of
from .torch_internals import from_part, local_part, spec, spec_of


class _Enter(torch.autograd.Function):
    """From a distributed tensor to the part that lies here; gradients lie as the tensor does."""

    @staticmethod
    def forward(ctx: Any, tensor: DTensor) -> torch.Tensor:
        ctx.spec = spec_of(tensor)
        ctx.set_materialize_grads(False)
        part = local_part(tensor)
        return part.view_as(part)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> DTensor | None:
        return None if grad is None else from_part(grad, ctx.spec)


class _Leave(torch.autograd.Function):
    """From the part that lies here to a distributed tensor; gradients are brought to lie so."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, lies: Any) -> DTensor:
        ctx.spec = lies
        ctx.set_materialize_grads(False)
        return from_part(part.view_as(part), lies, part.requires_grad)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[torch.Tensor | None, None]:
        if grad is None:
            return None, None
        if grad.device_mesh != ctx.spec.mesh or grad.placements != ctx.spec.placements:
            grad = grad.redistribute(ctx.spec.mesh, ctx.spec.placements)
        return local_part(grad), None


class _Cut(torch.autograd.Function):
    """From a tensor that each process has to its part; the gradient is put together again."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, sharding: Sharding, groups: Groups) -> torch.Tensor:
        ctx.lies = (sharding, tuple(tensor.shape), groups)
        return piece(tensor, sharding, groups.mesh, groups.coordinates)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        sharding, shape, groups = ctx.lies
        return whole(grad, sharding, shape, groups, "the gradient of an input"), None, None


class _Join(torch.autograd.Function):
    """From the part that lies here to the whole tensor; each process has the whole gradient."""

    @staticmethod
    def forward(
        ctx: Any, part: torch.Tensor, sharding: Sharding, shape: Sequence[int], groups: Groups
    ) -> torch.Tensor:
        ctx.lies = (sharding, groups)
        return whole(part, sharding, shape, groups, "an input of a graph that torch runs")

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        sharding, groups = ctx.lies
        return piece(grad, sharding, groups.mesh, groups.coordinates), None, None, None


@dataclass(frozen=True)
class Entrance:
    """How one input gets in: it lies as `sharding` says, of which DTensor says `placements`."""

    sharding: Sharding
    placements: tuple[Placement, ...]
    groups: Groups

    def enter(self, given: torch.Tensor) -> torch.Tensor:
        """Return the part of a tensor that the program of this process takes."""
        tensor = getattr(given, "lynx_tensor", given)  # a stand-in names what it stands for
        if isinstance(tensor, DTensor):
            if tuple(tensor.placements) != self.placements:
                tensor = tensor.redistribute(self.groups.device_mesh, self.placements)
            if tensor.requires_grad and torch.is_grad_enabled():
                return _Enter.apply(tensor)  # type: ignore[no-any-return, no-untyped-call]
            return local_part(tensor)
        if self.sharding.is_replicated:
            return tensor
        if tensor.requires_grad and torch.is_grad_enabled():
            return _Cut.apply(tensor, self.sharding, self.groups)  # type: ignore[no-any-return, no-untyped-call]
        return piece(tensor, self.sharding, self.groups.mesh, self.groups.coordinates)

    def join(self, part: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """Return the whole tensor of a shape of which each process has entered its part."""
        if self.sharding.is_replicated:
            return part
        return _Join.apply(part, self.sharding, tuple(shape), self.groups)  # type: ignore[no-any-return, no-untyped-call]


@dataclass(frozen=True)
class Exit:
    """How one output gets out, as a distributed tensor."""

    spec: Any

    @classmethod
    def of(
        cls,
        sharding: Sharding,
        shape: Sequence[int],
        stride: Sequence[int],
        dtype: torch.dtype,
        groups: Groups,
    ) -> Exit:
        """Return the exit of an output with this whole shape and stride."""
        placements = placements_of(sharding, shape, groups.device_mesh)
        return cls(spec(groups.device_mesh, placements, shape, stride, dtype))

    def leave(self, part: torch.Tensor) -> DTensor:
        """Return the distributed tensor of which this process computed a part."""
        if part.requires_grad and torch.is_grad_enabled():
            return _Leave.apply(part, self.spec)  # type: ignore[no-any-return, no-untyped-call]
        return from_part(part, self.spec, part.requires_grad)
