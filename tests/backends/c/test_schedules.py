"""Every schedule at odd sizes, static and symbolic, and the same bits for any number of threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from lynx.backends.reference import run_kernel
from lynx.ir import Kernel, symbol
from tests.backends.c.examples import EXAMPLES, Example, buffers_of
from tests.backends.c.running import Runner, compiled

NAMES = [example.__name__ for example in EXAMPLES]
SIZES = [(1, 1), (3, 5), (17, 64), (64, 17), (127, 33), (2, 1031), (1031, 2), (40, 1000), (1, 4099)]
EMPTY = [(0, 3), (3, 0), (0, 0)]
LARGE = (1531, 613)
NEVER_EMPTY = ("extremes", "loss", "joined", "shifted_by_the_largest_of_all")


def kernels_at(sizes: tuple[int, int]) -> list[Kernel]:
    return [example(*sizes) for example in EXAMPLES]


def assert_right(kernel: Kernel, runner: Runner, symbols: dict[str, int]) -> None:
    buffers = buffers_of(kernel, symbols)
    expected = {name: tensor.clone() for name, tensor in buffers.items()}
    run_kernel(kernel, expected, symbols)
    runner(buffers, symbols)
    for name, wanted in expected.items():
        tolerance = {torch.float32: 3e-5, torch.float64: 1e-12}.get(wanted.dtype, 1e-2)
        exact = 0.0 if not wanted.is_floating_point() else tolerance
        torch.testing.assert_close(
            buffers[name], wanted, rtol=exact, atol=exact, equal_nan=True,
            msg=lambda text, name=name: f"{kernel.name} {symbols} buffer {name}: {text}",
        )  # fmt: skip


@pytest.fixture(scope="module")
def symbolic() -> list[tuple[Kernel, Runner]]:
    kernels = [example(symbol("n"), symbol("m")) for example in EXAMPLES]
    return list(zip(kernels, compiled(kernels), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_one_compilation_serves_all_sizes(name: str, symbolic: list[tuple[Kernel, Runner]]) -> None:
    kernel, runner = symbolic[NAMES.index(name)]
    sizes = [*SIZES, *([] if name in NEVER_EMPTY else EMPTY), LARGE]
    for n, m in sizes:
        symbols = {key: value for key, value in (("n", n), ("m", m)) if key in kernel.symbols}
        assert_right(kernel, runner, symbols)


@pytest.mark.parametrize("sizes", [*SIZES, (3, 0), LARGE], ids=str)
def test_static_sizes(sizes: tuple[int, int]) -> None:
    kernels = kernels_at(sizes)
    if 0 in sizes:
        kernels = [k for k in kernels if k.name not in NEVER_EMPTY]
    for kernel, runner in zip(kernels, compiled(kernels), strict=True):
        assert_right(kernel, runner, {})


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_the_number_of_threads_changes_no_bit() -> None:
    kernels = kernels_at(LARGE)
    for kernel, runner in zip(kernels, compiled(kernels), strict=True):
        results = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            buffers = buffers_of(kernel, {})
            runner(buffers, {})
            results.append(buffers)
        for other in results[1:]:
            for name, tensor in results[0].items():
                assert torch.equal(tensor, other[name]), (kernel.name, name)


def example_named(name: str) -> Example:
    return EXAMPLES[NAMES.index(name)]


@pytest.mark.parametrize("count", [1 << 20, 1_000_003])
def test_sums_are_as_accurate_as_those_of_torch(count: int) -> None:
    for sizes in ((1, count), (count, 1), (count // 64, 64)):
        kernel = example_named("layer_norm_backward")(*sizes)
        (runner,) = compiled([kernel])
        buffers = buffers_of(kernel, {})
        buffers["g"] = torch.rand(sizes[0] * sizes[1])
        runner(buffers, {})
        g = buffers["g"].view(sizes)
        exact = g.double().sum(0)
        error = (buffers["db"].double() - exact).abs().max()
        of_torch = (g.sum(0).double() - exact).abs().max()
        unit = torch.finfo(torch.float32).eps * exact.abs().max()
        assert error <= 2 * of_torch + 4 * unit
