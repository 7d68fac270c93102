"""Numbers, and tensors of one, meet low precision rounded as eager rounds them: bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tools.compare import compiled

FUNCTIONS: dict[str, Callable[[Any, Any], Tensor]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": lambda x, y: x % y,
    "fmod": lambda x, y: torch.fmod(x, y),
    "greater": lambda x, y: x > y,
    "equal": lambda x, y: x == y,
}
OPERANDS: dict[str, Callable[[torch.dtype], Any]] = {
    "number": lambda dtype: 0.3,
    "0-dim f32": lambda dtype: torch.tensor(1.2345678),
    "0-dim f64": lambda dtype: torch.tensor(-0.7654321, dtype=torch.float64),
    "one element": lambda dtype: torch.tensor([[0.37]]).to(dtype),
    "tensor": lambda dtype: torch.randn(3001).to(dtype),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", OPERANDS)
def test_arithmetic_of_low_precision(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(3001).to(dtype), OPERANDS[kind](dtype)
    x[:8] = torch.tensor([0.0, -0.0, 1e-7, float("inf"), -float("inf"), float("nan"), 3e4, 1.0])

    def function(x: Tensor, y: Any) -> list[Tensor]:
        results = [call(x, y) for call in FUNCTIONS.values()]
        if kind != "number":
            results += [call(y, x) for call in FUNCTIONS.values()]
            results += [torch.addcmul(x, y, x), torch.addcmul(x, x, y)]
        return results

    torch._dynamo.reset()
    actual, expected = compiled(function)(x, y), function(x, y)
    assert len(actual) == len(expected)
    for place, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True, msg=f"{place}")
        assert torch.equal(ours.signbit(), theirs.signbit()) or theirs.isnan().any(), place


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_roots_and_neighbours(dtype: torch.dtype) -> None:
    """Of -0 and infinities eager takes powers of `f16` as C does, and roots of other types."""
    numbers = [0.0, -0.0, 1.0, -1.0, 4.0, float("inf"), -float("inf"), float("nan")]
    x = torch.tensor(numbers * 8).to(dtype)
    y = torch.tensor([number for number in numbers for _ in range(8)]).to(dtype)

    def function(x: Tensor, y: Tensor) -> list[Tensor]:
        return [x**0.5, x**-0.5, torch.nextafter(x, y)]

    torch._dynamo.reset()
    for ours, theirs in zip(compiled(function)(x, y), function(x, y), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
        numeric = ~theirs.isnan()
        assert torch.equal(ours.signbit()[numeric], theirs.signbit()[numeric])
