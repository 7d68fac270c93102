"""One spelling per operation before autograd, and no other change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx

from lynx.normalize import normalize


def captured(function: Callable[..., Any], *inputs: torch.Tensor) -> torch.fx.GraphModule:
    modules: list[torch.fx.GraphModule] = []

    def keep(module: torch.fx.GraphModule, _: Any) -> Any:
        modules.append(module)
        return module.forward

    torch._dynamo.reset()
    torch.compile(function, backend=keep)(*inputs)
    (module,) = modules
    return module


def targets(module: torch.fx.GraphModule) -> list[Any]:
    return [node.target for node in module.graph.nodes if node.op.startswith("call")]


SPELLINGS: list[list[Callable[..., torch.Tensor]]] = [
    [lambda x, y: x @ y, torch.matmul, lambda x, y: x.matmul(y)],
    [lambda x, y: x + y, torch.add, lambda x, y: x.add(y)],
    [lambda x, y: x.softmax(-1), lambda x, y: torch.softmax(x, -1)],
    [
        lambda x, y: x.transpose(0, 1),
        lambda x, y: x.swapaxes(0, 1),
        lambda x, y: torch.swapdims(x, 0, 1),
    ],
    [
        lambda x, y: x.masked_fill(y > 0, 1.0),
        lambda x, y: torch.masked_fill(x, torch.gt(y, 0), 1.0),
    ],
    [
        lambda x, y: torch.clip(x, 0, 1),
        lambda x, y: x.clamp(0, 1),
        lambda x, y: torch.clamp(x, 0, 1),
    ],
    [lambda x, y: -x, lambda x, y: x.neg(), lambda x, y: torch.negative(x)],
]


@pytest.mark.parametrize("spellings", SPELLINGS)
def test_spellings_become_one(spellings: list[Callable[..., torch.Tensor]]) -> None:
    inputs = torch.randn(3, 3), torch.randn(3, 3)
    found = []
    for spelling in spellings:
        module = captured(spelling, *inputs)
        before = targets(module)
        renamed = normalize(module)
        assert targets(module) == before
        given = inputs[: len(module.graph.find_nodes(op="placeholder"))]
        torch.testing.assert_close(renamed(*given), module(*given))
        found.append(targets(renamed))
    assert all(names == found[0] for names in found)


@pytest.mark.parametrize(
    "near_miss",
    [
        lambda x, y: x.sum(0, True),
        lambda x, y: x.view(9),
        lambda x, y: x.add_(y),
        lambda x, y: torch.nn.functional.relu(x, True),
        lambda x, y: x + x.shape[0] * 2,
    ],
)
def test_what_takes_other_arguments_stays(near_miss: Callable[..., torch.Tensor]) -> None:
    inputs = torch.randn(3, 3), torch.randn(3, 3)
    module = captured(near_miss, *(i.clone() for i in inputs))
    given = inputs[: len(module.graph.find_nodes(op="placeholder"))]
    ours = normalize(module)(*(i.clone() for i in given))
    theirs = module(*(i.clone() for i in given))
    torch.testing.assert_close(ours, theirs)
