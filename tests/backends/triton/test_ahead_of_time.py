"""Kernels compile for NVIDIA and AMD devices that are not there, and keep to their registers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lynx.backends.triton.aot import TARGETS, Resources, compile_module, table
from lynx.backends.triton.matmul import contraction_of
from lynx.backends.triton.module import PrintedModule, print_module, print_product_module
from lynx.ir.dims import symbol
from lynx.ir.types import DType
from tests.backends.triton import samples
from tests.backends.triton.test_kernels import optimizer_step

BF16 = DType.BF16
KERNELS = {
    "pointwise": samples.pointwise(2**24),
    "pointwise, any size": samples.pointwise(symbol("s0"), BF16),
    "transposed": samples.transposed(4096, 4096),
    "softmax 1024": samples.softmax(8192, 1024),
    "softmax 8192": samples.softmax(8192, 8192, BF16),
    "softmax 50257": samples.softmax(8192, 50257, BF16),
    "layer_norm": samples.layer_norm(8192, 4096, BF16),
    "layer_norm backward": samples.layer_norm_backward(8192, 1024, BF16),
    "cross_entropy": samples.cross_entropy(8192, 50257),
    "embedding": samples.gather(8192, 768, 50257),
    "embedding backward": samples.scatter_add(8192, 768, 50257, BF16),
    "sum of all": samples.reduction("sum", 8192, 1024, "ij"),
    "argmax of rows": samples.reduction("argmax", 8192, 1000, "j"),
    "variances of columns": samples.reduction("welford", 8192, 1024, "i"),
}
KERNELS["optimizer step"] = optimizer_step([1024 * (place + 1) for place in range(16)])
PRODUCTS = {
    "linear bf16": samples.product_of(1, 4096, 4096, 1024, BF16),
    "linear f32": samples.product_of(1, 4096, 4096, 1024),
    "batched, any rows": samples.product_of(8, symbol("s0"), 128, 64, BF16),
}


def modules() -> Iterator[tuple[str, PrintedModule]]:
    """Yield what is compiled, by name."""
    for name, kernel in KERNELS.items():
        yield name, print_module(kernel)
    for name, kernel in PRODUCTS.items():
        contraction = contraction_of(kernel)
        assert not isinstance(contraction, str), contraction
        yield name, print_product_module(contraction)


def resources(target: str) -> list[Resources]:
    """Compile everything for a target."""
    return [one for _, module in modules() for one in compile_module(module, target)]


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_spills(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = resources(target)
    with capsys.disabled():
        print(f"\n{table(found)}")
    assert [one for one in found if one.spills] == []
    assert all(one.registers > 0 for one in found)


def test_loops_of_few_rounds_are_not_written_out() -> None:
    """All loads of 13 rounds at once would take more registers than there are."""
    kernel = samples.layer_norm_backward(394, 768)
    for target in TARGETS:
        found = compile_module(print_module(kernel), target)
        assert all(one.spills == 0 for one in found)
        assert max(one.registers for one in found) < 100


def test_deterministic_sums_compile() -> None:
    kernel = samples.scatter_add(512, 256, 100, BF16)
    for target in TARGETS:
        found = compile_module(print_module(kernel, is_deterministic=True), target)
        assert all(one.spills == 0 for one in found)
