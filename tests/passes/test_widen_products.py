"""Products taken apart or widened compute what eager computes, roundings included."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest
import torch

from lynx.backends.reference import evaluate
from lynx.backends.reference.dtypes import torch_dtype
from lynx.ir.core import Builder, Graph, InputSpec, Op, Value
from lynx.ir.dims import Dim, SymbolRange, symbol
from lynx.ir.ops.convolution import (
    Convolution,
    ConvolutionBackwardInput,
    ConvolutionBackwardWeight,
)
from lynx.ir.ops.layout import Permute, Reshape
from lynx.ir.ops.linear import (
    AddBatchMatmul,
    AddMatmul,
    AddMatrixVector,
    AddProduct,
    BatchMatmul,
    Dot,
    Matmul,
    MatrixProduct,
    MatrixVector,
)
from lynx.ir.types import DType, TensorType
from lynx.passes import PassContext, Target, parse_pipeline
from tests.samples.inputs import SAMPLES, draw

KINDS = (
    MatrixProduct,
    AddProduct,
    Convolution,
    ConvolutionBackwardInput,
    ConvolutionBackwardWeight,
)
CHOSEN = {key: sample for key, sample in SAMPLES.items() if isinstance(sample.op, KINDS)}
GENERATING = Target(generates_code=True)
PLAIN = Target()
BOTH = "expand-products,widen-products"


def tensor(*shape: Dim, dtype: DType = DType.F32, device: str = "cpu") -> Value:
    return Value(TensorType(dtype, shape, device))


def graph_of(*ops: Op) -> Graph:
    made = {result for op in ops for result in op.results}
    inputs = dict.fromkeys(v for op in ops for v in op.operands if v not in made)
    symbols = tuple(SymbolRange(name, 2) for name in ("s0", "s1"))
    return Graph("g", tuple(inputs), ops, ops[-1].results, symbols=symbols)


def run(graph: Graph, target: Target, pipeline: str = BOTH) -> Graph:
    result = parse_pipeline(pipeline).run(graph, PassContext(target=target))
    assert isinstance(result, Graph)
    return result


def in_dtype(op: Op, dtype: DType) -> Op:
    """Return the op over operands in which `f32` is replaced by another type."""
    mapping = {
        v: Value(v.type.with_dtype(dtype))
        for v in op.operands
        if isinstance(v.type, TensorType) and v.type.dtype is DType.F32
    }
    return op.replace_operands(mapping)


def values(graph: Graph, inputs: dict[Value, Any], *, exact: bool = False) -> list[torch.Tensor]:
    given = [inputs[value] for value in graph.inputs]
    if exact:
        given = [x.double() if x.is_floating_point() else x for x in given]
    return [item for item in evaluate(graph, given)[0] if item is not None]


def exactly(graph: Graph) -> Graph:
    """Return the graph of one op in `f64`."""
    (op,) = graph.ops
    wide = {v: Value(v.type.with_dtype(DType.F64)) for v in op.operands}  # type: ignore[union-attr]
    new = op.replace_operands(wide)
    return Graph("g", tuple(wide[v] for v in graph.inputs), (new,), new.results)


@pytest.mark.parametrize("target", [GENERATING, PLAIN], ids=["generating", "plain"])
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F16, DType.F64], ids=str)
@pytest.mark.parametrize("key", CHOSEN)
def test_samples(key: str, dtype: DType, target: Target) -> None:
    """The error against float64 is no more than eager's own, up to the order of a sum."""
    op = in_dtype(CHOSEN[key].op, dtype)
    before = graph_of(op)
    inputs = draw(key, dataclasses.replace(CHOSEN[key], op=op))
    after = run(before, target)
    got = values(after, inputs)
    eager = values(before, inputs)
    if not eager[0].is_floating_point():
        assert all(torch.equal(a, b) for a, b in zip(got, eager, strict=True))
        return
    graph = exactly(before)
    given = dict(zip(graph.inputs, (inputs[v] for v in before.inputs), strict=True))
    for a, b, true in zip(got, eager, values(graph, given, exact=True), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if a.numel() == 0:
            continue
        slack = 8 * torch.finfo(torch.float32 if a.dtype != torch.float64 else a.dtype).eps
        own = (b.double() - true).abs().max()
        allowed = 1.1 * own + slack * true.abs().max().clamp(min=1)
        assert (a.double() - true).abs().max() <= allowed


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16], ids=str)
@pytest.mark.parametrize("target", [GENERATING, PLAIN], ids=["generating", "plain"])
def test_one_rounding(dtype: DType, target: Target) -> None:
    """Almost all elements are eager's bit for bit; rounding twice would change a quarter."""
    a, b = tensor(64, 256, dtype=dtype), tensor(256, 96, dtype=dtype)
    bias = tensor(96, dtype=dtype)
    images, filters = tensor(2, 16, 9, 9, dtype=dtype), tensor(24, 16, 1, 1, dtype=dtype)
    shift = tensor(24, dtype=dtype)
    ops = [
        Matmul(a, b),
        AddMatmul(bias, a, b),
        AddMatmul(bias, a, b, alpha=0.3, beta=0.7),
        AddMatrixVector(tensor(64, dtype=dtype), a, tensor(256, dtype=dtype)),
        Convolution(images, filters, shift),
        Convolution(images, tensor(24, 16, 3, 3, dtype=dtype), shift),
    ]
    for op in ops:
        before = graph_of(op)
        generator = torch.Generator().manual_seed(0)
        inputs = {
            v: torch.randn(v.shape, generator=generator).to(torch_dtype(dtype))  # type: ignore[call-overload]
            for v in before.inputs
        }
        (got,), (eager,) = values(run(before, target), inputs), values(before, inputs)
        assert (got == eager).double().mean() > 0.97, op.name


def names(graph: Graph) -> Counter[str]:
    return Counter(op.name for op in parse_pipeline("dce").run(graph).ops)


def widened(op: Op, target: Target = GENERATING) -> bool:
    graph = graph_of(op)
    after = run(graph, target, "widen-products")
    assert (after is graph) == ("cast" not in names(after))
    return after is not graph


def test_what_is_widened() -> None:
    bf16, f16 = DType.BF16, DType.F16
    big = Matmul(tensor(64, 64, dtype=bf16), tensor(64, 64, dtype=bf16))
    small = Matmul(tensor(4, 8, dtype=bf16), tensor(8, 4, dtype=bf16))
    row = Matmul(tensor(1, 999, dtype=bf16), tensor(999, 999, dtype=bf16))
    some = Matmul(tensor(symbol("s0"), 8, dtype=bf16), tensor(8, 4, dtype=bf16))
    for op in (big, small, row, some):
        assert widened(op)
    assert [widened(op, PLAIN) for op in (big, small, row, some)] == [True, False, False, True]
    native = Target(native_products=frozenset({bf16}), generates_code=True)
    assert not widened(big, native)
    assert widened(Matmul(tensor(64, 64, dtype=f16), tensor(64, 64, dtype=f16)), native)
    assert not widened(Matmul(tensor(64, 64), tensor(64, 64)))
    x, filters = tensor(2, 4, 5, 5, dtype=bf16), tensor(4, 6, 3, 3, dtype=bf16)
    assert widened(Convolution(x, tensor(6, 4, 3, 3, dtype=bf16), None))
    assert not widened(Convolution(x, filters, None, transposed=True))
    there = tensor(64, 64, dtype=bf16, device="cuda:0")
    assert not widened(Matmul(there, there))


def test_reasons() -> None:
    context = PassContext(target=PLAIN, reasons=True)
    small = graph_of(Matmul(tensor(4, 8, dtype=DType.BF16), tensor(8, 4, dtype=DType.BF16)))
    parse_pipeline("widen-products").run(small, context)
    assert [remark.message for remark in context.remarks] == [
        "is too small to convert the operands"
    ]


def test_a_weight_is_converted_once() -> None:
    weight = tensor(64, 64, dtype=DType.BF16)
    first = Matmul(tensor(64, 64, dtype=DType.BF16), weight)
    second = Matmul(first.out, weight)
    after = run(graph_of(first, second), GENERATING, "widen-products,cse")
    # The input, the weight, what the first product gives, and two results.
    assert names(after)["cast"] == 5


def test_nothing_is_taken_apart_without_generated_code() -> None:
    graph = graph_of(AddMatmul(tensor(3), tensor(5, 7), tensor(7, 3)))
    assert run(graph, PLAIN) is graph
    device = Target(device="cuda", generates_code=True)
    assert run(graph, device) is graph
    integers = (tensor(*s, dtype=DType.I64) for s in ((3,), (5, 7), (7, 3)))
    whole = graph_of(AddMatmul(*integers))
    assert run(whole, GENERATING) is whole


def test_native_types_keep_their_added_terms() -> None:
    native = Target(native_products=frozenset({DType.BF16}), generates_code=True)
    whole = graph_of(AddMatmul(*(tensor(*s, dtype=DType.BF16) for s in ((3,), (5, 7), (7, 3)))))
    assert run(whole, native) is whole


def test_an_ignored_bias_is_ignored() -> None:
    op = AddBatchMatmul(tensor(4, 5, 3), tensor(4, 5, 7), tensor(4, 7, 3), beta=0.0)
    after = run(graph_of(op), GENERATING)
    inputs = {v: torch.randn(v.shape) for v in after.inputs}  # type: ignore[arg-type]
    inputs[op.bias] = torch.full((4, 5, 3), float("nan"))
    assert values(after, inputs)[0].isfinite().all()


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (Matmul(tensor(1, 7), Permute(tensor(9, 7), (1, 0)).out), "sum"),
        (Matmul(tensor(1, 7), tensor(7, 9)), "matmul"),
        (Matmul(tensor(5, 7), tensor(7, 1)), "sum"),
        (Matmul(Permute(tensor(7, 5), (1, 0)).out, tensor(7, 1)), "matmul"),
        (Matmul(tensor(2, 7), Permute(tensor(9, 7), (1, 0)).out), "matmul"),
        (Matmul(tensor(5, 1), tensor(1, 4)), "mul"),
        (BatchMatmul(tensor(3, 5, 1), tensor(3, 1, 4)), "mul"),
        (MatrixVector(tensor(5, 7), tensor(7)), "sum"),
        (MatrixVector(Permute(tensor(7, 5), (1, 0)).out, tensor(7)), "matrix_vector"),
        (Dot(tensor(7), tensor(7)), "sum"),
    ],
)
def test_products_with_vectors(op: Op, expected: str) -> None:
    ops = [v.op for v in op.operands if v.op is not None] + [op]
    found = names(run(graph_of(*ops), GENERATING))
    assert {"matmul", "batch_matmul", "matrix_vector", "dot", "sum", "mul"} & {*found} == (
        {expected, "mul"} if expected == "sum" else {expected}
    )


def test_strides_of_inputs_tell_how_a_matrix_is_stored() -> None:
    for strides, expected in (((1, 7), "sum"), ((9, 1), "matmul"), (None, "matmul")):
        builder = Builder("g")
        x = builder.input("x", TensorType(DType.F32, (1, 7)), InputSpec((7, 1)))
        w = builder.input("w", TensorType(DType.F32, (7, 9)), InputSpec(strides))
        graph = builder.build((builder.emit(Matmul(x, w)),))
        assert expected in names(run(graph, GENERATING))


def test_a_row_of_low_precision_needs_no_converted_weight() -> None:
    """The bias is added before the only rounding."""
    weight, bias = tensor(9, 7, dtype=DType.BF16), tensor(9, dtype=DType.BF16)
    turned = Permute(weight, (1, 0))
    op = AddMatmul(bias, tensor(1, 7, dtype=DType.BF16), turned.out)
    found = names(run(graph_of(turned, op), GENERATING))
    assert found["sum"] == 1
    assert found["matmul"] == 0
    assert found["cast"] == 4


def test_convolutions_with_windows_of_one_element() -> None:
    x = tensor(2, 4, 5, 6)
    for op, expected in (
        (Convolution(x, tensor(6, 4, 1, 1), tensor(6)), "batch_matmul"),
        (Convolution(tensor(2, 4, 1, 1), tensor(6, 4, 1, 1), None), "matmul"),
        (Convolution(x, tensor(6, 4, 1, 1), None, padding=(1, 1)), "convolution"),
        (Convolution(x, tensor(6, 4, 1, 1), None, stride=(2, 2)), "convolution"),
        (Convolution(x, tensor(6, 2, 1, 1), None, groups=2), "convolution"),
        (Convolution(x, tensor(4, 6, 1, 1), None, transposed=True), "convolution"),
        (
            ConvolutionBackwardInput(tensor(2, 6, 5, 6), x, tensor(6, 4, 1, 1)),
            "batch_matmul",
        ),
        (
            ConvolutionBackwardInput(tensor(2, 6, 5, 6), x, tensor(6, 4, 3, 3), padding=(1, 1)),
            "convolution_backward_input",
        ),
    ):
        graph = graph_of(op)
        after = run(graph, GENERATING)
        assert names(after)[expected] == 1
        inputs = {v: torch.randn(v.shape) for v in graph.inputs}  # type: ignore[arg-type]
        for a, b in zip(values(after, inputs), values(graph, inputs), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_symbolic_sizes() -> None:
    batch, rows = symbol("s0"), symbol("s1")
    x = tensor(batch, 4, rows, rows)
    after = run(graph_of(Convolution(x, tensor(6, 4, 1, 1), tensor(6))), GENERATING)
    assert names(after)["batch_matmul"] == 1
    flat = Reshape(tensor(batch, rows, 8), (batch * rows, 8))
    linear = AddMatmul(tensor(3), flat.out, tensor(8, 3))
    assert names(run(graph_of(flat, linear), GENERATING))["matmul"] == 1


def test_terms_that_are_written_differently_stay_a_product() -> None:
    """`s0**2` may be 1, but an elementwise product would take it for 64 rows."""
    size = symbol("s0") ** 2
    outer = graph_of(Matmul(tensor(64, 1), tensor(size, 64)))
    columns = Permute(tensor(64, size), (1, 0))
    row = graph_of(columns, Matmul(tensor(1, 1), columns.out))
    for graph in (outer, row):
        assert [op.name for op in run(graph, GENERATING).ops if op.name != "permute"] == ["matmul"]
    alike = run(graph_of(Matmul(tensor(64, 1), tensor(1, 64))), GENERATING)
    assert [op.name for op in alike.ops] == ["mul"]
