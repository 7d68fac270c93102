"""Runs on each process: plans that leave dimensions open, or do not say how tensors are stored."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.distributed.tensor import DTensor

import lynx
from tests.distribution import doors


class Sums(torch.nn.Module):
    """What one input says of a sum is said of another input, if that is open."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + y, y * 3


def open_inputs() -> list[list[Any]]:
    """Return how results lie where an input is closed, where it is open, and where one axis is."""
    found = []
    for text in ("_, _", "_?, _", "?, ?"):
        on = doors.mesh(("dp", 2))
        plan = {"inputs.x": "dp, _", "inputs.y": text}
        model = lynx.parallelize(Sums(), on, plan, options=doors.STRICT)
        x, y = torch.randn(5, 3), torch.randn(5, 3, requires_grad=True)
        results = model(x, y)
        for a, b in zip(results, Sums()(x, y), strict=True):
            doors.close(a, b, text)
        (results[0].sum() + results[1].square().sum()).backward()
        doors.close(y.grad, 1 + 18 * y.detach(), f"gradient with {text}")
        found.append([one.placements for one in results])
    return found


class Tall(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x)) * 2


def open_parameters() -> list[Any]:
    """Return how parameters and a result lie where `tp?` may be cut further by another axis."""
    torch.manual_seed(0)
    reference = Tall()
    on = doors.mesh(("tp", 1), ("ep", 2))
    plan = {"layer.weight": "tp?, _", "layer.bias": "(tp, ep)"}
    model = lynx.parallelize(copy.deepcopy(reference), on, plan, options=doors.STRICT)
    x = torch.randn(3, 6)
    result, expected = model(x), reference(x)
    doors.close(result, expected, "the result")
    result.square().sum().backward()
    expected.square().sum().backward()
    for (name, a), b in zip(model.named_parameters(), reference.parameters(), strict=True):
        assert isinstance(a.grad, DTensor)
        assert a.grad.placements == a.placements
        doors.close(a.grad, b.grad, name)
    return [model.layer.weight.placements, result.placements]


def copies() -> list[Any]:
    """Return how the result of a copy of a model lies, which is a model of its own."""
    torch.manual_seed(0)
    on = doors.mesh(("tp", 1), ("ep", 2))
    plan = {"layer.weight": "tp?, _", "layer.bias": "(tp, ep)"}
    model = lynx.parallelize(Tall(), on, plan, options=doors.STRICT)
    x = torch.randn(3, 6)
    early = copy.deepcopy(model)
    result = model(x).full_tensor().detach()
    late = copy.deepcopy(model)
    for one in (early, late):
        doors.close(one(x), result, "the copy's result")
    with torch.no_grad():
        for parameter in (*early.parameters(), *late.parameters()):
            parameter.mul_(0)
    doors.close(model(x), result, "the model's result")
    doors.close(early(x), result * 0, "the changed copy's result")
    late(x).sum().backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    return list(late(x).placements)


class Fused(torch.nn.Module):
    """Queries, keys and values of some heads in one projection."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = torch.nn.Linear(4 * heads, 12 * heads)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k, v = (one.unflatten(-1, (self.heads, 4)).transpose(1, 2) for one in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def blocks(heads: int, *texts: str) -> list[list[str]]:
    """Train a projection of three blocks by several plans; return what each moves in forward."""
    found = []
    for text in texts:
        torch.manual_seed(0)
        reference = Fused(
            heads
        ).double()  # gradients that are zero but for rounding stay so in Adam
        plan = {"qkv.weight": f"{text}, _", "qkv.bias": text}
        model = lynx.parallelize(
            copy.deepcopy(reference), doors.mesh(("tp", 2)), plan, options=doors.STRICT
        )
        x = torch.randn(2, 5, 4 * heads, dtype=torch.float64)
        found.append([str(one) for graph in lynx.explain(model, x).distribution.graphs
                      for one in graph.exchanges])  # fmt: skip
        optimizers = [torch.optim.AdamW(one.parameters(), 1e-2) for one in (model, reference)]
        for _ in range(2):
            for one in (model, reference):
                one(x).square().sum().backward()
            norms = [
                torch.nn.utils.clip_grad_norm_(one.parameters(), 1.0) for one in (model, reference)
            ]
            doors.close(*norms, f"norm with {text}")
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        for (name, a), b in zip(model.named_parameters(), reference.parameters(), strict=True):
            doors.close(a, b, f"{name} with {text}")
    return found


def priorities() -> list[Any]:
    """Return how a result lies if data and a parameter want one axis, and the parameter may win."""
    found = []
    for level in ("", "; priority 0"):
        torch.manual_seed(0)
        reference = Tall()
        plan = {"layer.weight": f"tp, _{level}", "inputs.x": "_, tp; priority 1"}
        plan |= {} if level else {"inputs.x": "_, tp"}
        model = lynx.parallelize(
            copy.deepcopy(reference), doors.mesh(("tp", 2)), plan, options=doors.STRICT
        )
        x = torch.randn(3, 6)
        result = model(x)
        doors.close(result, reference(x), f"the result{level}")
        found.append(result.placements)
    return found
