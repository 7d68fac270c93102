"""Tensors without memory that stand for distributed ones while Dynamo looks at a model.

A stand-in is a plain tensor of the whole shape, so Dynamo traces what one device would do. When
the compiled program runs it takes the tensor that the stand-in holds. Its storage is empty, so
whatever tried to read it by mistake would get an error from torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from lynx.passes.distribution.annotations import Annotation

from .torch_internals import map_tensors


@dataclass
class StandIn:
    """A plain tensor without memory, which holds the real one as an attribute."""

    tensor: torch.Tensor

    def fits(self, real: torch.Tensor) -> bool:
        """Whether it may stand for a tensor."""
        plain = self.tensor
        return plain.shape == real.shape and plain.dtype == real.dtype

    def holding(self, real: torch.Tensor) -> torch.Tensor:
        """Return the plain tensor, which now stands for this one."""
        self.tensor.lynx_tensor = real  # type: ignore[attr-defined]
        if self.tensor.requires_grad != real.requires_grad:
            self.tensor.requires_grad_(real.requires_grad)
        return self.tensor


def stand_in(
    real: torch.Tensor, mesh: DeviceMesh, annotation: Annotation | None = None, *,
    lies: bool = False,
) -> StandIn:  # fmt: skip
    """Return a stand-in for a tensor, to lie on a mesh as the annotation says: None for as it lies.

    If it `lies` already it stays there, and only the program may have it otherwise.
    """
    device = real.device
    plain: Any = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device=device)
    plain.untyped_storage().resize_(0)
    if isinstance(real, torch.nn.Parameter):
        plain = torch.nn.Parameter(plain, requires_grad=real.requires_grad)
    plain.lynx_annotation = annotation
    plain.lynx_mesh, plain.lynx_lies = mesh, lies
    return StandIn(plain)


def real_tensors(results: Any) -> Any:
    """Return the results of a model, in which inputs and parameters may be, without stand-ins."""
    return map_tensors(lambda tensor: getattr(tensor, "lynx_tensor", tensor), results)
