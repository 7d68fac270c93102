"""Compiled functions whose schedules and products are measured, with a clock that the test sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from lynx.backends.triton import launches
from lynx.backends.triton.autotune import TunedKernel
from lynx.backends.triton.launch import Launchable
from lynx.backends.triton.products import ProductKernel
from lynx.records import RECORDS

OPTIONS = {
    "strict": True, "cpu_kernels": "triton", "pipeline": "max-autotune", "autotune": True,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    RECORDS.reset()
    yield
    torch._dynamo.reset()


class Clock:
    """Says that each call is faster than all before, or slower; `calls` counts them."""

    def __init__(self, step: float) -> None:
        self.step = step
        self.calls = 0

    def __call__(self, call: Callable[[], None]) -> float:
        self.calls += 1
        if self.calls <= 2:
            call()  # so that what is measured is known to run
        return 1e9 + self.step * self.calls


FIRST, LAST = 1.0, -1.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock(FIRST)
    monkeypatch.setattr(launches, "wall_time", made)
    return made


def launched() -> list[Launchable]:
    natives = [record.executable.native for record in RECORDS.graphs]
    return [launch.run.inner for native in natives for _, launch in native.launched.values()]


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend="lynx", options={**OPTIONS, **options})


def mlp(x: torch.Tensor, up: torch.Tensor, bias: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return x + F.gelu(F.linear(x, up, bias)) @ down.to(x.dtype)


def batched(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return torch.tanh(torch.bmm(q, k.transpose(1, 2)) * 0.5)


def in_place(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    x.add_(a @ b)
    return x.sum()


def inputs_of(name: str) -> tuple[Any, list[torch.Tensor]]:
    if name == "batched":
        return batched, [torch.randn(3, 20, 24), torch.randn(3, 33, 24)]
    if name == "in_place":
        return in_place, [torch.randn(24, 40), torch.randn(24, 32), torch.randn(32, 40)]
    dtype = torch.bfloat16 if name == "bf16" else torch.float32
    x, up, bias = torch.randn(33, 24), torch.randn(40, 24) / 5, torch.randn(40)
    return mlp, [*(t.to(dtype) for t in (x, up, bias)), torch.randn(40, 24) / 6]


@pytest.mark.parametrize("name", ["f32", "bf16", "batched", "in_place"])
@pytest.mark.parametrize("fastest", [FIRST, LAST], ids=["library", "tiled"])
def test_products_by_the_library_and_as_tiles(name: str, fastest: float, clock: Clock) -> None:
    clock.step = fastest
    function, given = inputs_of(name)
    theirs = [tensor.clone() for tensor in given]
    error = 2e-2 if name == "bf16" else 1e-5
    run = compiled(function)
    for _ in range(2):
        actual, expected = run(*given), function(*theirs)
        torch.testing.assert_close(actual, expected, rtol=error, atol=10 * error)
    for one, other in zip(given, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=error, atol=error)
    products = [one for one in launched() if isinstance(one, ProductKernel)]
    assert len(products) == (2 if function is mlp else 1)
    for product in products:
        (chosen,) = product.chosen.values()
        assert (chosen is None) == (fastest == FIRST)


def test_products_of_any_size(clock: Clock) -> None:
    clock.step = LAST
    run = torch.compile(mlp, backend="lynx", options=OPTIONS, dynamic=True)
    _, (_, up, bias, down) = inputs_of("f32")
    for rows in (20, 21, 31, 70):
        x = torch.randn(rows, 24)
        expected = mlp(x, up, bias, down)
        torch.testing.assert_close(run(x, up, bias, down), expected, rtol=1e-5, atol=1e-4)
    assert len(RECORDS.graphs) == 1
    products = [one for one in launched() if isinstance(one, ProductKernel)]
    assert [len(product.chosen) for product in products] == [2, 2]  # magnitudes of sizes


def test_schedules_are_measured_once_and_remembered(tmp_path: Path, clock: Clock) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1)

    x = torch.randn(512, 96)
    measured = []
    for _ in range(2):
        torch._dynamo.reset()
        run = compiled(function, cache=True, cache_dir=str(tmp_path))
        torch.testing.assert_close(run(x), function(x))
        run(x)
        measured.append(clock.calls)
    assert measured[0] > 2
    assert measured[1] == measured[0]
    assert all(isinstance(one, TunedKernel) for one in launched())


def test_small_kernels_are_not_measured(clock: Clock) -> None:
    x = torch.randn(8, 8)
    torch.testing.assert_close(compiled(torch.tanh)(x), torch.tanh(x))
    assert clock.calls == 0
    assert launched()


def test_without_measuring_the_library_multiplies() -> None:
    function, given = inputs_of("f32")
    run = compiled(function, autotune=False)
    torch.testing.assert_close(run(*given), function(*given), rtol=1e-5, atol=1e-4)
    products = [one for one in launched() if isinstance(one, ProductKernel)]
    assert [product.chosen for product in products] == [{}, {}]
