"""Comparison of decomposed ops with eager, by the errors that both have against `f64`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from lynx.backends.reference import evaluate
from lynx.ir.core import Graph, Op, Value
from lynx.ir.ops.normalization import (
    BatchNorm,
    BatchNormBackward,
    GroupNorm,
    GroupNormBackward,
    LayerNorm,
    LayerNormBackward,
    RmsNorm,
    RmsNormBackward,
)
from lynx.ir.ops.reduction import Moment
from lynx.ir.types import DType, OpaqueType, TensorType
from lynx.passes import parse_pipeline

_ONE_PASS = (
    LayerNorm,
    LayerNormBackward,
    GroupNorm,
    GroupNormBackward,
    RmsNorm,
    RmsNormBackward,
    BatchNorm,
    BatchNormBackward,
    Moment,
)
"""Where eager's one pass over the data turns infinities into NaN, or cancels in another order."""

_EPSILON = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7, torch.float32: 2.0**-23}


def graph_of(op: Op) -> Graph:
    """Return a graph of one op, without the results that do not exist."""
    inputs = tuple(dict.fromkeys(op.operands))
    results = (r if not isinstance(r.type, OpaqueType) else None for r in op.results)
    return Graph("g", inputs, (op,), tuple(results))


def decomposed(graph: Graph, text: str = "decompose{all=true}") -> Graph:
    """Return the graph after a pipeline."""
    result = parse_pipeline(text).run(graph)
    assert isinstance(result, Graph)
    return result


def in_dtype(op: Op, dtype: DType) -> tuple[Op, dict[Value, Value]]:
    """Return the op over operands whose floating types are replaced, and the new operands."""
    mapping = {
        v: Value(v.type.with_dtype(dtype))
        for v in op.operands
        if isinstance(v.type, TensorType) and v.type.dtype.is_floating
    }
    given = {}
    if getattr(op, "dtype", None) is not None:
        given["dtype"] = dtype
    if isinstance(op, RmsNorm) and op.eps is None:
        given["eps"] = _EPSILON.get(torch.float32, 0.0)
    changed = {name: _substituted(getattr(op, name), mapping) for name in op.operand_fields} | given
    return dataclasses.replace(op, **changed), mapping


def _substituted(item: Any, mapping: Mapping[Value, Value]) -> Any:
    return mapping.get(item, item) if isinstance(item, Value) else item


def run_graph(
    graph: Graph, inputs: Mapping[Value, Any], symbols: Mapping[str, int] | None = None
) -> list[Any]:
    """Return the outputs of a graph, with the random generator in a fixed state."""
    torch.manual_seed(17)
    outputs, _ = evaluate(graph, [inputs[v] for v in graph.inputs], dict(symbols or {}))
    return list(outputs)


def in_double(op: Op, inputs: Mapping[Value, Any]) -> list[Any] | None:
    """Return the results in `f64`, None if they cannot be had."""
    if op.is_random:
        return None
    wide, mapping = in_dtype(op, DType.F64)
    values = {mapping.get(v, v): x.double() if v in mapping else x for v, x in inputs.items()}
    try:
        return run_graph(graph_of(wide), values)
    except RuntimeError:
        return None


def assert_as_accurate(op: Op, inputs: Mapping[Value, Any], after: Graph) -> None:
    """Fail unless a graph that stands for an op is at most twice as far from `f64` as eager."""
    expected = run_graph(graph_of(op), inputs)
    got = run_graph(after, inputs)
    exact = in_double(op, inputs) or [None] * len(expected)
    for mine, eager, reference in zip(got, expected, exact, strict=True):
        assert (mine is None) == (eager is None)
        if eager is not None:
            cancels = isinstance(op, _ONE_PASS)
            floor = _greatest(inputs.values()) if cancels else 0.125
            assert_close(mine, eager, reference, same_special=not cancels, floor=floor)


def _greatest(tensors: Iterable[torch.Tensor]) -> float:
    """Return the greatest absolute value of finite elements, at least a little."""
    finite = [t[t.isfinite()].double().abs() for t in tensors]
    return max((0.125, *(float(t.max()) for t in finite if t.numel())))


def assert_close(
    mine: torch.Tensor,
    eager: torch.Tensor,
    exact: torch.Tensor | None,
    *,
    same_special: bool = True,
    floor: float = 0.125,
) -> None:
    """Fail unless a result is at most twice as far from an exact one as eager's, and a little.

    What is not finite must be the same, or just not finite either, unless it is exact: gelu of
    infinity is NaN in torch on some processors. `floor` is a size of numbers that were added up,
    against which rounding errors count.
    """
    assert (mine.dtype, mine.shape) == (eager.dtype, eager.shape)
    if not eager.is_floating_point():
        assert torch.equal(mine, eager), f"expected {eager}, got {mine}"
        return
    a, b = mine.double(), eager.double()
    special = ~(a.isfinite() & b.isfinite())
    if same_special:
        wrong = special & (a != b) & ~(a.isnan() & b.isnan())
    else:
        wrong = a.isfinite() != b.isfinite()
    if exact is not None:
        wrong &= a != exact.double()
    assert not wrong.any(), f"expected {b[wrong]}, got {a[wrong]} at {wrong.nonzero().tolist()}"
    epsilon = _EPSILON.get(eager.dtype, 2.0**-52)
    finite = b.isfinite()
    if exact is None or not bool(exact[finite].isfinite().all()):
        exact = b
    a, b, exact = a[finite], b[finite], exact.double()[finite]
    if not a.numel():
        return
    scale = max(exact.abs().max().item(), floor)
    # In `f64` eager is the reference itself, so its own error is not known.
    slack = 256 if eager.dtype is torch.float64 else 8
    bound = 2 * (b - exact).abs().max().item() + slack * epsilon * scale
    error = (a - exact).abs().max().item()
    assert error <= bound, f"error {error} exceeds {bound}, of numbers up to {scale}"
