"""Random kernels are valid and diverse."""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, given, settings

from lynx.backends.reference import run_kernel
from lynx.ir import (
    kernel_key,
    parse_kernel,
    print_kernel,
    verify_kernel,
)
from tests.tools.kernels import KernelCase, compare, kernel_cases


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(kernel_cases())
def test_random_kernels_are_valid_and_read_back(case: KernelCase) -> None:
    verify_kernel(case.kernel)
    text = print_kernel(case.kernel)
    again = parse_kernel(text)
    assert print_kernel(again) == text
    assert kernel_key(again) == kernel_key(case.kernel)
    compare(case, lambda kernel, buffers, symbols: run_kernel(again, buffers, symbols))


def test_random_kernels_are_diverse() -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=300, deadline=None, database=None, derandomize=True,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(kernel_cases())
    def look(case: KernelCase) -> None:
        for instruction in case.kernel.body:
            kind = type(instruction).__name__
            name = getattr(instruction, "combine", getattr(instruction, "function", ""))
            seen[f"{kind} {name}".strip()] += 1
            seen["masked"] += getattr(instruction, "mask", None) is not None
            index = getattr(instruction, "index", None)
            seen["indirect"] += index is not None and bool(index.scalars)
        seen["symbolic"] += bool(case.symbols)
        for dtype in {buffer.dtype for buffer in case.kernel.buffers}:
            seen[str(dtype)] += 1

    look()
    wanted = ["Store set", "Store add", "Check", "Convert", "Position", "masked", "indirect",
              "symbolic", "Apply where", "Reduce sum", "Reduce argmax", "Reduce welford", "bf16",
              "f16", "f64", "i64", "i32", "u8", "bool"]  # fmt: skip
    assert [name for name in wanted if not seen[name]] == []
