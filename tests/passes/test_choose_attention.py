"""Attention by way of all scores computes what it means, and is chosen where it should be."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from lynx.backends.reference import evaluate, run
from lynx.ir import parse_graph, verify
from lynx.ir.core import Graph, Op, Value
from lynx.ir.dims import symbol
from lynx.ir.errors import UsageError
from lynx.ir.ops.attention import Attending, Attention, AttentionBackward
from lynx.ir.types import DType, TensorType
from lynx.passes import PassContext, parse_pipeline
from lynx.passes.attention import ChooseAttention, choose
from lynx.passes.target import Target
from tests.frontend.random_scores import RandomScore, Sizes
from tests.samples.inputs import SAMPLES, draw

CHOSEN = [key for key, sample in SAMPLES.items() if isinstance(sample.op, Attending)]
SMALL = Target()


def expanded(op: Op, context: PassContext | None = None) -> Graph:
    inputs = tuple(dict.fromkeys(op.operands))
    graph = Graph("g", inputs, (op,), op.results)
    made = ChooseAttention(way="unfused").run(graph, context or PassContext())
    verify(made)
    return made


def close(actual: Any, expected: Any, tolerance: float) -> None:
    torch.testing.assert_close(
        actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True, check_stride=False
    )


@pytest.mark.parametrize("key", CHOSEN)
def test_samples(key: str) -> None:
    sample = SAMPLES[key]
    values = draw(key, sample)
    if isinstance(sample.op, AttentionBackward):
        values = consistent(sample.op, values)
    made = expanded(sample.op)
    is_empty = any(0 in value.shape for value in sample.op.operands)
    assert any(isinstance(op, Attending) for op in made.ops) == is_empty
    found, _ = evaluate(made, [values[value] for value in made.inputs])
    for actual, expected in zip(found, run(sample.op, values, {}, {}), strict=True):
        close(actual, expected, sample.tolerance)


def consistent(op: AttentionBackward, values: dict[Value, Any]) -> dict[Value, Any]:
    """Return operands whose results of the forward op are what it gives for them."""
    forward = Attention(
        op.q, op.k, op.v, op.inputs, op.sink, op.keep, op.score, op.keep_scale, op.zero_empty
    )
    out, lse = run(forward, values, {}, {})
    return {**values, op.output: out, op.lse: lse}


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("seed", range(24))
def test_random_scores(seed: int, symbolic: bool) -> None:
    torch.manual_seed(seed)
    numbers = (2, 4, 5, 7)
    dims = (symbol("s0"), 4, symbol("s1"), symbol("s2")) if symbolic else numbers
    made = RandomScore(seed, Sizes(numbers, dims), DType.F64)
    (b, h, r, c), (nb, nh, nr, nc) = dims, numbers
    shapes = [(b, h, r, 3), (b, 2, c, 3), (b, 2, c, 6)]
    tensors = [
        torch.randn(s, dtype=torch.float64)
        for s in ((nb, nh, nr, 3), (nb, 2, nc, 3), (nb, 2, nc, 6))
    ]
    q, k, v = (Value(TensorType(DType.F64, s), name=n) for s, n in zip(shapes, "qkv", strict=True))
    inputs = tuple(Value(p.type, name=p.name) for p in made.region.parameters[1:])
    wanted = (True, True, True, False, *(o.is_floating_point() for o in made.operands))
    zero_empty = bool(seed % 2)
    forward = Attention(q, k, v, inputs, None, None, made.region, 1.0, zero_empty)
    given = (Value(forward.out_type), Value(forward.lse_type), *forward.results)
    backward = AttentionBackward(
        q, k, v, inputs, None, None, *given, made.region, 1.0, zero_empty, wanted
    )
    outputs = (*forward.results, *backward.results)
    graph = Graph("g", (q, k, v, *inputs, *given[:2]), (forward, backward), outputs)
    graph = dataclasses.replace(graph, symbols=symbols_of(graph))
    verify(graph)
    incoming = [
        torch.randn(nb, nh, nr, 6, dtype=torch.float64),
        torch.randn(nb, nh, nr, dtype=torch.float64),
    ]
    every = [*tensors, *made.operands, *incoming]
    expected, _ = evaluate(graph, every)
    for text in (
        "choose-attention{way=unfused}",
        "choose-attention{way=whole}, decompose{all=true}",
    ):
        changed = parse_pipeline(text).run(graph, PassContext(), verify=True)
        found, _ = evaluate(changed, every)
        for actual, wanted_result in zip(found, expected, strict=True):
            close(actual, wanted_result, 1e-9)


def symbols_of(graph: Graph) -> Any:
    text = "graph @g(%a: f32[s0, s1, s2]) symbols (s0, s1, s2) { return %a }"
    return parse_graph(text).symbols


@pytest.mark.parametrize("zero_empty", [False, True])
@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("fill", ["-inf", "-3e38"])
def test_rows_that_see_nothing(fill: str, sink: bool, zero_empty: bool) -> None:
    given = "%s: f32[2, 1], " if sink else ""
    operands = f"%q, %k, %k, [%m], {'%s' if sink else 'none'}, none"
    form = f"zero_empty = {str(zero_empty).lower()}"
    score = f"""score(%dot: f32[1, 2, 3, 5], %m: bool[3, 5]) {{
        %0 = where %m, %dot, {fill} : f32[1, 2, 3, 5]
        yield %0
      }}"""
    graph = parse_graph(f"""
    graph @g(%q: f32[1, 2, 3, 4], %k: f32[1, 1, 5, 4], {given}%m: bool[3, 5],
             %g: f32[1, 2, 3, 4]) {{
      %o, %l = attention {operands} {{{form}}} with {score} : f32[1, 2, 3, 4], f32[1, 2, 3]
      %d, %e, %f = attention_backward {operands}, %g, none, %o, %l
        {{{form}, wanted = [true, true, true, false, false]}} with {score}
        : f32[1, 2, 3, 4], f32[1, 1, 5, 4], f32[1, 1, 5, 4]
      return %o, %l, %d, %e, %f
    }}""")
    torch.manual_seed(0)
    mask = torch.rand(3, 5) < 0.6
    mask[1] = False
    q, k, g = torch.randn(1, 2, 3, 4), torch.randn(1, 1, 5, 4), torch.randn(1, 2, 3, 4)
    every = [q, k, *([torch.randn(2, 1)] if sink else []), mask, g]
    expected, _ = evaluate(graph, every)
    made = ChooseAttention(way="unfused").run(graph, PassContext())
    assert not any(isinstance(op, Attending) for op in made.ops)
    found, _ = evaluate(made, every)
    for actual, wanted in zip(found, expected, strict=True):
        close(actual, wanted, 1e-5)
    if fill != "-inf" and not sink:
        uniform = k.mean(2, keepdim=True).expand(1, 2, 1, 4)
        close(found[0][:, :, 1:2], uniform, 1e-5)
        assert bool((found[1][:, :, 1] < -1e38).all())
    elif fill == "-inf" and not sink:
        assert bool((found[1][:, :, 1] == -math.inf).all())
        assert bool(found[0][:, :, 1].isnan().all()) != zero_empty


def plain(rows: Any = 8, dtype: DType = DType.F32, heads: Any = 4) -> Attention:
    q = Value(TensorType(dtype, (1, heads, rows, 4)))
    k = Value(TensorType(dtype, (1, 2, rows, 4)))
    return Attention(q, k, k, (), None, None)


def test_choice() -> None:
    assert choose(plain(), SMALL).is_unfused
    assert choose(plain(symbol("s0")), SMALL).is_unfused
    large = choose(plain(8192), SMALL)
    assert not large.is_unfused
    assert large.reason == "computed in parts: all scores are 1024 MiB"
    for length in (1, 8, 65, 4096, symbol("s0")):
        assert not choose(plain(length), Target(has_attention=True)).is_unfused


def test_gradients_of_a_single_query_are_taken_apart() -> None:
    target = Target(has_attention=True)
    for queries, is_unfused in ((1, True), (2, False), (symbol("s0"), False)):
        forward = plain(queries)
        given = (forward.q, forward.k, forward.v, (), None, None)
        out, lse = forward.results
        back = AttentionBackward(*given, out, None, out, lse, wanted=(True, True, True, False))
        assert choose(back, target).is_unfused is is_unfused
        assert not choose(back, dataclasses.replace(target, launches=True)).is_unfused


def test_remarks_say_what_was_chosen() -> None:
    context = PassContext()
    expanded(plain(), context)
    assert [remark.message for remark in context.remarks] == ["computed unfused, as asked for"]


def test_heads_of_unknown_number_stay_whole() -> None:
    context = PassContext()
    op = plain(heads=symbol("s0"))
    graph = Graph("g", op.operands[:2], (op,), op.results)
    made = ChooseAttention(way="unfused").run(graph, context)
    assert made.ops == (op,)
    assert "it is not known how many heads share one" in context.remarks[-1].message


def test_low_precision_is_multiplied_natively_where_that_is_fast() -> None:
    op = plain(dtype=DType.BF16)
    graph = Graph("g", tuple(dict.fromkeys(op.operands)), (op,), op.results)
    for native, expected in ((frozenset(), DType.F32), (frozenset({DType.BF16}), DType.BF16)):
        context = PassContext(target=Target(native_products=native))
        made = ChooseAttention(way="unfused").run(graph, context)
        products = [part for part in made.ops if part.name == "batch_matmul"]
        assert {part.out.tensor_type.dtype for part in products} == {expected}


def test_other_graphs_are_left_alone() -> None:
    graph = parse_graph("graph @g(%a: f32[4]) { %0 = exp %a : f32[4] return %0 }")
    assert ChooseAttention().run(graph, PassContext()) is graph
    with pytest.raises(UsageError, match="'whole' or 'unfused'"):
        ChooseAttention(way="flash")


def test_what_stays_whole_has_a_score_of_primitive_ops() -> None:
    graph = parse_graph("""
    graph @g(%q: f32[1, 2, 3, 4]) {
      %o, %l = attention %q, %q, %q, [], none, none with score(%dot: f32[1, 2, 3, 3]) {
        %0 = gelu %dot : f32[1, 2, 3, 3]
        %1 = tril %0 : f32[1, 2, 3, 3]
        %2 = exp %1 : f32[1, 2, 3, 3]
        yield %1
      } : f32[1, 2, 3, 4], f32[1, 2, 3]
      return %o
    }""")
    context = PassContext(target=Target(generates_code=True))
    made = ChooseAttention(way="whole").run(graph, context)
    verify(made)
    (op,) = made.ops
    assert isinstance(op, Attention)
    assert op.score is not None
    names = {part.name for part in op.score.ops}
    assert not names & {"gelu", "tril", "exp"}
    q = torch.randn(1, 2, 3, 4)
    close(evaluate(made, [q])[0], evaluate(graph, [q])[0], 1e-6)
