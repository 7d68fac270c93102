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
from lynx.ir.ops.elementwise import Unary
from lynx.ir.ops.elementwise_math import Round, Sigmoid
from lynx.ir.ops.linear import AddMatmul
from lynx.ir.ops.loss import REDUCTIONS, BinaryCrossEntropy
from lynx.ir.ops.normalization import LayerNorm, RmsNorm
from lynx.ir.ops.pooling import (
    AdaptiveAveragePool,
    AdaptiveAveragePoolBackward,
    AveragePool,
    AveragePoolBackward,
)
from lynx.ir.ops.softmax import LogSoftmax, SafeSoftmax, Softmax, SoftmaxBackward
from lynx.ir.types import DType, TensorType
from lynx.passes import COMPOSITE, NO_COMPOSITE_OPS, PassContext, Pipeline, parse_pipeline
from lynx.passes.decompose import RULES, Decompose
from lynx.passes.target import Target
from tests.passes.decompositions import assert_as_accurate, decomposed, graph_of, in_dtype
from tests.passes.values import special
from tests.samples.inputs import SAMPLES, draw

CHOSEN = {key: sample for key, sample in SAMPLES.items() if type(sample.op) in COMPOSITE}
PARTIAL = (
    AdaptiveAveragePool,
    AdaptiveAveragePoolBackward,
    AveragePool,
    AveragePoolBackward,
    BinaryCrossEntropy,
    Round,
)
"""Ops of which only special cases are expanded."""


def check(op: Op, inputs: dict[Value, Any]) -> None:
    """Expand an op and compare; ops of which only some have an expansion may stay."""
    before = graph_of(op)
    after = decomposed(before)
    if after is before:
        assert isinstance(op, PARTIAL)
        return
    assert op not in after.ops
    assert_as_accurate(op, inputs, after)


@pytest.mark.parametrize("key", CHOSEN)
def test_samples(key: str) -> None:
    sample = CHOSEN[key]
    check(sample.op, draw(key, sample))


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16, DType.F64], ids=str)
@pytest.mark.parametrize("key", CHOSEN)
def test_samples_in_other_types(key: str, dtype: DType) -> None:
    op, _ = in_dtype(CHOSEN[key].op, dtype)
    sample = dataclasses.replace(CHOSEN[key], op=op)
    inputs = draw(key, sample)
    try:
        run(op, inputs, {}, {})
    except NotImplementedError as error:
        pytest.skip(str(error))
    check(op, inputs)


@pytest.mark.parametrize("kind", COMPOSITE, ids=lambda kind: kind.name)
def test_every_composite_has_a_sample(kind: type[Op]) -> None:
    assert any(type(sample.op) is kind for sample in CHOSEN.values())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_is_documented(rule: Any) -> None:
    sentence, equation = rule.function.__doc__.split("\n\n")
    assert sentence.endswith(".")
    assert "  ==>  " in equation


UNARY = [
    kind for kind in COMPOSITE if list(kind.operand_fields) == ["x"] and issubclass(kind, Unary)
]


@pytest.mark.parametrize("kind", UNARY, ids=lambda kind: kind.name)
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16], ids=str)
def test_special_values(kind: type[Op], dtype: DType) -> None:
    """Each special value alone, so that one NaN does not hide what the others give."""
    for sample in CHOSEN.values():
        if type(sample.op) is not kind:
            continue
        for value in special(dtype, 13):
            x = Value(TensorType(dtype, ()))
            op = dataclasses.replace(sample.op, x=x)  # type: ignore[call-arg]
            check(op, {x: value})


@pytest.mark.parametrize("kind", [Softmax, LogSoftmax, SafeSoftmax])
def test_softmax_of_infinities(kind: type[Softmax | LogSoftmax | SafeSoftmax]) -> None:
    inf, nan = float("inf"), float("nan")
    rows = [[-inf, -inf], [-inf, 0.0], [inf, 0.0], [nan, 0.0], [-inf, nan], [1e38, -1e38]]
    x = Value(TensorType(DType.F32, (6, 2)))
    check(kind(x, 1), {x: torch.tensor(rows)})
    scalar = Value(TensorType(DType.F32, ()))
    for number in (0.0, -inf, inf, nan):
        check(kind(scalar, 0), {scalar: torch.tensor(number)})


def test_softmax_backward_of_a_number() -> None:
    grad, result = Value(TensorType(DType.F32, ())), Value(TensorType(DType.F32, ()))
    op = SoftmaxBackward(grad, result, 0)
    check(op, {grad: torch.tensor(2.0), result: torch.tensor(1.0)})


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
        check(RmsNorm(x, None, 1), {x: tiny})


def test_a_beta_of_zero_ignores_the_bias() -> None:
    bias, a, b = (Value(TensorType(DType.F32, (2, 2))) for _ in range(3))
    op = AddMatmul(bias, a, b, beta=0.0, alpha=2.0)
    ones = torch.ones(2, 2)
    check(op, {bias: ones * float("nan"), a: ones, b: ones})


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_probabilities_are_known_to_be_such(reduction: str) -> None:
    z, target = Value(TensorType(DType.F32, (5, 3))), Value(TensorType(DType.F32, (5, 3)))
    sigmoid = Sigmoid(z)
    op = BinaryCrossEntropy(sigmoid.out, target, None, reduction)
    graph = Graph("g", (z, target), (sigmoid, op), (op.out,))
    after = decomposed(graph)
    assert not any(isinstance(new, BinaryCrossEntropy) for new in after.ops)
    values = [torch.randn(5, 3) * 30, torch.rand(5, 3)]
    (expected,), _ = evaluate(graph, values)
    (got,), _ = evaluate(after, values)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)


def test_what_torch_checks_stays_with_torch() -> None:
    x, target = Value(TensorType(DType.F32, (3,))), Value(TensorType(DType.F32, (3,)))
    graph = graph_of(BinaryCrossEntropy(x, target, None))
    context = PassContext(reasons=True)
    assert Decompose(all=True).run(graph, context) is graph
    assert "between 0 and 1" in context.remarks[0].message


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


GENERATING = PassContext(target=Target(generates_code=True))


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.F32, DType.F64], ids=str)
def test_what_kernels_are_generated_for(dtype: DType) -> None:
    op = Softmax(Value(TensorType(dtype, (3, 4))), 1)
    graph = graph_of(op)
    assert op not in Decompose().run(graph, GENERATING).ops
    assert Decompose().run(graph, PassContext()) is graph


def test_what_no_kernels_are_generated_for() -> None:
    on_gpu = Value(TensorType(DType.F32, (3, 4), "cuda:0"))
    small = Value(TensorType(DType.F8E5M2, (3, 4)))
    matrix = Value(TensorType(DType.F32, (4, 4)))
    whole = (Softmax(on_gpu, 1), Gelu(small), AddMatmul(matrix, matrix, matrix))
    for op in whole:
        graph = graph_of(op)
        assert Decompose().run(graph, GENERATING) is graph
    gpu = PassContext(target=Target(device="cuda", generates_code=True))
    assert whole[0] not in Decompose().run(graph_of(whole[0]), gpu).ops


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
