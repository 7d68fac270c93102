"""The operator of attention in compiled models: imported, chosen, run, cached, differentiated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import lynx
from lynx.ir.dims import symbol
from lynx.ir.ops.attention import Attention, AttentionBackward
from lynx.ir.types import DType
from lynx.operators import attention
from lynx.records import RECORDS
from tests.frontend.random_scores import RandomScore, Sizes
from tests.frontend.test_attention_operator import CAP, eager, text_of
from tests.importer.one_operator import imported

WHOLE = (
    "canonicalize, cse, dce, choose-attention{way=whole}, decompose, canonicalize, cse, dce, "
    "fuse, lower, reinplace, plan-memory"
)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    RECORDS.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def imported_kinds() -> list[type[Any]]:
    graphs = [record.imported for record in RECORDS.graphs]
    kinds = (Attention, AttentionBackward)
    return [type(op) for graph in graphs if graph for op in graph.ops if isinstance(op, kinds)]


@pytest.mark.parametrize("pipeline", ["default", WHOLE], ids=["default", "whole"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_random_scores(seed: int, dynamic: bool, pipeline: str) -> None:
    numbers = (2, 4, 6, 9)
    dims = (2, 4, symbol("s0"), symbol("s1")) if dynamic else numbers
    sizes = Sizes(numbers, dims)
    made = RandomScore(seed, sizes, DType.F64)
    shapes = ((2, 4, 6, 3), (2, 2, 9, 3), (2, 2, 9, 5))
    q, k, v = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes)
    form = text_of(made.region, sizes)
    floating = [o.requires_grad_() for o in made.operands if o.is_floating_point()]
    order = [{6: 0, 9: 1}[size] for size in form["sizes"]]

    def model(q: Any, k: Any, v: Any, *operands: Any) -> Any:
        both = (q.shape[2], k.shape[2])
        out, lse = attention(
            q, k, v, operands, score=form["score"], sizes=[both[n] for n in order], zero_empty=True
        )
        return out.transpose(1, 2).reshape(2, q.shape[2], -1).sin(), lse.nan_to_num(0, 0, 0)

    if dynamic:
        for tensor in (q, k, v, *made.operands):
            for dim, size in enumerate(tensor.shape):
                if size in numbers[2:]:
                    torch._dynamo.mark_dynamic(tensor, dim)
    options = {"strict": True, "cache": False, "pipeline": pipeline}
    compiled = torch.compile(model, backend="lynx", options=options)
    given = (q, k, v, *made.operands)
    found, expected = compiled(*given), model(*given)
    torch.testing.assert_close(found, expected)
    sources = [q, k, v, *floating]
    grads = [
        torch.autograd.grad(r[0].sum(), sources, allow_unused=True, materialize_grads=True)
        for r in (found, expected)
    ]
    torch.testing.assert_close(*grads, check_stride=False)
    assert imported_kinds() == [Attention, AttentionBackward]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sink_dropout_and_low_precision(dtype: torch.dtype) -> None:
    shapes = ((2, 4, 6, 8), (2, 2, 9, 8), (2, 2, 9, 8))
    q, k, v = (torch.randn(s).to(dtype).requires_grad_() for s in shapes)
    sink = torch.randn(4, 1).to(dtype).requires_grad_()
    keep = torch.rand(2, 4, 6, 9) < 0.8

    def model(q: Any, k: Any, v: Any, sink: Any) -> Any:
        return attention(q, k, v, (), sink, keep, keep_scale=1.25)

    compiled = torch.compile(model, backend="lynx", options={"strict": True, "cache": False})
    found = compiled(q, k, v, sink)
    precise = [x.detach().double().requires_grad_() for x in (q, k, v, sink)]
    expected = eager(*precise[:3], sink=precise[3], keep=keep, keep_scale=1.25)
    grads = torch.autograd.grad(found[0].sum() + found[1].sum(), (q, k, v, sink))
    exact = torch.autograd.grad(expected[0].sum() + expected[1].sum(), precise)
    rounding = max(torch.finfo(dtype).eps, 1e-5)
    for actual, wanted in zip((*found, *grads), (*expected, *exact), strict=True):
        scale = float(wanted.detach().abs().max())
        torch.testing.assert_close(actual.double(), wanted, rtol=rounding, atol=rounding * scale)
    assert imported_kinds() == [Attention, AttentionBackward]


def test_programs_with_regions_are_cached(tmp_path: Path) -> None:
    options = {"strict": True, "cache": True, "cache_dir": str(tmp_path), "pipeline": WHOLE}
    q = torch.randn(1, 4, 6, 8, dtype=torch.float64)
    bias = torch.randn(4, 1, 6, dtype=torch.float64)

    def model(q: Any, bias: Any) -> Any:
        return attention(q, q, q, (bias,), score=CAP, sizes=(1, 6, 6))[0]

    def other(q: Any, bias: Any) -> Any:
        score = CAP.replace("tanh", "sin")
        return attention(q, q, q, (bias,), score=score, sizes=(1, 6, 6))[0]

    loaded = []
    for function in (model, model, other):
        torch._dynamo.reset()
        RECORDS.reset()
        compiled = torch.compile(function, backend="lynx", options=options)
        torch.testing.assert_close(compiled(q, bias), function(q, bias), check_stride=False)
        loaded.append(["load" in record.seconds for record in RECORDS.graphs])
    assert loaded == [[False], [True], [False]]


def test_explanation_tells_what_was_chosen() -> None:
    q = torch.randn(1, 2, 6, 8)
    text = str(lynx.explain(lambda q: attention(q, q, q)[0], q))
    assert "computed by" in text


def test_import_of_each_operator() -> None:
    q, k = torch.randn(1, 4, 6, 8), torch.randn(1, 2, 9, 8)
    sink = torch.randn(4, 1)
    form = ("", [], 1.0, False)
    forward = torch.ops.lynx.attention.default
    graph, _ = imported(forward, (q, k, k, [], sink, None, *form), {})
    assert [op.name for op in graph.ops] == ["attention"]
    out, lse = forward(q, k, k, [], sink, None, *form)
    given = (out, None, q, k, k, [], sink, None, out, lse, *form)
    backward = torch.ops.lynx.attention_backward.default
    graph, _ = imported(backward, (*given, [True, False, True, True]), {})
    (op,) = graph.ops
    assert isinstance(op, AttentionBackward)
    assert [value.shape for value in op.results] == [(1, 4, 6, 8), (1, 2, 9, 8), (4, 1)]


def test_scores_of_other_types_run_through_torch() -> None:
    q, bias = torch.randn(1, 4, 6, 8, dtype=torch.float64), torch.randn(4, 1, 5)
    form = (CAP, [1, 6, 6], 1.0, False)
    bad = bias.double()
    with pytest.raises(Exception, match="size"):
        torch.ops.lynx.attention(q, q, q, [bad], None, None, *form)
    graph, _ = imported(torch.ops.lynx.attention.default, (q, q, q, [bad], None, None, *form), {})
    (op,) = graph.ops
    assert op.name == "aten"
    assert "passes (f64[1, 4, 6, 6], f64[4, 1, 5])" in getattr(op, "reason")  # noqa: B009
