"""The private APIs of torch that the Triton back end needs, each in one small function."""

from __future__ import annotations

import torch


def storage_users(tensor: torch.Tensor) -> int:
    """Return how many tensors and others hold the memory of a tensor.

    The storage's own Python object counts or not, the same way at each call.
    """
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))
