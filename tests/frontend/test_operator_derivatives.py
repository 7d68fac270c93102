"""Derivatives of any order of our own operators, in and out of transforms of `torch.func`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name that models use
from torch import Tensor

from lynx.operators import attention, linear_cross_entropy

F64 = torch.float64
Function = Callable[..., Tensor]
TARGET = torch.tensor([1, 0, -100, 3])
CLASSES = torch.tensor([1.0, 0.5, 2.0, 1.5, 1.0], dtype=F64)


def given() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((4, 3), (5, 3), (5,))
    return tuple(torch.randn(s, generator=generator, dtype=F64) for s in shapes)  # type: ignore[return-value]


def ours(form: str) -> Function:
    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if form == "weights":
            return linear_cross_entropy(x, weight, None, TARGET, CLASSES, smoothing=0.1) * bias[0]
        if form == "none":
            return linear_cross_entropy(
                x, weight, bias, TARGET, reduction="none", wanted=(False,) * 3
            )
        return linear_cross_entropy(x, weight, bias, TARGET, reduction=form)

    return function


def eager(form: str) -> Function:
    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if form == "weights":
            logits = F.linear(x, weight)
            return F.cross_entropy(logits, TARGET, CLASSES, label_smoothing=0.1) * bias[0]
        return F.cross_entropy(F.linear(x, weight, bias), TARGET, reduction=form)

    return function


FORMS = ("mean", "sum", "none", "weights")
HEADS: dict[str, Callable[[Function], Function]] = {
    "loss": lambda f: lambda *a: f(*a).sum(),
    "square": lambda f: lambda *a: (f(*a) ** 2).sum(),
    "times a function of x": lambda f: lambda x, *a: (f(x, *a) * x.sin().sum()).sum(),
    "tied": lambda f: lambda x, w, b: (f(x @ w.t() @ w, w, b) ** 2).sum(),
}


def second(function: Function, sources: tuple[int, ...]) -> list[Tensor]:
    """Return what training on the size of a gradient computes."""
    operands = [x.requires_grad_(n in sources) for n, x in enumerate(given())]
    chosen = [operands[n] for n in sources]
    first = torch.autograd.grad(function(*operands), chosen, create_graph=True)
    total = sum((g.cos() * (1 + n)).sum() for n, g in enumerate(first))
    return [*first, *torch.autograd.grad(total, chosen)]


@pytest.mark.parametrize("sources", [(0, 1, 2), (0, 2), (1, 2)])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("form", FORMS)
def test_second_gradients(form: str, head: str, sources: tuple[int, ...]) -> None:
    torch.testing.assert_close(
        second(HEADS[head](ours(form)), sources), second(HEADS[head](eager(form)), sources)
    )


def test_gradients_of_third_order() -> None:
    def third(function: Function) -> list[Tensor]:
        x, weight, bias = (one.requires_grad_() for one in given())
        (first,) = torch.autograd.grad(function(x, weight, bias), x, create_graph=True)
        (other,) = torch.autograd.grad(first.square().sum(), weight, create_graph=True)
        return list(torch.autograd.grad(other.square().sum(), (x, weight, bias)))

    head = HEADS["square"]
    torch.testing.assert_close(third(head(ours("mean"))), third(head(eager("mean"))))


def jvp(function: Function, *operands: Tensor) -> Any:
    return torch.func.jvp(function, operands, tuple(x.cos() for x in operands))


TRANSFORMS: dict[str, Callable[[Function], Callable[..., Any]]] = {
    "grad": lambda f: torch.func.grad(f, (0, 1, 2)),
    "grad of grad": lambda f: torch.func.grad(
        lambda *a: torch.func.grad(f, 1)(*a).square().sum(), (0, 1)
    ),
    "jvp": lambda f: lambda *a: jvp(f, *a),
    "jvp of grad": lambda f: lambda *a: jvp(torch.func.grad(f, 1), *a),
    "grad of jvp": lambda f: torch.func.grad(lambda *a: jvp(f, *a)[1].sum(), (0, 1)),
    "hessian": lambda f: torch.func.hessian(f, (0, 1)),
    "jacrev": lambda f: torch.func.jacrev(f, (0, 1)),
    "jacrev of jacrev": lambda f: torch.func.jacrev(torch.func.jacrev(f, 0), 1),
    "jacfwd": lambda f: torch.func.jacfwd(f, (0, 1)),
    "vmap of grad": lambda f: (
        lambda x, *a: torch.func.vmap(torch.func.grad(f, (0, 1)), (0, None, None))(
            torch.stack([x, -x]), *a
        )
    ),
    "vmap over all": lambda f: (
        lambda *a: torch.func.vmap(f, (0, 1, 0))(
            *(torch.stack([x, x.sin()], d) for x, d in zip(a, (0, 1, 0), strict=True))
        )
    ),
}


@pytest.mark.parametrize("head", ["square", "times a function of x"])
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("form", FORMS)
def test_transforms(form: str, name: str, head: str) -> None:
    results = [TRANSFORMS[name](HEADS[head](f(form)))(*given()) for f in (ours, eager)]
    torch.testing.assert_close(*results)


def of_attention(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    q, k = x.reshape(1, 2, 2, 3), weight[None, None]
    return attention(q, k, k + bias[:, None])[0]


def attention_by_eager(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    q, k = x.reshape(1, 2, 2, 3), weight[None, None]
    weights = torch.softmax(q @ k.mT, -1)
    return weights @ (k + bias[:, None])


@pytest.mark.parametrize("head", ["square", "times a function of x"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_attention(name: str, head: str) -> None:
    functions = (of_attention, attention_by_eager)
    results = [TRANSFORMS[name](HEADS[head](f))(*given()) for f in functions]
    torch.testing.assert_close(*results)
