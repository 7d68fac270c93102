"""Each private API of torch that the reference back end uses still does what it needs."""

from __future__ import annotations

import torch

from lynx.backends.reference.torch_internals import (
    HigherOrderOperator,
    OpOverload,
    has_kernel,
)


def test_classes_of_operators() -> None:
    assert isinstance(torch.ops.aten.add.Tensor, OpOverload)
    assert isinstance(torch.ops.higher_order.cond, HigherOrderOperator)


def test_generated_out_forms_have_no_kernel() -> None:
    assert has_kernel(torch.ops.aten.add.out)
    assert not has_kernel(torch.ops.aten.native_layer_norm.out)
    assert has_kernel(torch.ops.aten.mm.out, "cuda")
