"""Decompositions compute what the whole ops compute."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from lynx.backends.reference import evaluate, run
from lynx.ir.core import Graph, Op, Value
from lynx.ir.errors import CompileError, TextError, UsageError
from lynx.ir.ops.activation import Gelu, Silu
from lynx.ir.ops.linear import AddMatmul
from lynx.ir.ops.normalization import LayerNorm, RmsNorm
from lynx.ir.ops.softmax import LogSoftmax, SafeSoftmax, Softmax, SoftmaxBackward
from lynx.ir.types import DType, OpaqueType, TensorType
from lynx.passes import COMPOSITE, NO_COMPOSITE_OPS, PassContext, Pipeline, parse_pipeline
from lynx.passes.decompose import RULES, Decompose
from tests.passes.values import special
from tests.samples.inputs import SAMPLES, draw

CHOSEN = {key: sample for key, sample in SAMPLES.items() if type(sample.op) in COMPOSITE}
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 2e-5}


def graph_of(op: Op) -> Graph:
    """Return a graph of one op, without the results that do not exist."""
    inputs = tuple(dict.fromkeys(op.operands))
    results = (r if not isinstance(r.type, OpaqueType) else None for r in op.results)
    return Graph("g", inputs, (op,), tuple(results))


def decomposed(graph: Graph, text: str = "decompose{all=true}") -> Graph:
    result = parse_pipeline(text).run(graph)
    assert isinstance(result, Graph)
    return result


def assert_close(op: Op, inputs: dict[Value, Any]) -> None:
    before = graph_of(op)
    after = decomposed(before)
    assert not any(isinstance(new, type(op)) for new in after.ops)
    expected, _ = evaluate(before, [inputs[v] for v in before.inputs])
    got, _ = evaluate(after, [inputs[v] for v in before.inputs])
    for a, b in zip(expected, got, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            tolerance = TOLERANCE.get(a.dtype, 1e-9)
            scale = a[a.isfinite()].abs().max().item() if a.isfinite().any() else 1.0
            options = {"rtol": tolerance, "atol": tolerance * scale, "equal_nan": True}
            torch.testing.assert_close(b, a, **options)


def in_dtype(op: Op, dtype: DType) -> Op:
    """Return the op over operands in which `f32` is replaced by another type."""
    mapping = {
        v: Value(v.type.with_dtype(dtype))
        for v in op.operands
        if isinstance(v.type, TensorType) and v.type.dtype is DType.F32
    }
    return op.replace_operands(mapping)


@pytest.mark.parametrize("key", CHOSEN)
def test_samples(key: str) -> None:
    sample = CHOSEN[key]
    assert_close(sample.op, draw(key, sample))


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16, DType.F64], ids=str)
@pytest.mark.parametrize("key", CHOSEN)
def test_samples_in_other_types(key: str, dtype: DType) -> None:
    op = in_dtype(CHOSEN[key].op, dtype)
    sample = dataclasses.replace(CHOSEN[key], op=op)
    inputs = draw(key, sample)
    run(op, inputs, {}, {})  # the operator itself must support the type
    assert_close(op, inputs)


@pytest.mark.parametrize("kind", COMPOSITE, ids=lambda kind: kind.name)
def test_every_composite_has_a_sample(kind: type[Op]) -> None:
    assert any(type(sample.op) is kind for sample in CHOSEN.values())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_is_documented(rule: Any) -> None:
    sentence, equation = rule.function.__doc__.split("\n\n")
    assert sentence.endswith(".")
    assert "  ==>  " in equation


UNARY = [kind for kind in COMPOSITE if list(kind.operand_fields) == ["x"]]


@pytest.mark.parametrize("kind", UNARY, ids=lambda kind: kind.name)
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16], ids=str)
def test_special_values(kind: type[Op], dtype: DType) -> None:
    """Each special value alone, so that one NaN does not hide what the others give."""
    for sample in CHOSEN.values():
        if type(sample.op) is not kind or kind in (Softmax, LogSoftmax, SafeSoftmax):
            continue
        for value in special(dtype, 13):
            x = Value(TensorType(dtype, ()))
            op = dataclasses.replace(sample.op, x=x)  # type: ignore[call-arg]
            assert_close(op, {x: value})


@pytest.mark.parametrize("kind", [Softmax, LogSoftmax, SafeSoftmax])
def test_softmax_of_infinities(kind: type[Softmax | LogSoftmax | SafeSoftmax]) -> None:
    inf, nan = float("inf"), float("nan")
    rows = [[-inf, -inf], [-inf, 0.0], [inf, 0.0], [nan, 0.0], [-inf, nan], [1e38, -1e38]]
    x = Value(TensorType(DType.F32, (6, 2)))
    assert_close(kind(x, 1), {x: torch.tensor(rows)})
    scalar = Value(TensorType(DType.F32, ()))
    for number in (0.0, -inf, inf, nan):
        assert_close(kind(scalar, 0), {scalar: torch.tensor(number)})


def test_softmax_backward_of_a_number() -> None:
    grad, result = Value(TensorType(DType.F32, ())), Value(TensorType(DType.F32, ()))
    op = SoftmaxBackward(grad, result, 0)
    assert_close(op, {grad: torch.tensor(2.0), result: torch.tensor(1.0)})


@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
def test_nothing_is_left_whole(shape: tuple[int, ...]) -> None:
    x = Value(TensorType(DType.F32, shape))
    context = PassContext(reasons=True)
    for op in (Softmax(x, 1), LayerNorm(x, None, None, 1, 1e-5)):
        graph = graph_of(op)
        assert Decompose(all=True).run(graph, context) is graph
    assert len(context.remarks) == 2


def test_rms_norm_without_epsilon() -> None:
    for dtype in (DType.F32, DType.BF16, DType.F16, DType.F64):
        x = Value(TensorType(dtype, (3, 4)))
        tiny = torch.full((3, 4), 1e-3, dtype=special(dtype, 1).dtype)
        assert_close(RmsNorm(x, None, 1), {x: tiny})


def test_a_beta_of_zero_ignores_the_bias() -> None:
    bias, a, b = (Value(TensorType(DType.F32, (2, 2))) for _ in range(3))
    op = AddMatmul(bias, a, b, beta=0.0, alpha=2.0)
    ones = torch.ones(2, 2)
    assert_close(op, {bias: ones * float("nan"), a: ones, b: ones})


def two() -> Graph:
    x = Value(TensorType(DType.F32, (4,)), name="x")
    ops = (Gelu(x), Silu(x))
    return Graph("g", (x,), ops, tuple(op.out for op in ops))


def test_only_what_is_named() -> None:
    names = [op.name for op in decomposed(two(), "decompose{only=[silu]}").ops]
    assert "gelu" in names
    assert "silu" not in names


def test_only_what_is_not_supported() -> None:
    graph = two()
    assert Decompose().run(graph, PassContext()) is graph
    context = PassContext(supports=lambda kind: kind is not Gelu)
    names = [op.name for op in Decompose().run(graph, context).ops]
    assert "silu" in names
    assert "gelu" not in names


def test_unknown_names() -> None:
    with pytest.raises(UsageError, match="no composite op is called 'softmx'; did you mean"):
        Decompose(only=("softmx",))
    with pytest.raises(TextError) as caught:
        parse_pipeline("dce,decompose{only=[softmx]}")
    assert caught.value.column == 5


def test_requirement() -> None:
    violation = NO_COMPOSITE_OPS.find(two())
    assert violation is not None
    assert "'gelu'" in violation.message
    assert NO_COMPOSITE_OPS.find(decomposed(two())) is None


def test_the_requirement_is_enforced() -> None:
    @dataclasses.dataclass(frozen=True)
    class Primitive:
        """Require primitive ops."""

        name = "test-primitive"
        requires = (NO_COMPOSITE_OPS,)

        def run(self, module: Graph, context: PassContext) -> Graph:
            return module

    with pytest.raises(CompileError, match="requires no composite ops: found 'gelu'"):
        Pipeline((Primitive(),)).run(two())  # type: ignore[arg-type]
