"""Losses are imported to structured ops and give eager's bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.importer.one_operator import assert_imports_exactly, imported, operator, reasons

FLOATS = [torch.float32, torch.float64, torch.bfloat16]
SHAPES = [(4, 5), (), (2, 3, 4), (0, 5)]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def gradient(x: torch.Tensor, reduction: int) -> torch.Tensor:
    return torch.randn(x.shape if reduction == 0 else ()).to(x.dtype)


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("mse_loss", ()),
        ("soft_margin_loss", ()),
        ("smooth_l1_loss", (0.7,)),
        ("smooth_l1_loss", (0.0,)),
        ("huber_loss", (0.7,)),
    ],
)
def test_losses_of_pairs(
    name: str,
    bounds: tuple[float, ...],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    reduction: int,
) -> None:
    x, target = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    assert assert_imports_exactly(f"aten.{name}.default", x, target, reduction, *bounds)
    if x.numel():
        arguments = (gradient(x, reduction), x, target, reduction, *bounds)
        assert assert_imports_exactly(f"aten.{name}_backward.default", *arguments)


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("weight_shape", [None, (4, 5), (5,), (4, 1)])
def test_binary_cross_entropy(
    weight_shape: tuple[int, ...] | None, dtype: torch.dtype, reduction: int
) -> None:
    x, target = torch.rand(4, 5).to(dtype), torch.rand(4, 5).to(dtype)
    x[0, 0], x[1, 1] = 0, 1
    weight = None if weight_shape is None else torch.rand(weight_shape).to(dtype)
    name = "aten.binary_cross_entropy"
    assert assert_imports_exactly(f"{name}.default", x, target, weight, reduction)
    grad = gradient(x, reduction)
    assert assert_imports_exactly(f"{name}_backward.default", grad, x, target, weight, reduction)
    logits = torch.randn(4, 5).to(dtype) * 50
    for positive in (None, torch.rand(5).to(dtype)):
        arguments = (logits, target, weight, positive, reduction)
        assert assert_imports_exactly(f"{name}_with_logits.default", *arguments)


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("with_weight", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(6, 5), (5,), (2, 5, 3, 4), (0, 5)])
def test_negative_log_likelihood(
    shape: tuple[int, ...], dtype: torch.dtype, with_weight: bool, reduction: int
) -> None:
    x = torch.randn(shape).to(dtype)
    target = torch.randint(0, 5, (*shape[:-1][:1], *shape[2:]))
    weight = torch.rand(5).to(dtype) if with_weight else None
    places = "2d" if len(shape) == 4 else ""
    for ignore in (-100, 2):
        arguments = (x, target, weight, reduction, ignore)
        assert assert_imports_exactly(f"aten.nll_loss{places}_forward.default", *arguments)
        loss, total = operator(f"aten.nll_loss{places}_forward.default")(*arguments)
        grad = torch.randn_like(loss)
        name = f"aten.nll_loss{places}_backward.default"
        assert assert_imports_exactly(name, grad, *arguments, total)


def test_all_targets_ignored_gives_eagers_nan() -> None:
    x, target = torch.randn(3, 5), torch.full((3,), -100)
    assert assert_imports_exactly("aten.nll_loss_forward.default", x, target, None, 1, -100)


@pytest.mark.parametrize("shapes", [((4, 5), (5,)), ((4, 5), (4, 1))])
def test_pairs_of_different_shapes_decline(shapes: tuple[Any, ...]) -> None:
    x, target = (torch.randn(shape) for shape in shapes)
    graph, _ = imported(operator("aten.mse_loss.default"), (x, target), {})
    assert "target" in reasons(graph)[0]
