"""Norms of low precision with parameters in `f32`, as autocast makes them, train as in eager."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from lynx.decompositions import decompositions
from tests.tools.compare import compiled

aten = torch.ops.aten

NORMS: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: nn.LayerNorm(6),
    "layer without bias": lambda: nn.LayerNorm((5, 6), bias=False),
    "group": lambda: nn.GroupNorm(2, 4),
    "batch": lambda: nn.BatchNorm2d(4),
    "batch without statistics": lambda: nn.BatchNorm2d(4, track_running_stats=False),
    "batch without parameters": lambda: nn.BatchNorm2d(4, affine=False),
    "batch, evaluated": lambda: nn.BatchNorm2d(4).eval(),
    "instance": lambda: nn.InstanceNorm2d(4, affine=True),
    "root mean square": lambda: nn.RMSNorm(6),
}


def step(
    norm: nn.Module, function: Callable[..., torch.Tensor], x: torch.Tensor
) -> list[torch.Tensor]:
    """Return the result, all gradients and the buffers after a step."""
    leaf = x.clone().requires_grad_()
    y = function(leaf)
    y.backward(torch.linspace(-1, 2, y.numel()).view(y.shape).to(y.dtype))
    gradients = [p.grad for p in (leaf, *norm.parameters()) if p.grad is not None]
    return [y.detach(), *gradients, *norm.buffers()]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NORMS)
def test_gradients_read_statistics_as_they_are(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    norm = NORMS[name]()
    for parameter in norm.parameters():
        nn.init.uniform_(parameter, 0.5, 2)
    x = torch.randn(3, 4, 5, 6).to(dtype)
    results = []
    for is_compiled in (False, True):
        own = copy.deepcopy(norm)

        def function(x: torch.Tensor, own: nn.Module = own) -> torch.Tensor:
            return (own(x.tanh() * 3) * 2).sigmoid()  # type: ignore[no-any-return]

        results.append(step(own, compiled(function) if is_compiled else function, x))
    tolerance = 2.0**-6 if dtype is torch.bfloat16 else 2.0**-9
    for expected, actual in zip(*results, strict=True):
        assert actual.dtype is expected.dtype
        scale = float(expected.abs().max())
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance * scale)


def test_a_training_step_of_a_layer_under_autocast() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.GELU(), nn.Linear(7, 3))
    x, gradients = torch.randn(6, 5), []
    for is_compiled in (False, True):
        own = copy.deepcopy(model)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = (compiled(own) if is_compiled else own)(x)
        y.float().square().sum().backward()
        gradients.append([p.grad for p in own.parameters()])
    for expected, actual in zip(*gradients, strict=True):
        scale = float(expected.abs().max())
        torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2 * scale)


@pytest.mark.parametrize(
    ("x", "weight"),
    [(torch.bfloat16, torch.bfloat16), (torch.float32, torch.float32), (torch.float64, None)],
)
def test_norms_of_one_type_stay_whole(x: torch.dtype, weight: torch.dtype | None) -> None:
    given = None if weight is None else torch.ones(6, dtype=weight)
    table = decompositions()
    operands = (torch.ones(4, 6, dtype=x), [6], given, given, 1e-5)
    assert table[aten.native_layer_norm.default](*operands) is NotImplemented
    mixed = (torch.ones(4, 6, dtype=torch.bfloat16), [6], torch.ones(6), None, 1e-5)
    out, mean, rstd = table[aten.native_layer_norm.default](*mixed)
    assert (out.dtype, mean.dtype, rstd.dtype) == (torch.bfloat16, torch.float32, torch.float32)
