"""Fused ops as calls: results, layouts that were not expected, and one kernel for all sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch

from lynx.backends.reference import run
from lynx.backends.triton import calls
from lynx.backends.triton.calls import FusedCall, call_of
from lynx.backends.triton.interpreter import TritonInterpreter
from lynx.ir import parse_graph
from lynx.ir.core import Value
from lynx.ir.kernel import Kernel
from lynx.ir.ops.fusion import Fused

TEXT = """
graph @layer(%a: f32[s0, 24], %b: f32[24]) symbols(s0 in [1, 4096]) {
  %d, %e = fused(%x = %a, %y = %b) {
    %0 = add %x, %y : f32[s0, 24]
    %1 = exp %0 : f32[s0, 24]
    %2 = sum %1 {dims = [1]} : f32[s0]
    yield %1, %2
  } : f32[s0, 24], f32[s0]
  return %d, %e
}
"""


@pytest.fixture
def launched(interpreter: TritonInterpreter, monkeypatch: pytest.MonkeyPatch) -> list[Kernel]:
    """Let kernels run in the interpreter, and tell which ones were made."""
    made: list[Kernel] = []

    def launchable(kernel: Kernel, *, is_deterministic: bool = False) -> object:
        made.append(kernel)

        def launch(tensors: Sequence[torch.Tensor], sizes: Mapping[str, int]) -> None:
            flat = [t.as_strided((t.untyped_storage().nbytes() // 4,), (1,)) for t in tensors]
            interpreter.run_kernel(kernel, flat, sizes, is_deterministic=is_deterministic)

        return launch

    monkeypatch.setattr(calls, "launchable", launchable)
    return made


def fused_op() -> Fused:
    (op,) = parse_graph(TEXT).ops
    assert isinstance(op, Fused)
    return op


def wanted(op: Fused, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    values: dict[Value, torch.Tensor] = dict(zip(op.inputs, inputs, strict=True))
    return list(run(op, values, {"s0": inputs[0].shape[0]}, {}))


def test_results_of_any_size_come_from_one_kernel(launched: list[Kernel]) -> None:
    op = fused_op()
    call = call_of(op)
    assert call.out_names == ("out0", "out1")
    for rows in (1, 5, 30):
        inputs = [torch.randn(rows, 24), torch.randn(24)]
        found = call.function(inputs, [rows])
        for got, want in zip(found, wanted(op, inputs), strict=True):
            torch.testing.assert_close(got, want)
    assert len(launched) == 1


def test_out_form_writes_where_it_is_told_in_any_layout(launched: list[Kernel]) -> None:
    op = fused_op()
    program = FusedCall(op)
    inputs = [torch.randn(24, 5).t(), torch.randn(24)]
    outs = {"out0": torch.zeros(24, 5).t(), "out1": torch.zeros(5)}
    program.run_out(inputs, [5], **outs)
    for got, want in zip(outs.values(), wanted(op, inputs), strict=True):
        torch.testing.assert_close(got, want)
    program.run_out(inputs, [5], **outs)
    assert len(launched) == 2


def test_deterministic_mode_of_torch_is_heeded(launched: list[Kernel]) -> None:
    program = FusedCall(fused_op())
    inputs = [torch.randn(2, 24), torch.randn(24)]
    program.run(inputs, [2])
    torch.use_deterministic_algorithms(True)
    try:
        program.run(inputs, [2])
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(launched) == 2
