"""Repeated layers are thought through once: what is worked out does not grow with their number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lynx.ir.sharding import Mesh
from lynx.passes.distribution import propagate, strategy
from tests.distribution.harness import capture, lay_out
from tests.distribution.models import transformer

MESH = Mesh("mesh", (("dp", 2), ("tp", 2)))
PLAN = {
    "inputs.*": "dp, ...",
    "layers.*.[qkv].weight": "(tp, dp), _",
    "layers.*.o.weight": "dp, tp",
    "layers.*.up.weight": "(tp, dp), _",
    "layers.*.down.weight": "dp, tp",
}


def counted(function: Callable[..., Any], calls: list[str], name: str) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Any:
        calls.append(name)
        return function(*arguments, **keywords)

    return call


def worked_out(layers: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Return how many steps of propagation, and how many strategies, are not looked up."""
    model, inputs = transformer(layers=layers)
    one = capture(model, inputs)
    calls: list[str] = []
    with monkeypatch.context() as patch:
        for module in (propagate, strategy):
            name = module.__name__
            patch.setattr(module, "proposals", counted(module.proposals, calls, name))
        lay_out(one, MESH, PLAN)
    return calls.count(propagate.__name__), calls.count(strategy.__name__)


def test_more_layers_are_no_more_to_think_of(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = worked_out(3, monkeypatch), worked_out(5, monkeypatch)
    assert min(few) > 0
    assert many == few
