"""The private APIs of torch that the back ends need, each with a test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch._ops

_HAS_ONEDNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]

OpOverload = torch._ops.OpOverload
HigherOrderOperator = torch._ops.HigherOrderOperator


def has_kernel(function: Any, device: str = "cpu") -> bool:
    """Whether torch has a kernel of an operator for a device; one made of others is none.

    A torch that is built for no GPU knows no kernels for one; then those for CPUs count.
    """
    schema = function._schema
    name = f"{schema.name}.{schema.overload_name}"
    is_built = torch.version.cuda is not None or torch.version.hip is not None
    on_gpu = device.startswith("cuda") and is_built
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA" if on_gpu else "CPU"))


def convolve_into(
    out: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> bool:
    """Convolve into given memory by oneDNN, as `aten.convolution` does, but for the allocation.

    Returns False, with `out` as it was, where oneDNN has no such convolution. The operator adds to
    its output, hence the zeros; they are in the cache when it reads them.
    """
    if not _has_inplace_convolution(x, out):
        return False
    if x.dim() == 3:
        # As torch does, a line is an image of one row.
        x, weight, out = x.unsqueeze(2), weight.unsqueeze(2), out.unsqueeze(2)
        stride, padding, dilation = (1, *stride), (0, *padding), (1, *dilation)
    torch.ops.mkldnn._convolution_pointwise_.binary(
        out.zero_(), x, weight, bias, padding, stride, dilation, groups,
        "add", 1.0, None, [], None,
    )  # fmt: skip
    return True


def _has_inplace_convolution(x: torch.Tensor, out: torch.Tensor) -> bool:
    if x.dtype != torch.float32 or x.device.type != "cpu" or x.numel() == 0 or out.numel() == 0:
        return False
    if not torch.backends.mkldnn.enabled:
        return False
    return _HAS_ONEDNN and hasattr(torch.ops.mkldnn, "_convolution_pointwise_")
