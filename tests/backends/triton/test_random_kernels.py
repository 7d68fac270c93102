"""Random kernels in Triton's interpreter against the interpreter of kernels."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from lynx.backends.triton.interpreter import TritonInterpreter
from lynx.backends.triton.sizes import LIMITS, Limits
from lynx.ir import Kernel
from tests.tools.kernels import KernelCase, compare, kernel_cases

TINY = Limits(
    programs=8, persistent=4, tile=8, split_along=8, split_across=4, part_along=4, part_across=3
)
LOOPED = Limits(persistent=2, tile=16)


@pytest.mark.parametrize("limits", [LIMITS, LOOPED, TINY], ids=["whole", "looped", "split"])
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(case=kernel_cases())
def test_random_kernels(case: KernelCase, limits: Limits, interpreter: TritonInterpreter) -> None:
    def run(kernel: Kernel, buffers: dict[str, torch.Tensor], symbols: Mapping[str, int]) -> None:
        tensors = [buffers[buffer.name] for buffer in kernel.buffers]
        interpreter.run_kernel(kernel, tensors, symbols, limits=limits)

    compare(case, run)
