"""Programs give the same numbers in any order that barriers allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the usual name

from lynx.backends.c import has_compiler, segment
from tests.tools.backwards import backwards

pytestmark = pytest.mark.skipif(not has_compiler(), reason="there is no C compiler")


@pytest.fixture(autouse=True)
def _backwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(segment, "RUNTIME", backwards())
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def scaled(x: Tensor) -> Tensor:
    """Gradients are written one after the other into memory that earlier ones have left."""
    return F.interpolate(x[None], scale_factor=1.7, mode="bilinear") * 2


def normalized(x: Tensor) -> Tensor:
    for _ in range(6):
        x = F.layer_norm(x.softmax(-1).transpose(-1, -2), (x.shape[-2],)).tanh() @ x
    return x


def chosen(x: Tensor) -> Tensor:
    rows = x.flatten(0, 1)
    for shift in range(4):
        index = (torch.arange(rows.shape[0]) * (shift + 1)) % rows.shape[0]
        rows = rows.index_add(0, index, rows.roll(shift, 0).sigmoid())
        rows = torch.cat([rows.cumsum(0).tanh(), rows.flip(0)])[shift : shift + rows.shape[0]] / 2
    return rows


def reduced(x: Tensor) -> Tensor:
    for axis in (0, 1, 2, 0, 1, 2):
        x = (x - x.mean(axis, keepdim=True)) / (x.std(axis, keepdim=True) + 0.1)
    return x


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [scaled, normalized, chosen, reduced])
def test_backwards(function: Callable[[Tensor], Tensor], dynamic: bool) -> None:
    compiled = torch.compile(
        function, backend="lynx", dynamic=dynamic, options={"strict": True, "products": "own"}
    )
    for size in (4, 7, 9):
        x = torch.randn(3, size, size + 1, requires_grad=True)
        actual, expected = compiled(x), function(x)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
        weights = torch.randn_like(expected)
        given, wanted = (torch.autograd.grad((y * weights).sum(), x)[0] for y in (actual, expected))
        # Gradients of thousands cancel: what counts is the size of the largest.
        tolerance = 1e-4 * max(10.0, float(wanted.abs().max()))
        torch.testing.assert_close(given, wanted, rtol=1e-3, atol=tolerance)
