"""Where torch's kernels are compiled to contract products and sums, Lynx gives the same bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.tools.compare import compiled

aten = torch.ops.aten
Function = Callable[[Tensor, Tensor, Tensor], Tensor]

# Each of them is nearly zero in the end, so that the last places of its products show.
FUNCTIONS: dict[str, Function] = {
    "addcmul": torch.addcmul,
    "addcmul with a factor": lambda x, a, b: torch.addcmul(x * 0.3, a, b, value=0.3),
    "add": lambda x, a, b: torch.add(x, a * b / 0.3 + a * 1e-3, alpha=0.3),
    "subtract": lambda x, a, b: torch.sub(x, x / 0.3 + a * 1e-3, alpha=0.3),
    "subtract from": lambda x, a, b: torch.rsub(x / 0.3 + a * 1e-3, x, alpha=0.3),
    "lerp from the start": lambda x, a, b: torch.lerp(x, -x * (7 / 3) + a * 1e-3, 0.3),
    "lerp from the end": lambda x, a, b: torch.lerp(x, -x * (3 / 7) + a * 1e-3, 0.7),
    "lerp by numbers": lambda x, a, b: torch.lerp(x, -x * (3 / 7) + a * 1e-3, b),
    "addcdiv": lambda x, a, b: torch.addcdiv(x, a * b, 1 + a.abs() * 1e-3),
    "tanh_backward": lambda x, a, b: aten.tanh_backward(x, 1 - a.abs() * 1e-3),
}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "vectors and a rest": lambda x: x[:1027],
    "every other": lambda x: x[:2054:2],
    "three numbers": lambda x: x[:3],
    "columns": lambda x: x[:2000].view(50, 40).t(),
}


def given(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return `x, a, b` with `x + a * b` nearly zero."""
    generator = torch.Generator().manual_seed(0)
    a, b, noise = torch.randn(3, 2054, generator=generator, dtype=torch.float64)
    a, b = a.to(dtype), b.to(dtype)
    return (-(a * b).double() * (1 + noise * 1e-3)).to(dtype), a, b


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_bits(layout: str, dtype: torch.dtype) -> None:
    operands = [LAYOUTS[layout](x) for x in given(dtype)]
    # Of low precision eager rounds sums with a factor in ways that depend on where they lie.
    left_out = ("add", "subtract", "subtract from") if dtype.itemsize == 2 else ()
    chosen = {name: f for name, f in FUNCTIONS.items() if name not in left_out}

    def all_of_them(x: Tensor, a: Tensor, b: Tensor) -> list[Tensor]:
        return [function(x, a, b) for function in chosen.values()]

    torch._dynamo.reset()
    ours = compiled(all_of_them)(*operands)
    for name, got, want in zip(chosen, ours, all_of_them(*operands), strict=True):
        assert torch.equal(got, want), name


def test_what_eager_rounds_twice_is_rounded_twice() -> None:
    x, a, b = given(torch.float32)

    def function(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return x + a * b, a * b - b * a, x - a * a, a * 0.3 + x * 0.7

    torch._dynamo.reset()
    for got, want in zip(compiled(function)(x, a, b), function(x, a, b), strict=True):
        assert torch.equal(got, want)
