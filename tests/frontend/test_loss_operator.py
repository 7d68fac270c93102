"""The operator of projected losses under autograd and the transforms of `torch.func`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name that models use

from lynx.operators import linear_cross_entropy

CLASSES, FEATURES = 7, 4
CAP = ("divide 2.0", "tanh", "multiply 2.0")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def operands() -> tuple[torch.Tensor, ...]:
    floats = ((3, 4, FEATURES), (CLASSES, FEATURES), (CLASSES,))
    return (
        *(torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in floats),
        torch.randint(0, CLASSES, (3, 4)),
    )


@pytest.mark.filterwarnings("ignore:Backwards compat")
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("wanted", [(True, True, True), (False, True, False), (False,) * 3])
def test_gradients_of_first_and_second_order(reduction: str, wanted: tuple[bool, ...]) -> None:
    if reduction == "none" and any(wanted):
        pytest.skip("there is nothing to compute at once")
    *floats, target = operands()

    def loss(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return linear_cross_entropy(
            x, w, b, target, reduction=reduction, smoothing=0.1, steps=CAP, wanted=wanted
        )

    assert torch.autograd.gradcheck(loss, floats)
    assert torch.autograd.gradgradcheck(loss, floats)


def test_gradient_penalty_is_not_lost() -> None:
    def penalty(loss: Callable[..., torch.Tensor]) -> torch.Tensor:
        x, w, b, t = operands()
        torch.manual_seed(0)
        (gradient,) = torch.autograd.grad(loss(x, w, b, t), x, create_graph=True)
        (second,) = torch.autograd.grad(gradient.square().sum(), w)
        return second

    torch.manual_seed(0)
    ours = penalty(linear_cross_entropy)
    torch.manual_seed(0)
    torch.testing.assert_close(ours, penalty(by_logits))


def by_logits(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(F.linear(x, w, b).view(-1, CLASSES), t.view(-1))


TRANSFORMS: dict[str, Callable[[Callable[..., torch.Tensor]], Callable[..., Any]]] = {
    "grad": lambda f: torch.func.grad(f, (0, 1, 2)),
    "vmap": lambda f: torch.func.vmap(f, (0, None, None, 0)),
    "vmap of grad": lambda f: torch.func.vmap(torch.func.grad(f, (0, 1, 2)), (0, None, None, 0)),
    "grad of vmap": lambda f: torch.func.grad(
        lambda *a: torch.func.vmap(f, (0, None, None, 0))(*a).sum(), (0, 1, 2)
    ),
    "vmap over weights": lambda f: (
        lambda x, w, b, t: torch.func.vmap(f, (None, 0, None, None))(
            x, torch.stack([w, 2 * w]), b, t
        )
    ),
    "jacrev": lambda f: torch.func.jacrev(f, 1),
    "grad of grad": lambda f: torch.func.grad(
        lambda *a: torch.func.grad(f, 1)(*a).square().sum(), 1
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str) -> None:
    plain = [tensor.detach() for tensor in operands()]
    actual = TRANSFORMS[name](linear_cross_entropy)(*plain)
    torch.testing.assert_close(actual, TRANSFORMS[name](by_logits)(*plain))


def test_two_calls_of_backward_give_the_same() -> None:
    *floats, target = operands()
    loss = linear_cross_entropy(*floats, target)
    first = torch.autograd.grad(loss, floats, retain_graph=True)
    for gradient in first:
        gradient.mul_(3)
    second = torch.autograd.grad(loss, floats)
    for ours, other in zip(first, second, strict=True):
        torch.testing.assert_close(ours, 3 * other)


def test_scaled_loss_in_half_precision_does_not_underflow() -> None:
    x = torch.randn(64, FEATURES, dtype=torch.float16, requires_grad=True)
    w = (torch.randn(CLASSES, FEATURES) * 1e-3).half().requires_grad_()
    t = torch.randint(0, CLASSES, (64,))
    loss = linear_cross_entropy(x, w, None, t, steps=("convert f32",), wanted=(True, True, False))
    ours = torch.autograd.grad(loss * 65536, (x, w))
    precise = [tensor.detach().double().requires_grad_() for tensor in (x, w)]
    exact = torch.autograd.grad(F.cross_entropy(F.linear(*precise), t) * 65536, precise)
    for gradient, truth in zip(ours, exact, strict=True):
        torch.testing.assert_close(gradient.double(), truth, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": torch.randn(CLASSES, FEATURES).half()}, "of one type"),
        ({"target": torch.rand(3, 4)}, "probabilities"),
        ({"target": torch.zeros(12, dtype=torch.int64)}, "a target for each token"),
        ({"token_weight": torch.rand(3, 4)}, "weighs tokens in sums only"),
        ({"reduction": "none"}, "each token's loss"),
        ({"weight": torch.randn(2, CLASSES, FEATURES).double()}, "a matrix"),
    ],
)
def test_wrong_use(change: dict[str, Any], message: str) -> None:
    x, weight, bias, target = operands()
    given = {"x": x, "weight": weight, "bias": bias, "target": target, **change}
    with pytest.raises(ValueError, match=message):
        linear_cross_entropy(**given)


def test_no_gradients_of_weights_of_classes() -> None:
    *floats, target = operands()
    weight = torch.rand(CLASSES, dtype=torch.float64, requires_grad=True)
    with pytest.raises(NotImplementedError, match="have no gradients"):
        linear_cross_entropy(*floats, target, weight).backward()


@pytest.mark.parametrize("needed", [(0,), (1,), (2,), (0, 2)], ids=str)
def test_gradients_of_some_operands(needed: tuple[int, ...]) -> None:
    *floats, target = operands()
    floats = [tensor.detach().requires_grad_(n in needed) for n, tensor in enumerate(floats)]
    sources = [floats[n] for n in needed]
    ours = torch.autograd.grad(linear_cross_entropy(*floats, target), sources)
    torch.testing.assert_close(ours, torch.autograd.grad(by_logits(*floats, target), sources))
