"""Trace a function, import it, and run it next to eager, with static or symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from lynx.backends.reference import evaluate
from lynx.importer.graph import import_graph
from lynx.ir.core import Graph
from lynx.ir.ops.aten import Aten
from tests.importer.one_operator import assert_same_bits

aten = torch.ops.aten


def traced(function: Callable[..., Any], *inputs: torch.Tensor, dynamic: bool = False) -> Graph:
    """Return the Lynx graph of a function of tensors."""

    def listed(*tensors: torch.Tensor) -> tuple[Any, ...]:
        return results(function(*tensors))

    mode = "symbolic" if dynamic else "fake"
    return import_graph(make_fx(listed, tracing_mode=mode)(*inputs), "inference")


def results(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def declined(graph: Graph) -> list[str]:
    """Return the reasons why operators run through torch."""
    return [f"{op.target}: {op.reason}" for op in graph.ops if isinstance(op, Aten)]


def assert_equal(actual: Any, expected: Any) -> None:
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        if theirs is None:
            assert ours is None
        else:
            assert_same_bits(ours, theirs)


def check(
    function: Callable[..., Any],
    *inputs: torch.Tensor,
    dynamic: bool = False,
    others: tuple[tuple[torch.Tensor, ...], ...] = (),
) -> Graph:
    """Check that a function imports without `aten` ops, and gives eager's bits.

    `others` are inputs, of other sizes or layouts, for which the graph must be right as well.
    """
    graph = traced(function, *inputs, dynamic=dynamic)
    assert not declined(graph), declined(graph)
    for given in (inputs, *others):
        actual, _ = evaluate(graph, given)
        assert_equal(actual, results(function(*given)))
    return graph


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Return numbers of both signs with zeros of both signs among them, and truth values."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) < 0.4
    if not dtype.is_floating_point:
        low = 0 if dtype is torch.uint8 else -4
        return torch.randint(low, 5, shape, generator=generator).to(dtype)
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    zeros = torch.rand(shape, generator=generator)
    values = torch.where(zeros < 0.1, 0.0, torch.where(zeros < 0.2, -0.0, values))
    return values.to(dtype)
